// SPDX-License-Identifier: Apache-2.0
// Verifies orders that are searched for devices whose blocks leave to memory of their host.
#include "schedule/balance/balance.h"
#include "schedule/generate.h"
#include "simulate/simulate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

// Where a host takes what leaves, all stages may be heavier than the limit: within 4 slots a device a V ends earlier than
// with those of pairs. Copies longer than a forward do not hide: then it is the order for none.
static void orders_made_for_a_host_end_earlier(void **state) {
  (void)state;
  double ends[3];
  for (int i = 0; i < 3; i++) { // for pairs, for a host, for a slow host
    const bl_costs_t costs = {.every = {1, 1, 1, 1}, .path = i == 2 ? 1.5 : 0.5};
    const bl_schedule_request_t request = {.name = "zb-v",
                                           .stages = 8,
                                           .micro_batches = 16,
                                           .memory = 4,
                                           .costs = &costs,
                                           .keep_placement = true,
                                           .pooled = true,
                                           .hosted = i > 0,
                                           .effort = 0.05};
    const bl_balance_cap_t cap = {.slots = 8, .hosts = 1, .host_slots = 999, .host_only = true};
    bl_schedule_t *schedule;
    bl_balance_result_t result;
    bl_simulation_t simulation;
    bl_error_t err;
    assert_int_equal(bl_schedule_generate(&request, &schedule, &err), BL_OK);
    if (bl_balance_within(schedule, &cap, &result, &err) != BL_OK) {
      fail_msg("%s", err.text);
    }
    assert_int_equal(bl_simulate(result.schedule, &costs, &simulation, &err), BL_OK);
    ends[i] = simulation.t_end;
    print_message("ends at %g\n", ends[i]);
    bl_simulation_cleanup(&simulation);
    bl_balance_result_cleanup(&result);
    bl_schedule_destroy(schedule);
  }
  assert_true(ends[1] < 0.95 * ends[0]);
  assert_true(ends[2] <= ends[0]);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(orders_made_for_a_host_end_earlier)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
