// SPDX-License-Identifier: Apache-2.0
// Verifies blocks that leave a device which is told ahead and come back to it (tests/late), with and without twins in
// memory of the host: the CPU waits for the device once in a step (twice where tied gradients are exchanged), however
// many blocks are parked; losses have the bits of a run that parks nothing, with blocks that are late, lost and refused,
// too. A block that comes back changed is found by the device at the end of its step, which is run again, or by the CPU
// in the twin, and recomputed.
#include "executor/rig.h"
#include "schedule/generate.h"
#include "sys/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#define LATE          BALLAST_BINARY_DIR "/tests/late"
#define STAGES        4
#define MICRO_BATCHES 8
#define PATIENT_NS    (60ull * BL_NS_PER_S)

static rig_setting_t plain(void) {
  return (rig_setting_t){.stages = STAGES,
                         .schedule = "1f1b",
                         .path = BL_PATH_SHM,
                         .attention = "flash",
                         .recompute = "none",
                         .micro_batches = MICRO_BATCHES,
                         .pipeline = ", device: cuda",
                         .more = "balance: {data_path: shm}\n"};
}

// The step of a run without parking, and of one that parks by BPipe.
static void train(arena_parking_options_t parking, rig_fault_t fault, bool parks_all, rig_outcome_t *outcome) {
  bl_schedule_request_t request = {.name = "1f1b", .stages = STAGES, .micro_batches = MICRO_BATCHES};
  bl_schedule_t *schedule;
  bl_balance_result_t balanced;
  bl_error_t err = {0};
  const uint32_t cap = bl_balance_bpipe_cap(STAGES);
  if (bl_schedule_generate(&request, &schedule, &err) != BL_OK ||
      bl_balance_cap(schedule, cap, true, BL_BALANCE_FEWEST, &balanced, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  bl_schedule_destroy(schedule);
  const rig_setting_t reference = plain();
  const rig_outcome_t expected = rig_train(reference);
  rig_setting_t setting = plain();
  setting.balanced = &balanced;
  setting.cap = cap;
  setting.fault = fault;
  setting.parking = parking;
  setting.parking.timeout_ns = PATIENT_NS;
  *outcome = rig_train(setting);
  rig_expect_same(&setting, &expected, outcome);
  uint64_t evicted = 0;
  for (int s = 0; s < STAGES; s++) {
    assert_int_equal(expected.drains[s], s == 0 || s == STAGES - 1 ? 2 : 1); // before the vote, and tied gradients
    evicted += outcome->counters[s].evicted;
    if (parks_all) { // making a block again may wait
      assert_int_equal(outcome->drains[s], expected.drains[s]);
      assert_int_equal(outcome->counters[s].recomputed, 0);
    }
  }
  assert_true(evicted > 0);
  bl_balance_result_cleanup(&balanced);
}

static void one_wait_a_step(void **state) {
  (void)state;
  rig_outcome_t outcome;
  for (int twins = 0; twins < 2; twins++) {
    train((arena_parking_options_t){.delay_ns = BL_NS_PER_MS, .twins = twins}, RIG_NONE, true, &outcome);
  }
}

static void late_lost_and_refused(void **state) {
  (void)state;
  rig_outcome_t outcome;
  for (int twins = 0; twins < 2; twins++) {
    const arena_parking_options_t parking = {
        .seed = 5, .delay_ns = BL_NS_PER_MS, .lose = 0.3, .refuse = 0.2, .fail = 0.2, .twins = twins};
    train(parking, RIG_NONE, false, &outcome);
    assert_true(outcome.counters[0].recomputed > 0);
  }
}

static void changed_blocks_are_found(void **state) {
  (void)state;
  rig_outcome_t outcome;
  train((arena_parking_options_t){.flip = 1, .flip_attempt = 2}, RIG_CHANGED, true, &outcome);
  assert_true(outcome.parking[0].flipped > 0);
  train((arena_parking_options_t){.flip = 0.5, .twins = true}, RIG_NONE, false, &outcome);
  assert_true(outcome.parking[0].found > 0 && outcome.counters[0].recomputed > 0);
}

int main(void) {
  if (setenv("BALLAST_MODULES", LATE, 1) != 0 || setenv("LATE_DEVICES", "1", 1) != 0) {
    return 1;
  }
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_wait_a_step),
      cmocka_unit_test(late_lost_and_refused),
      cmocka_unit_test(changed_blocks_are_found),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
