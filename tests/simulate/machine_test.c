// SPDX-License-Identifier: Apache-2.0
// Verifies what stages share: cores first come first served, gradients that leave before W, boundaries and paths of
// their own, stores, recorded durations, and that busy and stalled time of every stage add up to the whole.
#include "simulate/timed.h"

#include "schedule/balance/balance.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static double end_of(const char *name, uint32_t stages, uint32_t micro_batches, const bl_costs_t *costs,
                     const bl_machine_t *machine) {
  bl_schedule_t *schedule = generate(name, stages, micro_batches);
  bl_simulation_t result = simulate(schedule, costs, machine);
  double t_end = result.t_end;
  bl_simulation_cleanup(&result);
  bl_schedule_destroy(schedule);
  return t_end;
}

static void one_core_runs_everything_after_each_other(void **state) {
  (void)state;
  bl_machine_t one = {.cores = 1};
  assert_time(end_of("1f1b", 4, 6, &BL_COSTS_UNIT, &one), 4 * 6 * 3);
  assert_time(end_of("zb-h1", 3, 5, &BL_COSTS_UNIT, &one), 3 * 5 * 3);
}

static void as_many_cores_as_stages_change_nothing(void **state) {
  (void)state;
  static const char *const names[] = {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "v-half"};
  bl_costs_t costs = {.every = {3, 4, 2, 3}, .boundary = 0.5};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    bl_machine_t four = {.cores = 4};
    assert_time(end_of(names[i], 4, 8, &costs, &four), end_of(names[i], 4, 8, &costs, &(bl_machine_t){0}));
  }
}

// Two cores and four stages: never faster than with four, never slower than one core, work conserved.
static void fewer_cores_lie_between(void **state) {
  (void)state;
  for (uint32_t m = 1; m <= 9; m++) {
    bl_machine_t two = {.cores = 2}, one = {.cores = 1};
    double shared = end_of("1f1b", 4, m, &BL_COSTS_UNIT, &two);
    assert_true(shared >= end_of("1f1b", 4, m, &BL_COSTS_UNIT, &(bl_machine_t){0}));
    assert_true(shared >= 4 * m * 3 / 2.0);
    assert_true(shared <= end_of("1f1b", 4, m, &BL_COSTS_UNIT, &one));
  }
}

// Two stages, m = 2, every operation 1 and 2 long: 0F0 0-1, 0F1 1-2, 1F0 1-2, 1B0 2-4, 1F1 4-5, 1B1 5-7, 0B0 4-6, 0B1 7-9.
static void replicas_gather_and_add_up(void **state) {
  (void)state;
  bl_schedule_t *schedule = generate("1f1b", 2, 2);
  const double gathers[] = {0.5, 3}, reductions[] = {4, 0.5}, none[] = {0, 0}, bad[] = {0, -1};
  const bl_machine_t replicas = {.gathers = gathers, .reductions = reductions};
  bl_simulation_t result = simulate(schedule, &BL_COSTS_UNIT, &replicas);
  // All of stage 0 half later; 1F0 begins at 3 in place of 1.5, so 0B1 ends at 9 + 2; its gradients are added up at 15.
  assert_time(result.t_end, 11 + 4);
  assert_time(result.stalls[0][BL_STALL_GATHER], 0.5);
  assert_time(result.stalls[0][BL_STALL_REDUCTION], 4);
  assert_time(result.stalls[0][BL_STALL_END], 0);
  assert_time(result.stalls[1][BL_STALL_ACTIVATION], 1.5); // which a stage waits for first
  assert_time(result.stalls[1][BL_STALL_GATHER], 3 - 1.5);
  assert_time(result.stalls[1][BL_STALL_REDUCTION], 0.5);
  assert_time(result.stalls[1][BL_STALL_END], 15 - 9.5);
  bl_simulation_cleanup(&result);
  const bl_machine_t free_ones = {.gathers = none, .reductions = none};
  assert_time(end_of("1f1b", 2, 2, &BL_COSTS_UNIT, &free_ones), 9);
  // Chunks of a stage are added up one after the other, and beside operations of others.
  const double of_chunks[] = {1, 1, 1, 1};
  const bl_machine_t chunks = {.gathers = of_chunks, .reductions = of_chunks};
  const double plain = end_of("interleaved", 2, 4, &BL_COSTS_UNIT, &(bl_machine_t){0});
  assert_time(end_of("interleaved", 2, 4, &BL_COSTS_UNIT, &chunks), plain + 2);
  bl_error_t err;
  const bl_machine_t wrong = {.gathers = none, .reductions = bad};
  assert_int_equal(bl_simulate_on(schedule, &BL_COSTS_UNIT, &wrong, &result, &err), BL_INVALID);
  bl_schedule_destroy(schedule);
}

