// SPDX-License-Identifier: Apache-2.0
// Verifies the timing of schedules against reference numbers of public generators, made by an independent evaluator
// (reference.csv), and transfers, bounds and per-stage costs by hand-computed cases.
#include "simulate/simulate.h"

#include "reference.h"
#include "schedule/balance/balance.h"
#include "schedule/generated.h"
#include "schedule/ir/validate.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void assert_near(double value, double expected, const char *what) {
  if (!(fabs(value - expected) <= 1e-9 * fmax(1, fabs(expected)))) {
    fail_msg("%s: %.12g, expected %.12g", what, value, expected);
  }
}

// Published orders that are fixed: end time and every peak are equal.
static void fixed_orders_equal_their_reference(void **state) {
  (void)state;
  static const struct {
    const char *record, *ours;
    uint32_t slices;
  } names[] = {{"gpipe", "gpipe", 0},
               {"looped_bfs_v2", "gpipe", 0},
               {"1f1b", "1f1b", 0},
               {"interleaved_v2", "interleaved", 0},
               {"interleaved_v4", "interleaved", 0},
               {"seq1f1b_k2", "seq1f1b", 2},
               {"seq1f1b_k4", "seq1f1b", 4},
               {"dualpipe", "dualpipe", 0},
               {"dualpipe_v", "dualpipe-v", 0}};
  reference_t records[REFERENCE_MAX];
  size_t count = reference_read(records), compared = 0;
  for (size_t r = 0; r < count; r++) {
    for (size_t n = 0; n < sizeof names / sizeof names[0]; n++) {
      const reference_t *record = &records[r];
      if (strcmp(record->name, names[n].record) != 0) {
        continue;
      }
      bl_costs_t costs = reference_costs(record);
      bool counts_chunks = names[n].slices == 0 && strcmp(names[n].ours, "dualpipe") != 0;
      bl_schedule_request_t request = {.name = names[n].ours,
                                       .stages = record->p,
                                       .micro_batches = record->m,
                                       .chunks = counts_chunks ? record->v : 0,
                                       .slices = names[n].slices,
                                       .costs = &costs};
      bl_schedule_t *schedule = generate_request(&request);
      bl_simulation_t result;
      assert_int_equal(bl_simulate(schedule, &costs, &result, NULL), BL_OK);
      assert_near(result.t_end, record->t_end, record->name);
      for (uint32_t s = 0; s < record->p; s++) {
        assert_near(result.peak[s], record->peak[s], record->name);
      }
      assert_true(result.lower_bound <= result.t_end + 1e-9);
      bl_simulation_cleanup(&result);
      bl_schedule_destroy(schedule);
      compared++;
    }
  }
  assert_in_range(compared, 168, REFERENCE_MAX);
}

static void one_f_one_b_meets_its_lower_bound(void **state) {
  (void)state;
  bl_schedule_request_t request = {.name = "1f1b", .stages = 4, .micro_batches = 8};
  bl_schedule_t *schedule = generate_request(&request);
  bl_costs_t costs = BL_COSTS_UNIT;
  bl_simulation_t result;
  assert_int_equal(bl_simulate(schedule, &costs, &result, NULL), BL_OK);
  assert_near(result.t_end, 33, "t_end");       // (m + p - 1) (F + B + W)
  assert_near(result.lower_bound, 33, "bound"); // stage 3: 3 F before, 24 of work, 3 fused backwards after
  assert_near(result.bubble_total, 9. / 33, "bubble");
  assert_near(result.max_span, 33, "span");
  assert_near(result.busy[2], 24, "busy");
  assert_near(result.spans[3][0].start, 3, "first F of stage 3");
  bl_simulation_cleanup(&result);
  bl_schedule_destroy(schedule);
}

static void stages_may_cost_differently(void **state) {
  (void)state;
  const bl_chunk_costs_t chunks[] = {{1, 1, 1, 1}, {2, 3, 1, 2}};
  bl_costs_t costs = {.chunks = chunks, .boundary = 0.5};
  bl_schedule_request_t request = {.name = "gpipe", .stages = 2, .micro_batches = 2, .costs = &costs};
  bl_schedule_t *schedule = generate_request(&request);
  bl_simulation_t result;
  assert_int_equal(bl_simulate(schedule, &costs, &result, NULL), BL_OK);
  // F: 0-1, 1-2 | 1.5-3.5, 3.5-5.5; B: 5.5-9.5, 9.5-13.5 | 10-12, 14-16
  assert_near(result.t_end, 16, "t_end");
  assert_near(result.lower_bound, 1.5 + 12 + 2.5, "bound");
  bl_simulation_cleanup(&result);
  bl_schedule_destroy(schedule);
}

// Three micro-batches on one stage. A copy takes 2.5.
static bl_simulation_t simulate_cells(const char *const *cells, size_t count, bl_transfer_mode_t mode) {
  bl_schedule_t *schedule;
  assert_int_equal(bl_schedule_create("test", BL_PLACEMENT_LOOPED, 1, 1, 3, &schedule, NULL), BL_OK);
  schedule->transfers = mode;
  for (size_t i = 0; i < count; i++) {
    bl_op_t op;
    assert_true(bl_op_parse(cells[i], strlen(cells[i]), &op));
    assert_int_equal(bl_schedule_append(schedule, 0, op), BL_OK);
  }
  bl_costs_t costs = BL_COSTS_UNIT;
  costs.path = 2.5;
  bl_simulation_t result;
  assert_int_equal(bl_schedule_validate(schedule, NULL, NULL), BL_OK);
  assert_int_equal(bl_simulate(schedule, &costs, &result, NULL), BL_OK);
  bl_schedule_destroy(schedule);
  return result;
}

