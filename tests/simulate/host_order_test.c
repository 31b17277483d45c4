// SPDX-License-Identifier: Apache-2.0
// Verifies orders that are searched for devices whose blocks leave to memory of their host.
#include "simulate/host_order.h"

#include "same_order.h"
#include "schedule/generate.h"
#include "simulate/simulate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

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

static bl_schedule_t *made(bool hosted) {
  const bl_costs_t costs = {.every = {1, 1, 1, 1}, .path = 0.5};
  const bl_schedule_request_t request = {.name = "zb-v",
                                         .stages = 4,
                                         .micro_batches = 8,
                                         .memory = 2,
                                         .costs = &costs,
                                         .keep_placement = true,
                                         .pooled = hosted,
                                         .hosted = hosted,
                                         .effort = 0.2};
  bl_schedule_t *schedule;
  bl_error_t err;
  if (bl_schedule_generate(&request, &schedule, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  return schedule;
}

// The end of what balancing leaves, with copies of this length.
static double end_of(const bl_schedule_t *schedule, const bl_costs_t *costs) {
  bl_simulation_t simulation;
  bl_error_t err;
  assert_int_equal(bl_simulate(schedule, costs, &simulation, &err), BL_OK);
  const double end = simulation.t_end;
  bl_simulation_cleanup(&simulation);
  return end;
}

// Of both orders the one is taken that ends earlier with its copies, and the one for none where the host has too little
// memory, where both end at once, and where there is no other.
static void the_faster_order_is_taken(void **state) {
  (void)state;
  static const struct {
    double path;
    bl_balance_mode_t mode;
    uint32_t host_slots;
    bool takes_hosted;
  } rows[] = {{0, BL_BALANCE_OVERLAP, 99, true},
              {0.5, BL_BALANCE_OVERLAP, 99, true},
              {3, BL_BALANCE_OVERLAP, 99, false},
              {0.5, BL_BALANCE_FEWEST, 99, false}, // copies of this mode do not hide
              {0.5, BL_BALANCE_OVERLAP, 1, false}};
  bl_schedule_t *plain = made(false), *hosted = made(true);
  assert_false(same_order(plain, hosted));
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    const bl_costs_t costs = {.every = {1, 1, 1, 1}, .path = rows[i].path};
    const bl_balance_cap_t cap = {
        .slots = 4, .mode = rows[i].mode, .hosts = 1, .host_slots = rows[i].host_slots, .host_only = true};
    bl_balance_result_t result, other;
    bool takes_hosted;
    bl_error_t err;
    assert_int_equal(
        bl_host_order_balance(BL_POLICY_OFFLOAD, plain, hosted, &costs, &cap, &result, &takes_hosted, &err), BL_OK);
    const double taken = end_of(result.schedule, &costs);
    if (takes_hosted != rows[i].takes_hosted || taken > end_of(plain, &costs)) {
      fail_msg("row %zu: %s, ends at %g", i, takes_hosted ? "made for the host" : "for none", taken);
    }
    if (bl_balance_within(hosted, &cap, &other, NULL) == BL_OK) {
      assert_true(taken <= end_of(other.schedule, &costs));
      bl_balance_result_cleanup(&other);
    } else {
      assert_int_equal(rows[i].host_slots, 1);
    }
    bl_balance_result_cleanup(&result);
    assert_int_equal(bl_host_order_balance(BL_POLICY_OFFLOAD, plain, plain, &costs, &cap, &result, &takes_hosted, &err),
                     BL_OK);
    assert_false(takes_hosted);
    bl_balance_result_cleanup(&result);
    assert_int_equal(bl_host_order_balance(BL_POLICY_OFFLOAD, plain, NULL, &costs, &cap, &result, &takes_hosted, &err),
                     BL_OK);
    assert_false(takes_hosted);
    bl_balance_result_cleanup(&result);
  }
  const bl_balance_cap_t least = {.slots = 1, .hosts = 1, .host_slots = 99, .host_only = true};
  bl_balance_result_t result;
  bool takes_hosted;
  bl_error_t err;
  const bl_costs_t costs = BL_COSTS_UNIT;
  assert_int_equal(
      bl_host_order_balance(BL_POLICY_OFFLOAD, plain, hosted, &costs, &least, &result, &takes_hosted, &err),
      BL_EXHAUSTED);
  assert_non_null(strstr(err.text, "the smallest that works is"));
  bl_schedule_destroy(plain);
  bl_schedule_destroy(hosted);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(orders_made_for_a_host_end_earlier),
                                     cmocka_unit_test(the_faster_order_is_taken)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