// One core, two stages, m = 2, every operation 1 and 2 long: who waited for the core has it a quarter later. A stage waits
// for what it needs first and then for the core, and both are told.
static void a_core_changes_hands(void **state) {
  (void)state;
  bl_schedule_t *schedule = generate("1f1b", 2, 2);
  const bl_machine_t one = {.cores = 1, .handover = 0.25};
  bl_simulation_t result = simulate(schedule, &BL_COSTS_UNIT, &one);
  // 0F0 [0, 1]; 0F1 and 1F0 ask at 1, 0 first: [1, 2]; 1F0 [2.25, 3.25]; 1B0 [3.25, 5.25]; 0B0 and 1F1 ask at 5.25, 0 first:
  // [5.25, 7.25]; 1F1 [7.5, 8.5], 1B1 [8.5, 10.5]; 0B1 [10.5, 12.5]
  assert_time(result.t_end, 12.5);
  assert_time(result.stalls[0][BL_STALL_GRADIENT], 3.25 + 3.25);
  assert_time(result.stalls[0][BL_STALL_CORE], 0);
  assert_time(result.stalls[1][BL_STALL_ACTIVATION], 1);
  assert_time(result.stalls[1][BL_STALL_CORE], 1.25 + 2.25);
  bl_simulation_cleanup(&result);
  bl_schedule_destroy(schedule);
  const bl_costs_t costs = {.every = {3, 4, 2, 3}};
  const bl_machine_t slow = {.cores = 4, .handover = 5}, bad = {.cores = 1, .handover = -1};
  assert_time(end_of("zb-h1", 4, 8, &costs, &slow), end_of("zb-h1", 4, 8, &costs, &(bl_machine_t){0}));
  bl_error_t err;
  schedule = generate("1f1b", 2, 2);
  assert_int_equal(bl_simulate_on(schedule, &costs, &bad, &result, &err), BL_INVALID);
  assert_non_null(strstr(err.text, "handover of a core"));
  bl_schedule_destroy(schedule);
}

// p = 2, m = 1, F 1, I 2, W 3: F0 [0, 1], F1 [1, 2], B1 [2, 7]; B0 starts at 7, or at 4 when dx leaves after I.
static void a_gradient_leaves_after_its_input_part(void **state) {
  (void)state;
  bl_costs_t costs = {.every = {1, 2, 3, 1}};
  bl_machine_t early = {.early_gradient = true};
  assert_time(end_of("1f1b", 2, 1, &costs, &(bl_machine_t){0}), 12);
  assert_time(end_of("1f1b", 2, 1, &costs, &early), 9);
}