// The first block is parked while the others run.
static void check_transfers(bl_transfer_mode_t mode, double t_end, uint32_t slots) {
  static const char *const cells[] = {"0F0", "0E0", "0F1", "0B1", "0L0", "0F2", "0B2", "0B0"};
  bl_simulation_t result = simulate_cells(cells, sizeof cells / sizeof cells[0], mode);
  assert_near(result.t_end, t_end, "t_end");
  assert_int_equal(result.peak_slots[0], slots);
  bl_simulation_cleanup(&result);
}

static void transfers_delay_what_needs_them(void **state) {
  (void)state;
  // Serial: F0 0-1, E 1-3.5, F1 3.5-4.5, B1 -6.5, L 6.5-9 beside F2 and B2 (6.5-9.5), B0 -11.5.
  check_transfers(BL_TRANSFER_SERIAL, 11.5, 2);
  // Overlap: F1, B1 1-4 beside E 1-3.5; L 4-6.5 beside F2, B2 4-7; B0 7-9.
  check_transfers(BL_TRANSFER_OVERLAP, 9, 2);
}

// F0 0-1, F1 1-2 beside E0 1-3.5, whose slot F2 3.5-4.5 takes beside E1 3.5-6, whose slot L0 6-8.5 takes; B0 -10.5, L1 -13,
// B1 -15, B2 -17.
static void a_late_load_begins_when_its_slot_is_free(void **state) {
  (void)state;
  static const char *const cells[] = {"0F0", "0E0", "0F1", "0E1", "0F2", "0L0", "0B0", "0L1", "0B1", "0B2"};
  bl_simulation_t result = simulate_cells(cells, sizeof cells / sizeof cells[0], BL_TRANSFER_OVERLAP);
  assert_int_equal(result.peak_slots[0], 2);
  assert_near(result.spans[0][5].start, 6, "L0");
  assert_near(result.spans[0][6].start, 8.5, "B0");
  assert_near(result.t_end, 17, "t_end");
  assert_near(result.stalls[0][BL_STALL_SLOT], 1.5 + 1.5, "slot"); // of F2, and of L0, which B0 stands behind
  assert_near(result.stalls[0][BL_STALL_LOAD], 2.5 + 2.5, "load");
  assert_int_equal(result.causes[0][6], BL_STALL_LOAD);
  bl_simulation_cleanup(&result);
}

// 1f1b in two slots a stage: with copies as long as a forward the step takes what it takes without evictions, as those whose
// loads are late wait for gradients there.
static void late_loads_of_1f1b_cost_nothing(void **state) {
  (void)state;
  for (uint32_t p = 3; p <= 8; p++) {
    bl_schedule_request_t request = {.name = "1f1b", .stages = p, .micro_batches = 2 * p};
    bl_schedule_t *schedule = generate_request(&request);
    uint32_t own[8], lent[8], late = 0;
    uint16_t reach[8];
    for (uint32_t s = 0; s < p; s++) {
      own[s] = 2;
      lent[s] = 2 * p;
      reach[s] = (uint16_t)((s + 1) % p);
    }
    const bl_balance_request_t wanted = {.own = own, .lent = lent, .stores = p, .reach = reach, .reach_count = 1};
    bl_balance_result_t balanced;
    bl_simulation_t plain, result;
    bl_error_t err;
    bl_costs_t costs = BL_COSTS_UNIT;
    costs.path = 1;
    if (bl_balance(schedule, &wanted, &balanced, &err) != BL_OK) {
      fail_msg("p = %u: %s", p, err.text);
    }
    assert_int_equal(bl_simulate(schedule, &costs, &plain, NULL), BL_OK);
    assert_int_equal(bl_simulate(balanced.schedule, &costs, &result, NULL), BL_OK);
    assert_near(result.t_end, plain.t_end, "t_end");
    for (uint32_t s = 0; s < p; s++) {
      late += balanced.late[s];
      assert_in_range(result.peak_slots[s], 1, 2);
    }
    assert_true(late > 0);
    bl_simulation_cleanup(&plain);
    bl_simulation_cleanup(&result);
    bl_balance_result_cleanup(&balanced);
    bl_schedule_destroy(schedule);
  }
}

static void bad_costs_are_refused(void **state) {
  (void)state;
  bl_schedule_request_t request = {.name = "1f1b", .stages = 2, .micro_batches = 2};
  bl_schedule_t *schedule = generate_request(&request);
  bl_costs_t costs = BL_COSTS_UNIT;
  costs.boundary = NAN;
  bl_simulation_t result;
  bl_error_t err;
  assert_int_equal(bl_simulate(schedule, &costs, &result, &err), BL_INVALID);
  assert_non_null(strstr(err.text, "boundary"));
  assert_int_equal(bl_costs_parse("1,2,x,0", &costs, &err), BL_INVALID);
  assert_non_null(strstr(err.text, "W must be a number"));
  assert_int_equal(bl_costs_parse("1,2,3,-1", &costs, &err), BL_INVALID);
  assert_int_equal(bl_costs_parse("10,14,6,2", &costs, &err), BL_OK);
  assert_near(costs.every.input, 14, "input");
  bl_schedule_destroy(schedule);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(fixed_orders_equal_their_reference),
      cmocka_unit_test(one_f_one_b_meets_its_lower_bound),
      cmocka_unit_test(stages_may_cost_differently),
      cmocka_unit_test(transfers_delay_what_needs_them),
      cmocka_unit_test(a_late_load_begins_when_its_slot_is_free),
      cmocka_unit_test(late_loads_of_1f1b_cost_nothing),
      cmocka_unit_test(bad_costs_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
