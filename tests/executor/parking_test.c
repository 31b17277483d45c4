// SPDX-License-Identifier: Apache-2.0
// Verifies evictions and loads: a balanced 1F1B on 4, 6 and 8 stages, in both transfer
// modes, trains with the bits of the unbalanced one in at most ceil((p + 2) / 2) slots a stage, evicting exactly what
// its plan says; so do other schedules in two slots a stage, where backwards wait for late loads, and plans that park
// some blocks and make others again; whatever does not come in time, is lost, refused or flipped costs recomputation
// and no bit; an input that changed is found; an attempt that is given up in the middle leaves no trace. The seed of
// the faults is printed; BALLAST_TEST_SEED sets it.
#include "executor/rig.h"
#include "instrumented.h"
#include "schedule/generate.h"
#include "seed.h"
#include "sys/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MICRO_BATCHES 16
#define PATIENT_NS    (60ull * BL_NS_PER_S)

static uint64_t seed;

static rig_setting_t plain(uint32_t stages) {
  return (rig_setting_t){
      .stages = stages, .schedule = "1f1b", .attention = "naive", .recompute = "none", .micro_batches = MICRO_BATCHES};
}

// What a plain setting of that many stages and that attention makes; trained once.
static rig_outcome_t unbalanced(rig_setting_t setting) {
  static struct {
    uint32_t stages;
    const char *attention;
    rig_outcome_t outcome;
  } known[8];
  size_t i = 0;
  for (; known[i].stages != 0; i++) {
    if (known[i].stages == setting.stages && strcmp(known[i].attention, setting.attention) == 0) {
      return known[i].outcome;
    }
    assert_true(i + 1 < sizeof known / sizeof known[0]);
  }
  known[i].outcome = rig_train(setting);
  known[i].attention = setting.attention;
  known[i].stages = setting.stages;
  return known[i].outcome;
}