// The bound stays one where gradients leave early: it is met by the step above, and no schedule is below it.
static void no_step_is_below_its_bound(void **state) {
  (void)state;
  const bl_machine_t early = {.early_gradient = true};
  bl_schedule_t *two = generate("1f1b", 2, 1);
  bl_simulation_t met = simulate(two, &(bl_costs_t){.every = {1, 2, 3, 1}}, &early);
  assert_time(met.lower_bound, 9);
  bl_simulation_cleanup(&met);
  bl_schedule_destroy(two);
  const bl_costs_t costs[] = {{.every = {1, 1, 1, 1}}, {.every = {3, 5, 1, 3}, .boundary = 2}, {.every = {2, 1, 9, 2}}};
  size_t count;
  const bl_schedule_info_t *infos = bl_schedule_infos(&count);
  for (size_t n = 0; n < 3 * count; n++) {
    for (uint32_t p = 1; p <= 5; p++) {
      bl_schedule_t *schedule;
      bl_schedule_request_t request = {
          .name = infos[n / 3].name, .stages = p, .micro_batches = 2 * p, .costs = &costs[n % 3], .effort = 0.001};
      if (bl_schedule_generate(&request, &schedule, NULL) != BL_OK) {
        continue; // a shape that it does not have
      }
      bl_simulation_t result = simulate(schedule, &costs[n % 3], &early);
      if (result.t_end < result.lower_bound * (1 - 1e-12)) {
        fail_msg("%s, p %u: ends at %.12g, no sooner than %.12g was possible", schedule->name, p, result.t_end,
                 result.lower_bound);
      }
      bl_simulation_cleanup(&result);
      bl_schedule_destroy(schedule);
    }
  }
}

static void boundaries_are_those_of_each_neighbourhood(void **state) {
  (void)state;
  double boundaries[] = {0.25, 2, 0};
  bl_machine_t machine = {.boundaries = boundaries};
  // m = 1: every boundary is crossed twice
  assert_time(end_of("1f1b", 3, 1, &BL_COSTS_UNIT, &machine), 9 + 2 * 2.25);
}

static void recorded_times_take_the_place_of_costs(void **state) {
  (void)state;
  bl_schedule_t *schedule = generate("1f1b", 2, 2);
  double first[] = {1, 2, 3, 4}, second[] = {5, 6, 7, 8}; // F0 F1 B0 B1; F0 B0 F1 B1
  const double *times[] = {first, second};
  bl_machine_t machine = {.times = times};
  bl_simulation_t result = simulate(schedule, &BL_COSTS_UNIT, &machine);
  // stage 1: F0 [1, 6], B0 [6, 12], F1 [12, 19], B1 [19, 27]; stage 0: B0 [12, 15], B1 [27, 31]
  assert_time(result.t_end, 31);
  assert_time(result.stalls[0][BL_STALL_GRADIENT], 9 + 12);
  assert_time(result.stalls[1][BL_STALL_ACTIVATION], 1);
  assert_time(result.stalls[1][BL_STALL_END], 4);
  bl_simulation_cleanup(&result);
  bl_schedule_destroy(schedule);
}

static void slow_paths_stall_those_who_need_them(void **state) {
  (void)state;
  bl_schedule_t *schedule = generate("1f1b", 4, 8);
  bl_balance_result_t balanced;
  bl_error_t err;
  assert_int_equal(bl_balance_cap(schedule, 3, true, BL_BALANCE_OVERLAP, &balanced, &err), BL_OK);
  double paths[] = {50, 0, 0, 0};
  bl_machine_t slow = {.paths = paths}, slow_cores = {.paths = paths, .cores = 4};
  bl_simulation_t result = simulate(balanced.schedule, &BL_COSTS_UNIT, &slow);
  bl_simulation_t same = simulate(balanced.schedule, &BL_COSTS_UNIT, &slow_cores);
  assert_time(same.t_end, result.t_end);
  assert_true(result.stalls[0][BL_STALL_LOAD] + result.stalls[0][BL_STALL_SLOT] > 50);
  assert_time(result.stalls[3][BL_STALL_LOAD] + result.stalls[3][BL_STALL_SLOT], 0);
  bl_simulation_cleanup(&same);
  bl_simulation_cleanup(&result);
  bl_balance_result_cleanup(&balanced);
  bl_schedule_destroy(schedule);
}

