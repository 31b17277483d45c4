// SPDX-License-Identifier: Apache-2.0
// Schedules timed on a machine, with what holds for every simulation checked.
#ifndef BALLAST_TESTS_SIMULATE_TIMED_H
#define BALLAST_TESTS_SIMULATE_TIMED_H

#include "schedule/generated.h"

#include "simulate/simulate.h"

#include <math.h>

// Of every stage, busy and stalled time add up to the whole.
static inline bl_simulation_t simulate(const bl_schedule_t *schedule, const bl_costs_t *costs,
                                       const bl_machine_t *machine) {
  bl_simulation_t result;
  bl_error_t err;
  if (bl_simulate_on(schedule, costs, machine, &result, &err) != BL_OK) {
    fail_msg("%s: %s", schedule->name, err.text);
  }
  for (uint32_t s = 0; s < result.stages; s++) {
    double sum = result.busy[s];
    for (int cause = 0; cause < BL_STALL_CAUSES; cause++) {
      assert_true(result.stalls[s][cause] >= 0);
      sum += result.stalls[s][cause];
    }
    if (fabs(sum - result.t_end) > 1e-9 * result.t_end) {
      fail_msg("%s, stage %u: busy and stalled %.12g, whole step %.12g", schedule->name, s, sum, result.t_end);
    }
  }
  return result;
}

static inline void assert_time(double value, double expected) {
  if (fabs(value - expected) > 1e-9) {
    fail_msg("is %.12g, expected %.12g", value, expected);
  }
}

#endif