// BPipe: pairs (s, p - 1 - s), cap ceil((p + 2) / 2).
static rig_setting_t balance(uint32_t stages, bl_balance_mode_t mode, bl_balance_result_t *result) {
  bl_schedule_request_t request = {.name = "1f1b", .stages = stages, .micro_batches = MICRO_BATCHES};
  bl_schedule_t *schedule;
  bl_error_t err = {0};
  uint32_t cap = bl_balance_bpipe_cap(stages);
  if (bl_schedule_generate(&request, &schedule, &err) != BL_OK ||
      bl_balance_cap(schedule, cap, true, mode, result, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  bl_schedule_destroy(schedule);
  rig_setting_t setting = plain(stages);
  setting.balanced = result;
  setting.cap = cap;
  setting.parking = (arena_parking_options_t){.seed = seed, .timeout_ns = PATIENT_NS};
  return setting;
}

static arena_parking_counters_t sum_parking(const rig_outcome_t *outcome) {
  arena_parking_counters_t sum = {0};
  for (int s = 0; s < RIG_STAGES_MAX; s++) {
    const arena_parking_counters_t *one = &outcome->parking[s];
    assert_int_equal(one->torn, 0);
    assert_int_equal(one->overflow, 0);
    sum.refused += one->refused;
    sum.failed += one->failed;
    sum.lost += one->lost;
    sum.flipped += one->flipped;
    sum.found += one->found;
    sum.given_up += one->given_up;
  }
  return sum;
}

static bl_stage_counters_t sum_counters(const rig_outcome_t *outcome) {
  bl_stage_counters_t sum = {0};
  for (int s = 0; s < RIG_STAGES_MAX; s++) {
    sum.evicted += outcome->counters[s].evicted;
    sum.loaded += outcome->counters[s].loaded;
    sum.lost += outcome->counters[s].lost;
    sum.dropped += outcome->counters[s].dropped;
    sum.recomputed += outcome->counters[s].recomputed;
  }
  return sum;
}

static void keep_bits(uint32_t stages) {
  rig_outcome_t expected = unbalanced(plain(stages));
  assert_true(expected.losses[RIG_STEPS - 1] < expected.losses[0]);
  for (int mode = BL_BALANCE_OVERLAP; mode <= BL_BALANCE_FEWEST; mode++) {
    bl_balance_result_t result;
    rig_setting_t setting = balance(stages, (bl_balance_mode_t)mode, &result);
    setting.parking.delay_ns = BL_NS_PER_MS;
    rig_outcome_t found = rig_train(setting);
    rig_expect_same(&setting, &expected, &found);
    uint32_t all = 0;
    for (uint32_t s = 0; s < stages; s++) {
      assert_in_range(found.peak_slots[s], 1, setting.cap);
      assert_int_equal(found.counters[s].evicted, result.evictions[s] * RIG_STEPS);
      assert_int_equal(found.counters[s].loaded, result.evictions[s] * RIG_STEPS);
      all += result.evictions[s];
    }
    assert_true(all > 0 && expected.peak_slots[0] > setting.cap);
    assert_int_equal(sum_counters(&found).recomputed, 0);
    (void)sum_parking(&found);
    bl_balance_result_cleanup(&result);
  }
}

static void four_stages(void **state) {
  (void)state;
  keep_bits(4);
}

static void six_stages(void **state) {
  (void)state;
  if (INSTRUMENTED) {
    skip(); // four are as many there
  }
  keep_bits(6);
}

static void eight_stages(void **state) {
  (void)state;
  if (INSTRUMENTED) {
    skip();
  }
  keep_bits(8);
}

// Two slots a stage and room for all that leaves: the load at the tip of the V waits for a slot that an eviction still
// holds, and its backward for the load. A load that is lost there is made again.
static void late_loads_keep_bits(const char *name, uint32_t stages, double trouble) {
  rig_setting_t setting = plain(stages);
  setting.schedule = name;
  rig_outcome_t expected = rig_train(setting);
  bl_schedule_request_t request = {.name = name, .stages = stages, .micro_batches = MICRO_BATCHES};
  bl_schedule_t *schedule;
  bl_balance_result_t result;
  bl_error_t err = {0};
  uint32_t own[RIG_STAGES_MAX], lent[RIG_STAGES_MAX], late = 0;
  uint16_t reach[RIG_STAGES_MAX];
  for (uint32_t s = 0; s < stages; s++) {
    own[s] = 2;
    lent[s] = 2 * MICRO_BATCHES;
    reach[s] = (uint16_t)((s + 1) % stages);
  }
  const bl_balance_request_t wanted = {.own = own, .lent = lent, .stores = stages, .reach = reach, .reach_count = 1};
  if (bl_schedule_generate(&request, &schedule, &err) != BL_OK ||
      bl_balance(schedule, &wanted, &result, &err) != BL_OK) {
    fail_msg("%s on %u stages: %s", name, stages, err.text);
  }
  setting.balanced = &result;
  setting.cap = 2;
  setting.parking = (arena_parking_options_t){
      .seed = seed, .timeout_ns = PATIENT_NS, .delay_ns = BL_NS_PER_MS, .fail = trouble, .lose = trouble};
  rig_outcome_t found = rig_train(setting);
  rig_expect_same(&setting, &expected, &found);
  for (uint32_t s = 0; s < stages; s++) {
    const bl_stage_counters_t *counters = &found.counters[s];
    late += result.late[s];
    assert_in_range(found.peak_slots[s], 1, 2);
    assert_int_equal(counters->evicted + counters->dropped, result.evictions[s] * RIG_STEPS);
    assert_int_equal(counters->loaded + counters->recomputed, result.evictions[s] * RIG_STEPS);
  }
  assert_true(late > 0 && expected.peak_slots[0] > 2);
  const bl_stage_counters_t sum = sum_counters(&found);
  assert_true(trouble > 0 ? sum.lost > 0 : sum.recomputed == 0);
  (void)sum_parking(&found);
  bl_balance_result_cleanup(&result);
  bl_schedule_destroy(schedule);
}

static void late_loads(void **state) {
  (void)state;
  late_loads_keep_bits("1f1b", 4, 0);
  late_loads_keep_bits("gpipe", 4, 0);
  if (!INSTRUMENTED) {
    late_loads_keep_bits("1f1b", 8, 0);
    late_loads_keep_bits("interleaved", 4, 0);
    late_loads_keep_bits("v-min", 4, 0); // backwards in two parts; its search takes most of the time
  }
}

static void late_loads_with_losses(void **state) {
  (void)state;
  late_loads_keep_bits("1f1b", 4, 0.3);
  if (!INSTRUMENTED) {
    late_loads_keep_bits("eager-1f1b", 4, 0.3);
  }
}

// Some blocks parked and some made again by the plan, where stores have too little room for all: the same bits, as many
// of each as planned, and the slots of the plan.
static void mixed_plans_keep_bits(uint32_t stages, uint32_t slots, double trouble) {
  rig_outcome_t expected = unbalanced(plain(stages));
  bl_schedule_request_t request = {.name = "1f1b", .stages = stages, .micro_batches = MICRO_BATCHES};
  bl_schedule_t *schedule;
  bl_error_t err = {0};
  assert_int_equal(bl_schedule_generate(&request, &schedule, &err), BL_OK);
  for (int mode = BL_BALANCE_OVERLAP; mode <= BL_BALANCE_FEWEST; mode++) {
    const bl_balance_cap_t cap = {.slots = slots, .mode = (bl_balance_mode_t)mode, .copy = 0.25};
    bl_balance_result_t result;
    if (bl_balance_within(schedule, &cap, &result, &err) != BL_OK) {
      fail_msg("%s", err.text);
    }
    rig_setting_t setting = plain(stages);
    setting.balanced = &result;
    setting.cap = slots;
    setting.parking =
        (arena_parking_options_t){.seed = seed, .timeout_ns = PATIENT_NS, .fail = trouble, .lose = trouble};
    rig_outcome_t found = rig_train(setting);
    rig_expect_same(&setting, &expected, &found);
    uint32_t parked = 0, again = 0;
    for (uint32_t s = 0; s < stages; s++) {
      assert_in_range(found.peak_slots[s], 1, slots);
      parked += result.evictions[s];
      again += result.dropped[s];
    }
    bl_stage_counters_t sum = sum_counters(&found);
    assert_true(parked > 0 && again > 0);
    assert_int_equal(sum.evicted + sum.dropped, (parked + again) * RIG_STEPS);
    assert_true(trouble > 0 ? sum.lost > 0 : sum.recomputed == again * RIG_STEPS);
    (void)sum_parking(&found);
    bl_balance_result_cleanup(&result);
  }
  bl_schedule_destroy(schedule);
}

static void mixed_four_stages(void **state) {
  (void)state;
  mixed_plans_keep_bits(4, 2, 0);
}

static void mixed_six_stages_with_losses(void **state) {
  (void)state;
  if (INSTRUMENTED) {
    skip();
  }
  mixed_plans_keep_bits(6, 3, 0.3);
}

// One setting of both modes on 4 stages against the unbalanced run.
typedef struct {
  const char *attention;
  arena_parking_options_t parking; // probabilities and delay
  rig_fault_t fault;
} trouble_t;

static void endure(const trouble_t *trouble, bl_stage_counters_t *counters, arena_parking_counters_t *parking) {
  rig_setting_t reference = plain(4);
  reference.attention = trouble->attention;
  rig_outcome_t expected = unbalanced(reference);
  *counters = (bl_stage_counters_t){0};
  *parking = (arena_parking_counters_t){0};
  for (int mode = BL_BALANCE_OVERLAP; mode <= BL_BALANCE_FEWEST; mode++) {
    bl_balance_result_t result;
    rig_setting_t setting = balance(4, (bl_balance_mode_t)mode, &result);
    setting.attention = trouble->attention;
    setting.parking = trouble->parking;
    setting.parking.seed = seed + (uint64_t)mode;
    setting.parking.timeout_ns = trouble->parking.timeout_ns != 0 ? trouble->parking.timeout_ns : PATIENT_NS;
    setting.fault = trouble->fault;
    rig_outcome_t found = rig_train(setting);
    rig_expect_same(&setting, &expected, &found);
    bl_stage_counters_t sum = sum_counters(&found);
    arena_parking_counters_t seen = sum_parking(&found);
    if (trouble->fault == RIG_NONE && trouble->parking.timeout_ns == 0) { // every step counted once
      assert_int_equal(sum.dropped, seen.refused + seen.failed);
      assert_int_equal(sum.lost, seen.lost + seen.found);
    }
    counters->lost += sum.lost;
    counters->dropped += sum.dropped;
    counters->recomputed += sum.recomputed;
    counters->loaded += sum.loaded;
    parking->flipped += seen.flipped;
    parking->found += seen.found;
    parking->given_up += seen.given_up;
    bl_balance_result_cleanup(&result);
  }
  assert_int_equal(counters->recomputed, counters->lost + counters->dropped);
}

static void losses_and_delays(void **state) {
  (void)state;
  static const char *const attentions[] = {"naive", "flash"};
  for (int i = 0; i < 2; i++) {
    trouble_t trouble = {attentions[i],
                         {.delay_ns = 2ull * BL_NS_PER_MS, .refuse = 0.2, .fail = 0.2, .lose = 0.25, .flip = 0},
                         RIG_NONE};
    bl_stage_counters_t counters;
    arena_parking_counters_t parking;
    endure(&trouble, &counters, &parking);
    assert_true(counters.lost > 0 && counters.dropped > 0 && counters.loaded > 0);
  }
}

static void no_store_takes_blocks(void **state) {
  (void)state;
  trouble_t trouble = {"naive", {.refuse = 1}, RIG_NONE};
  bl_stage_counters_t counters;
  arena_parking_counters_t parking;
  endure(&trouble, &counters, &parking);
  assert_int_equal(counters.loaded + counters.lost, 0);
  assert_true(counters.dropped > 0);
}

static void too_late(void **state) {
  (void)state;
  trouble_t trouble = {"naive", {.delay_ns = 20ull * BL_NS_PER_MS, .timeout_ns = BL_NS_PER_MS}, RIG_NONE};
  bl_stage_counters_t counters;
  arena_parking_counters_t parking;
  endure(&trouble, &counters, &parking);
  assert_true(parking.given_up > 0 && counters.recomputed > 0);
}

static void flipped_bits(void **state) {
  (void)state;
  trouble_t trouble = {"naive", {.flip = 0.5}, RIG_NONE};
  bl_stage_counters_t counters;
  arena_parking_counters_t parking;
  endure(&trouble, &counters, &parking);
  assert_true(parking.flipped > 0);
  assert_int_equal(parking.found, parking.flipped);
  assert_int_equal(counters.lost, parking.flipped);
}

static void given_up_in_the_middle(void **state) {
  (void)state;
  trouble_t trouble = {"naive", {.delay_ns = 2ull * BL_NS_PER_MS, .lose = 0.2}, RIG_CANCEL_LOAD};
  bl_stage_counters_t counters;
  arena_parking_counters_t parking;
  endure(&trouble, &counters, &parking);
  assert_true(counters.loaded > 0);
}

static void changed_input(void **state) {
  (void)state;
  trouble_t trouble = {"naive", {.lose = 1}, RIG_FLIP_INPUT};
  bl_stage_counters_t counters;
  arena_parking_counters_t parking;
  endure(&trouble, &counters, &parking);
  assert_true(counters.lost > 0);
}

int main(void) {
  seed = test_seed(19);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(four_stages),
      cmocka_unit_test(six_stages),
      cmocka_unit_test(eight_stages),
      cmocka_unit_test(late_loads),
      cmocka_unit_test(late_loads_with_losses),
      cmocka_unit_test(losses_and_delays),
      cmocka_unit_test(no_store_takes_blocks),
      cmocka_unit_test(too_late),
      cmocka_unit_test(flipped_bits),
      cmocka_unit_test(given_up_in_the_middle),
      cmocka_unit_test(changed_input),
      cmocka_unit_test(mixed_four_stages),
      cmocka_unit_test(mixed_six_stages_with_losses),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