// The same balanced order with every path as long as the stage's own, then with one path alone slow: only its stage waits.
static void paths_differ_by_store(void **state) {
  (void)state;
  bl_schedule_t *schedule = generate("1f1b", 4, 8);
  bl_balance_result_t balanced;
  assert_int_equal(bl_balance_cap(schedule, 3, true, BL_BALANCE_OVERLAP, &balanced, NULL), BL_OK);
  double copies[16], paths[] = {0.25, 0.25, 0.25, 0.25};
  for (size_t i = 0; i < 16; i++) {
    copies[i] = 0.25;
  }
  const bl_machine_t by_stage = {.paths = paths}, by_pair = {.copies = copies};
  bl_simulation_t plain = simulate(balanced.schedule, &BL_COSTS_UNIT, &by_stage),
                  same = simulate(balanced.schedule, &BL_COSTS_UNIT, &by_pair);
  assert_time(same.t_end, plain.t_end);
  copies[0 * 4 + 2] = 50; // nobody goes there
  bl_simulation_t unused = simulate(balanced.schedule, &BL_COSTS_UNIT, &by_pair);
  assert_time(unused.t_end, plain.t_end);
  copies[0 * 4 + 3] = 50;
  bl_simulation_t slow = simulate(balanced.schedule, &BL_COSTS_UNIT, &by_pair);
  assert_true(slow.stalls[0][BL_STALL_LOAD] + slow.stalls[0][BL_STALL_SLOT] > 50);
  copies[5] = NAN;
  bl_simulation_t none;
  bl_error_t err;
  assert_int_equal(bl_simulate_on(balanced.schedule, &BL_COSTS_UNIT, &by_pair, &none, &err), BL_INVALID);
  assert_string_equal(err.text, "an evict or load of stage 1 at store 1: must be a number from 0 upwards, is nan");
  bl_simulation_cleanup(&slow);
  bl_simulation_cleanup(&unused);
  bl_simulation_cleanup(&same);
  bl_simulation_cleanup(&plain);
  bl_balance_result_cleanup(&balanced);
  bl_schedule_destroy(schedule);
}

