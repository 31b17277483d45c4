// SPDX-License-Identifier: Apache-2.0
// Verifies that schedules made for full recomputation count what R costs: what a search times is what the simulator finds,
// the order is no slower than one made without R and given it afterwards, where R is long it is faster, and what R fills
// is limited.
#include "schedule/generate.h"
#include "schedule/ir/recompute.h"
#include "schedule/ir/validate.h"
#include "simulate/simulate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#ifdef __SANITIZE_ADDRESS__
#define EFFORT 0.002
#else
#define EFFORT 0.02
#endif

static bl_schedule_t *generate(const char *name, const bl_costs_t *costs, bool recompute) {
  bl_schedule_request_t request = {
      .name = name, .stages = 4, .micro_batches = 8, .costs = costs, .recompute = recompute, .effort = EFFORT};
  bl_schedule_t *schedule;
  bl_error_t err;
  bl_error_clear(&err);
  if (bl_schedule_generate(&request, &schedule, &err) != BL_OK || bl_schedule_validate(schedule, NULL, &err) != BL_OK) {
    fail_msg("%s: %s", name, err.text);
  }
  return schedule;
}

static double end_of(const bl_schedule_t *schedule, const bl_costs_t *costs) {
  bl_simulation_t result;
  assert_int_equal(bl_simulate(schedule, costs, &result, NULL), BL_OK);
  double end = result.t_end;
  assert_true(result.lower_bound <= end * (1 + 1e-9));
  bl_simulation_cleanup(&result);
  return end;
}

// Fixed orders are what the pass makes of them.
static void orders_that_are_fixed_stay(void **state) {
  (void)state;
  static const char *const names[] = {"gpipe", "1f1b", "eager-1f1b", "interleaved"};
  bl_costs_t costs = {.every = {10, 14, 6, 9}, .boundary = 2};
  for (size_t n = 0; n < sizeof names / sizeof names[0]; n++) {
    bl_schedule_t *made = generate(names[n], &costs, true), *passed = generate(names[n], &costs, false);
    assert_int_equal(bl_schedule_recompute(passed, NULL), BL_OK);
    for (uint32_t s = 0; s < 4; s++) {
      assert_int_equal(made->lists[s].count, passed->lists[s].count);
      for (size_t i = 0; i < made->lists[s].count; i++) {
        char a[BL_OP_TEXT], b[BL_OP_TEXT];
        assert_string_equal(bl_op_format(made->lists[s].ops[i], a), bl_op_format(passed->lists[s].ops[i], b));
      }
    }
    bl_schedule_destroy(passed);
    bl_schedule_destroy(made);
  }
}

static void searches_count_what_r_costs(void **state) {
  (void)state;
  const bl_costs_t costs[] = {{.every = {10, 14, 6, 10}, .boundary = 2},
                              {.every = {10, 14, 6, 25}, .boundary = 5},
                              {.every = {1, 1, 1, 1}},
                              {.every = {10, 11, 9, 0.5}, .boundary = 1}};
  size_t count, faster = 0, searched = 0;
  const bl_schedule_info_t *infos = bl_schedule_infos(&count);
  for (size_t n = 0; n < count; n++) {
    for (size_t c = 0; c < sizeof costs / sizeof costs[0]; c++) {
      bl_schedule_t *made = generate(infos[n].name, &costs[c], true),
                    *passed = generate(infos[n].name, &costs[c], false);
      assert_int_equal(bl_schedule_recompute(passed, NULL), BL_OK);
      double end = end_of(made, &costs[c]), end_passed = end_of(passed, &costs[c]);
      if (end > end_passed * (1 + 1e-9)) {
        fail_msg("%s, costs %zu: %g; the pass over an order without R gives %g", infos[n].name, c, end, end_passed);
      }
      faster += end < end_passed * (1 - 1e-9);
      searched++;
      bl_schedule_destroy(passed);
      bl_schedule_destroy(made);
    }
  }
  printf("faster in %zu of %zu cases\n", faster, searched);
  assert_true(faster >= 10);
}

// What R fills stays within the slots asked for, down to one block, for every name but dualpipe and dualpipe-v, whose orders
// are fixed and keep W back.
static void slots_of_r_are_limited(void **state) {
  (void)state;
  const bl_costs_t costs = {.every = {10, 14, 6, 10}, .boundary = 2};
  size_t count;
  const bl_schedule_info_t *infos = bl_schedule_infos(&count);
  for (size_t n = 0; n < count; n++) {
    for (uint32_t blocks = 1; blocks <= 3 && strncmp(infos[n].name, "dualpipe", 8) != 0; blocks++) {
      const bool both = infos[n].placement == BL_PLACEMENT_BIDIRECTIONAL; // a block is a device's whole part
      const double weight = both ? 1 : 1.0 / infos[n].default_chunks;
      bl_schedule_request_t request = {.name = infos[n].name,
                                       .stages = 4,
                                       .micro_batches = 8,
                                       .costs = &costs,
                                       .recompute = true,
                                       .slots = blocks * weight,
                                       .effort = EFFORT};
      bl_schedule_t *schedule;
      bl_simulation_t result;
      bl_error_t err;
      if (bl_schedule_generate(&request, &schedule, &err) != BL_OK ||
          bl_schedule_validate(schedule, NULL, &err) != BL_OK ||
          bl_simulate(schedule, &costs, &result, &err) != BL_OK) {
        fail_msg("%s, %u slots: %s", infos[n].name, blocks, err.text);
      }
      for (uint32_t s = 0; s < 4; s++) {
        if (result.peak_slots[s] > blocks) {
          fail_msg("%s, %u slots: stage %u fills %u", infos[n].name, blocks, s, result.peak_slots[s]);
        }
      }
      bl_simulation_cleanup(&result);
      bl_schedule_destroy(schedule);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(orders_that_are_fixed_stay),
      cmocka_unit_test(searches_count_what_r_costs),
      cmocka_unit_test(slots_of_r_are_limited),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
