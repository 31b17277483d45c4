// SPDX-License-Identifier: Apache-2.0
// Verifies that more memory makes no order slower: not with the costs that it was searched with, and where these are all
// equal and tensors take no time, not on a machine where tensors take some.
#include "schedule/generate.h"
#include "simulate/simulate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static double end_of(const bl_schedule_t *schedule, const bl_costs_t *costs) {
  bl_simulation_t simulation;
  bl_error_t err;
  if (bl_simulate(schedule, costs, &simulation, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  const double end = simulation.t_end;
  bl_simulation_cleanup(&simulation);
  return end;
}

// Limits from the schedule's own one on, in blocks of one of `chunks` chunks.
static void check(const char *name, uint32_t chunks, uint32_t own, const bl_costs_t *costs, double boundary) {
  bl_costs_t with = *costs;
  double before[2] = {1e12, 1e12};
  with.boundary = boundary;
  for (uint32_t slots = own; slots <= 2 * own; slots += slots < own + 2 ? 1 : 3) {
    const bl_schedule_request_t request = {.name = name,
                                           .stages = 4,
                                           .micro_batches = 8,
                                           .memory = (double)slots / chunks,
                                           .costs = costs,
                                           .keep_placement = true,
                                           .effort = 0.2};
    bl_schedule_t *schedule;
    bl_error_t err;
    if (bl_schedule_generate(&request, &schedule, &err) != BL_OK) {
      fail_msg("%s", err.text);
    }
    const double ends[2] = {end_of(schedule, costs), end_of(schedule, &with)};
    bl_schedule_destroy(schedule);
    for (int i = 0; i < 2; i++) {
      if (ends[i] > before[i] * (1 + 1e-9)) {
        fail_msg("%s within %u slots: ends at %g with a boundary of %g, within fewer at %g", name, slots, ends[i],
                 i == 0 ? costs->boundary : boundary, before[i]);
      }
      before[i] = ends[i];
    }
  }
}

static void more_memory_is_no_slower(void **state) {
  (void)state;
  const bl_costs_t unit = BL_COSTS_UNIT, slow = {.every = {10, 14, 6, 10}, .boundary = 2};
  check("zb-v", 2, 8, &unit, 0.05);
  check("zb-v", 2, 8, &unit, 0.2);
  check("zb-h1", 1, 4, &unit, 0.05);
  check("zb-h2", 1, 8, &unit, 0.05);
  check("adaptive", 2, 8, &unit, 0.05);
  check("zb-v", 2, 8, &slow, 2);
  check("zb-h1", 1, 4, &slow, 2);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(more_memory_is_no_slower)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