// Of gpipe on three stages, the first two park all but two blocks, at one store or at two.
static bl_schedule_t *parked(uint16_t second_store) {
  bl_schedule_t *plain = generate("gpipe", 3, 6);
  const uint32_t own[] = {2, 2, 6}, lent[] = {6, 6, 12};
  const uint16_t reach[] = {2, second_store, BL_STORE_NONE};
  bl_balance_request_t request = {
      .mode = BL_BALANCE_FEWEST, .own = own, .lent = lent, .stores = 3, .reach = reach, .reach_count = 1};
  bl_balance_result_t result;
  bl_error_t err;
  if (bl_balance(plain, &request, &result, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  bl_schedule_t *schedule = result.schedule;
  result.schedule = NULL;
  bl_balance_result_cleanup(&result);
  bl_schedule_destroy(plain);
  return schedule;
}

static void copies_at_one_store_take_turns(void **state) {
  (void)state;
  const bl_costs_t costs = {.every = {2, 2, 2, 2}, .path = 3};
  const bl_machine_t apart = {0}, shared = {.shared_stores = true};
  bl_schedule_t *one = parked(2), *two = parked(0);
  bl_simulation_t free_one = simulate(one, &costs, &apart), turns = simulate(one, &costs, &shared),
                  free_two = simulate(two, &costs, &apart), same = simulate(two, &costs, &shared);
  assert_true(turns.t_end > free_one.t_end);
  assert_time(same.t_end, free_two.t_end); // nobody shares
  size_t copies = 0;
  for (size_t i = 0; i < one->lists[0].count; i++) {
    for (size_t k = 0; k < one->lists[1].count; k++) {
      if (!bl_op_type_computes((bl_op_type_t)one->lists[0].ops[i].type) &&
          !bl_op_type_computes((bl_op_type_t)one->lists[1].ops[k].type)) {
        bl_span_t a = turns.spans[0][i], b = turns.spans[1][k];
        assert_true(a.end <= b.start || b.end <= a.start);
        copies++;
      }
    }
  }
  assert_true(copies > 0);
  double waited = 0;
  for (uint32_t s = 0; s < 2; s++) {
    waited += turns.stalls[s][BL_STALL_LOAD] + turns.stalls[s][BL_STALL_SLOT];
    waited -= free_one.stalls[s][BL_STALL_LOAD] + free_one.stalls[s][BL_STALL_SLOT];
  }
  assert_true(waited > 0); // and it is said for what they stood still
  bl_simulation_t *all[] = {&free_one, &turns, &free_two, &same};
  for (size_t i = 0; i < 4; i++) {
    bl_simulation_cleanup(all[i]);
  }
  bl_schedule_destroy(one);
  bl_schedule_destroy(two);
}

// Parks at the host what exceeds so many slots.
static bl_balance_result_t parked_at_host(const bl_schedule_t *schedule, uint32_t slots, bl_balance_mode_t mode) {
  const bl_balance_cap_t cap = {.slots = slots, .mode = mode, .hosts = 1, .host_slots = 99, .host_only = true};
  bl_balance_result_t result;
  assert_int_equal(bl_balance_within(schedule, &cap, &result, NULL), BL_OK);
  return result;
}

// With a link each copies of stages run beside each other, with one for two they take turns, and a link that no other stage
// uses changes nothing.
static void copies_wait_for_those_of_their_link(void **state) {
  (void)state;
  bl_schedule_t *plain = generate("1f1b", 4, 8);
  bl_balance_result_t result = parked_at_host(plain, 2, BL_BALANCE_OVERLAP);
  const double hosts[] = {3, 3, 3, 3};
  const uint32_t each[] = {0, 1, 2, 3}, pairs[] = {0, 0, 1, 1}, wrong[] = {0, 4, 2, 3};
  const bl_costs_t costs = {.every = {2, 2, 2, 2}};
  double ends[4];
  for (int i = 0; i < 4; i++) { // nobody waits, each has a link, two have one, all have one
    const bl_machine_t machine = {.host_paths = hosts,
                                  .shared_stores = i > 0,
                                  .host_links = i == 1   ? each
                                                : i == 2 ? pairs
                                                         : NULL};
    bl_simulation_t simulation = simulate(result.schedule, &costs, &machine);
    ends[i] = simulation.t_end;
    bl_simulation_cleanup(&simulation);
  }
  assert_time(ends[1], ends[0]);
  assert_true(ends[2] > ends[1]);
  assert_time(ends[3], ends[2]); // stages 0 and 1 alone have blocks to park
  bl_simulation_t none;
  bl_error_t err;
  const bl_machine_t bad = {.host_paths = hosts, .shared_stores = true, .host_links = wrong};
  assert_int_equal(bl_simulate_on(result.schedule, &costs, &bad, &none, &err), BL_INVALID);
  assert_string_equal(err.text, "link of stage 1 to its host: must be below 4, is 4");
  bl_balance_result_cleanup(&result);
  bl_schedule_destroy(plain);
}

// Copies of all stages share the link to the host, one at a time, and take as long as that says, whatever peers take.
static void copies_at_the_host_take_turns(void **state) {
  (void)state;
  bl_schedule_t *plain = generate("1f1b", 4, 8);
  bl_balance_result_t result = parked_at_host(plain, 2, BL_BALANCE_OVERLAP);
  const double paths[] = {99, 99, 99, 99}, hosts[] = {2, 2, 2, 2}, fast[] = {0.01, 0.01, 0.01, 0.01};
  const bl_costs_t costs = {.every = {2, 2, 2, 2}};
  const bl_machine_t machine = {.paths = paths, .host_paths = hosts, .shared_stores = true},
                     wide = {.paths = paths, .host_paths = fast, .shared_stores = true};
  bl_simulation_t slow = simulate(result.schedule, &costs, &machine), quick = simulate(result.schedule, &costs, &wide),
                  unlimited = simulate(plain, &costs, &(bl_machine_t){0});
  double free_from = 0, used = 0;
  uint32_t count = 0;
  for (uint32_t s = 0; s < 4; s++) {
    for (size_t i = 0; i < result.schedule->lists[s].count; i++) {
      if (!bl_op_type_computes((bl_op_type_t)result.schedule->lists[s].ops[i].type)) {
        const bl_span_t span = slow.spans[s][i];
        assert_time(span.end - span.start, 2);
        free_from = span.end > free_from ? span.end : free_from;
        used += span.end - span.start;
        count++;
        for (uint32_t t = 0; t < s; t++) {
          for (size_t k = 0; k < result.schedule->lists[t].count; k++) {
            const bl_span_t other = slow.spans[t][k];
            const bool copies = !bl_op_type_computes((bl_op_type_t)result.schedule->lists[t].ops[k].type);
            assert_true(!copies || span.end <= other.start || other.end <= span.start);
          }
        }
      }
    }
  }
  assert_int_equal(count, 2 * (result.evictions[0] + result.evictions[1] + result.evictions[2]));
  assert_true(used <= free_from);
  assert_time(quick.t_end, unlimited.t_end); // copies that take next to nothing hide
  assert_true(slow.t_end > unlimited.t_end);
  bl_simulation_cleanup(&slow);
  bl_simulation_cleanup(&quick);
  bl_simulation_cleanup(&unlimited);
  bl_balance_result_cleanup(&result);
  bl_schedule_destroy(plain);
}

static void bad_times_are_named(void **state) {
  (void)state;
  bl_schedule_t *schedule = generate("1f1b", 2, 2);
  bl_simulation_t result;
  bl_error_t err;
  double boundaries[] = {0, -1};
  bl_machine_t machine = {.boundaries = boundaries};
  assert_int_equal(bl_simulate_on(schedule, &BL_COSTS_UNIT, &machine, &result, &err), BL_INVALID);
  assert_string_equal(err.text, "boundary after virtual stage 1: must be a number from 0 upwards, is -1");
  bl_schedule_destroy(schedule);
}

static void waits_of_stages_have_causes(void **state) {
  (void)state;
  assert_int_equal(bl_stall_cause_of("activation from stage 1"), BL_STALL_ACTIVATION);
  assert_int_equal(bl_stall_cause_of("gradient from stage 2"), BL_STALL_GRADIENT);
  assert_int_equal(bl_stall_cause_of("load"), BL_STALL_LOAD);
  assert_int_equal(bl_stall_cause_of("eviction"), BL_STALL_SLOT);
  assert_int_equal(bl_stall_cause_of("core"), BL_STALL_CORE);
  assert_int_equal(bl_stall_cause_of("gather of weights"), BL_STALL_GATHER);
  assert_int_equal(bl_stall_cause_of("reduction of gradients"), BL_STALL_REDUCTION);
  assert_int_equal(bl_stall_cause_of("tied gradient from stage 3"), BL_STALL_CAUSES);
}

static void planes_share_the_cores_of_their_machine(void **state) {
  (void)state;
  assert_int_equal(bl_machine_shared_cores(0, 4, 1), 0); // several machines: nothing is shared
  assert_int_equal(bl_machine_shared_cores(0, 4, 4), 0);
  assert_int_equal(bl_machine_shared_cores(2, 4, 1), 2);
  assert_int_equal(bl_machine_shared_cores(4, 4, 1), 0);
  assert_int_equal(bl_machine_shared_cores(4, 4, 2), 2); // of eight ranks
  assert_int_equal(bl_machine_shared_cores(3, 4, 4), 1);
  assert_int_equal(bl_machine_shared_cores(8, 4, 2), 0);
}

// Adds what a stage with one slot waits for it: until the last block has left, with the end of its copy, or its backward has
// ended; a load before an operation waits for it, too.
static double waits_for_the_slot(const bl_schedule_t *schedule, const bl_simulation_t *simulation, uint32_t stage,
                                 double tail) {
  const bl_op_list_t *list = &schedule->lists[stage];
  double free_at = 0, slot_at = 0, passed = 0, sum = 0;
  for (size_t i = 0; i < list->count; i++) {
    const bl_span_t span = simulation->spans[stage][i];
    const bl_op_t op = list->ops[i];
    if (op.type == BL_OP_E) {
      slot_at = span.end + tail;
    } else if (op.type == BL_OP_L) {
      passed = fmax(passed, slot_at);
    } else {
      const double until = op.type == BL_OP_F ? fmax(passed, slot_at) : passed;
      sum += fmax(0, until - free_at);
      assert_true(span.start >= until);
      free_at = span.end;
      slot_at = op.type == BL_OP_B ? span.end : slot_at;
    }
  }
  return sum;
}

// Every wait for a slot counts as such, also if the tensor comes even later. On a link that is slowed down a copy ends after
// its turn, which delays its own block and slot, but not the turn of the next one.
static void waits_come_one_after_the_other(void **state) {
  (void)state;
  bl_schedule_t *plain = generate("1f1b", 3, 6);
  bl_balance_result_t result = parked_at_host(plain, 1, BL_BALANCE_FEWEST);
  const double turns[] = {3, 3, 3}, longer[] = {3.5, 3.5, 3.5}, tails[] = {0.5, 0.5, 0.5}, bad[] = {0, -1, 0};
  const bl_costs_t costs = {.every = {2, 2, 2, 2}};
  const bl_machine_t machines[] = {
      {.host_paths = turns, .shared_stores = true},
      {.host_paths = turns, .host_tails = tails, .shared_stores = true},
      {.host_paths = longer, .shared_stores = true},
  };
  double ends[3];
  for (int i = 0; i < 3; i++) {
    bl_simulation_t simulation = simulate(result.schedule, &costs, &machines[i]);
    const double tail = i == 1 ? 0.5 : 0;
    ends[i] = simulation.t_end;
    assert_true(simulation.stalls[1][BL_STALL_ACTIVATION] > 0 && simulation.stalls[1][BL_STALL_SLOT] > 0);
    for (uint32_t s = 0; s < 3; s++) {
      assert_time(simulation.stalls[s][BL_STALL_SLOT], waits_for_the_slot(result.schedule, &simulation, s, tail));
      const bl_op_list_t *list = &result.schedule->lists[s];
      for (size_t k = 0; k < list->count; k++) {
        const bl_span_t span = simulation.spans[s][k];
        if (list->ops[k].type == BL_OP_L) { // its backward follows
          assert_time(span.end - span.start, i == 2 ? 3.5 : 3);
          assert_true(simulation.spans[s][k + 1].start >= span.end + tail);
        }
      }
    }
    bl_simulation_cleanup(&simulation);
  }
  assert_true(ends[0] < ends[1] && ends[1] < ends[2]);
  bl_simulation_t none;
  bl_error_t err;
  const bl_machine_t wrong = {.host_paths = turns, .host_tails = bad, .shared_stores = true};
  assert_int_equal(bl_simulate_on(result.schedule, &costs, &wrong, &none, &err), BL_INVALID);
  assert_string_equal(err.text,
                      "end of an evict or load of stage 1 at the host: must be a number from 0 upwards, is -1");
  bl_balance_result_cleanup(&result);
  bl_schedule_destroy(plain);
}

// Evicts directly after an operation, and those after a load that does not wait, keep its core.
static void a_core_is_kept_for_evicts(void **state) {
  (void)state;
  bl_schedule_t *plain = generate("1f1b", 4, 8);
  bl_balance_result_t result = parked_at_host(plain, 2, BL_BALANCE_OVERLAP);
  const double turns[] = {0.125, 0.125, 0.125, 0.125}, calls[] = {0.5, 0.25, 0.5, 0.25};
  const bl_costs_t costs = {.every = {2, 2, 2, 2}};
  const bl_machine_t machine = {.cores = 1, .host_paths = turns, .shared_stores = true, .evict_calls = calls};
  bl_simulation_t simulation = simulate(result.schedule, &costs, &machine);
  uint32_t kept = 0;
  for (uint32_t s = 0; s < 4; s++) {
    const bl_op_list_t *list = &result.schedule->lists[s];
    for (size_t k = 0; k + 1 < list->count; k++) {
      if (!bl_op_type_computes((bl_op_type_t)list->ops[k].type) || list->ops[k + 1].type != BL_OP_E) {
        continue;
      }
      const bl_span_t held = {simulation.spans[s][k].start, simulation.spans[s][k].end + calls[s]};
      for (uint32_t other = 0; other < 4; other++) {
        for (size_t i = 0; i < result.schedule->lists[other].count; i++) {
          const bl_span_t span = simulation.spans[other][i];
          assert_true(other == s || !bl_op_type_computes((bl_op_type_t)result.schedule->lists[other].ops[i].type) ||
                      span.end <= held.start + 1e-9 || span.start >= held.end - 1e-9);
        }
      }
      kept++;
    }
  }
  assert_true(kept > 4);
  bl_simulation_cleanup(&simulation);
  bl_balance_result_cleanup(&result);
  bl_schedule_destroy(plain);
}

// An evict takes the compute thread for its call, which counts as busy. Then the copy begins. All of a stage's time is
// busy or has a cause.
static void an_evict_takes_the_compute_thread(void **state) {
  (void)state;
  bl_schedule_t *plain = generate("1f1b", 3, 6);
  bl_balance_result_t result = parked_at_host(plain, 1, BL_BALANCE_FEWEST);
  const double turns[] = {0.5, 0.5, 0.5}, calls[] = {0.25, 0.5, 0}, bad[] = {0, INFINITY, 0};
  const bl_costs_t costs = {.every = {2, 2, 2, 2}};
  const bl_machine_t idle = {.host_paths = turns, .shared_stores = true},
                     calling = {.host_paths = turns, .shared_stores = true, .evict_calls = calls};
  bl_simulation_t without = simulate(result.schedule, &costs, &idle),
                  with = simulate(result.schedule, &costs, &calling);
  assert_true(with.t_end > without.t_end);
  for (uint32_t s = 0; s < 3; s++) {
    const bl_op_list_t *list = &result.schedule->lists[s];
    uint32_t evicts = 0;
    double sum = with.busy[s];
    for (size_t k = 0; k < list->count; k++) {
      if (list->ops[k].type != BL_OP_E) {
        continue;
      }
      evicts++;
      assert_time(with.asked[s][k], with.spans[s][k - 1].end + calls[s]); // directly after its F
      assert_true(with.spans[s][k].start >= with.asked[s][k]);
      assert_time(with.spans[s][k].end - with.spans[s][k].start, turns[s]);
    }
    assert_true(evicts > 0 || s == 2);
    assert_time(with.busy[s], without.busy[s] + evicts * calls[s]);
    for (int cause = 0; cause < BL_STALL_CAUSES; cause++) {
      sum += with.stalls[s][cause];
    }
    assert_time(sum, with.t_end);
  }
  bl_simulation_cleanup(&with);
  bl_simulation_cleanup(&without);
  bl_error_t err;
  const bl_machine_t wrong = {.host_paths = turns, .evict_calls = bad};
  assert_int_equal(bl_simulate_on(result.schedule, &costs, &wrong, &with, &err), BL_INVALID);
  assert_string_equal(err.text, "call of an evict of stage 1: must be a number from 0 upwards, is inf");
  bl_balance_result_cleanup(&result);
  bl_schedule_destroy(plain);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_core_runs_everything_after_each_other),
      cmocka_unit_test(as_many_cores_as_stages_change_nothing),
      cmocka_unit_test(fewer_cores_lie_between),
      cmocka_unit_test(a_core_changes_hands),
      cmocka_unit_test(replicas_gather_and_add_up),
      cmocka_unit_test(a_gradient_leaves_after_its_input_part),
      cmocka_unit_test(boundaries_are_those_of_each_neighbourhood),
      cmocka_unit_test(recorded_times_take_the_place_of_costs),
      cmocka_unit_test(slow_paths_stall_those_who_need_them),
      cmocka_unit_test(paths_differ_by_store),
      cmocka_unit_test(copies_at_one_store_take_turns),
      cmocka_unit_test(copies_at_the_host_take_turns),
      cmocka_unit_test(copies_wait_for_those_of_their_link),
      cmocka_unit_test(waits_come_one_after_the_other),
      cmocka_unit_test(an_evict_takes_the_compute_thread),
      cmocka_unit_test(a_core_is_kept_for_evicts),
      cmocka_unit_test(bad_times_are_named),
      cmocka_unit_test(no_step_is_below_its_bound),
      cmocka_unit_test(waits_of_stages_have_causes),
      cmocka_unit_test(planes_share_the_cores_of_their_machine),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
