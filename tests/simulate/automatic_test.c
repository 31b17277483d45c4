// SPDX-License-Identifier: Apache-2.0
// Verifies what the policy auto chooses: nothing moves where all fits; copies beside operations where the path is fast;
// none where it is slow or not known: then blocks are made again; one in force is kept unless the gain is large; every stage has its reason; what cannot be
// is refused and names the smallest budget that works.
#include "simulate/automatic.h"

#include "schedule/generate.h"
#include "simulate/simulate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define STAGES 4

static bl_schedule_t *schedule;

static int set_up(void **state) {
  (void)state;
  bl_error_t err;
  bl_schedule_request_t request = {.name = "1f1b", .stages = STAGES, .micro_batches = 16};
  return bl_schedule_generate(&request, &schedule, &err) == BL_OK ? 0 : -1;
}

static int tear_down(void **state) {
  (void)state;
  bl_schedule_destroy(schedule);
  return 0;
}

// F, I and W of 1 ms; `copy` is the share of an F that a block takes to a store.
static bl_status_t decide(double copy, uint32_t budget, const bl_automatic_option_t *in_force, bl_automatic_t *found,
                          bl_error_t *err) {
  static const double bytes[STAGES] = {1e6, 1e6, 1e6, 1e6};
  double rates[STAGES];
  for (int s = 0; s < STAGES; s++) {
    rates[s] = 1e6 / (copy * 1e-3);
  }
  bool known = copy != 0;
  const bl_costs_t costs = {.every = {1e-3, 1e-3, 1e-3, 1e-3}};
  return bl_automatic_decide(&(bl_automatic_request_t){.schedule = schedule,
                                                       .costs = &costs,
                                                       .block_bytes = bytes,
                                                       .path_rates = known ? rates : NULL,
                                                       .between = 2e-3,
                                                       .budget = budget,
                                                       .in_force = in_force},
                             found, err);
}

static void decided(double copy, uint32_t budget, const bl_automatic_option_t *in_force, bl_automatic_t *found) {
  bl_error_t err;
  if (decide(copy, budget, in_force, found, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
}

static void nothing_moves_where_all_fits(void **state) {
  (void)state;
  bl_automatic_t found;
  decided(0.1, 4, NULL, &found);
  assert_int_equal(found.options[found.best].kind, BL_AUTOMATIC_NONE);
  for (size_t i = 1; i < BL_AUTOMATIC_OPTIONS; i++) {
    assert_false(found.options[i].fits);
  }
  assert_string_equal(found.reasons[0], "needs 4 of 4 slots: nothing moves");
  bl_simulation_t plain;
  const bl_costs_t costs = {.every = {1e-3, 1e-3, 1e-3, 1e-3}};
  const bl_machine_t machine = {.early_gradient = true};
  assert_int_equal(bl_simulate_on(schedule, &costs, &machine, &plain, NULL), BL_OK);
  assert_true(found.options[0].step == plain.t_end + 2e-3);
  assert_true(found.recomputed > found.options[0].step);
  bl_simulation_cleanup(&plain);
  bl_automatic_cleanup(&found);
}

static void a_fast_path_hides_copies(void **state) {
  (void)state;
  bl_automatic_t unlimited, found;
  decided(0.1, UINT32_MAX, NULL, &unlimited);
  decided(0.1, 3, NULL, &found);
  const bl_automatic_option_t *best = &found.options[found.best];
  assert_false(found.options[0].fits);
  assert_true(best->kind != BL_AUTOMATIC_NONE && best->mode == BL_BALANCE_OVERLAP && best->evictions > 0);
  assert_true(best->step < unlimited.options[0].step * 1.01);
  assert_true(best->step < found.recomputed);
  assert_non_null(strstr(found.reasons[0], "parks "));
  assert_non_null(strstr(found.reasons[0], "4 are needed, 3 fit"));
  assert_non_null(strstr(found.reasons[0], "hidden behind compute"));
  assert_string_equal(found.reasons[3], "needs 1 of 3 slots: nothing moves");
  assert_string_equal(unlimited.reasons[0], "needs 4 slots, and they have no limit: nothing moves");
  bl_automatic_cleanup(&unlimited);
  bl_automatic_cleanup(&found);
}

static void the_fastest_wins(void **state) {
  (void)state;
  for (double copy = 0.25; copy < 6; copy += 0.25) {
    bl_automatic_t found;
    decided(copy, 3, NULL, &found);
    const bl_automatic_option_t *best = &found.options[found.best];
    for (size_t i = 0; i < BL_AUTOMATIC_OPTIONS; i++) {
      const bl_automatic_option_t *option = &found.options[i];
      assert_true(!option->fits || option->step * (1 + BL_AUTOMATIC_EQUAL) >= best->step);
    }
    assert_true(found.recomputed >= best->step);
    bl_automatic_cleanup(&found);
  }
}

static void a_path_that_hides_nothing_is_not_taken(void **state) {
  (void)state;
  const double copies[] = {6, 0}; // six forwards; not known
  for (size_t i = 0; i < 2; i++) {
    bl_automatic_t found;
    decided(copies[i], 3, NULL, &found);
    const bl_automatic_option_t *best = &found.options[found.best];
    assert_int_equal(best->kind, BL_AUTOMATIC_DROP);
    assert_true(best->dropped > 0 && best->evictions == 0);
    assert_true(found.recomputed >= best->step); // which makes all blocks again
    assert_non_null(strstr(found.reasons[0], "of its blocks again: 4 are needed, 3 fit; that takes 1 ms a block"));
    assert_true((strstr(found.reasons[0], "to a store and back 12 ms") != NULL) == (i == 0));
    assert_string_equal(found.reasons[1], "needs 3 of 3 slots: nothing moves");
    bl_automatic_cleanup(&found);
  }
  bl_automatic_t found; // stores have no room for what two slots cannot hold
  decided(0.1, 2, NULL, &found);
  assert_int_equal(found.options[found.best].kind, BL_AUTOMATIC_DROP);
  bl_automatic_cleanup(&found);
}

static void one_in_force_goes_only_for_a_gain(void **state) {
  (void)state;
  bl_automatic_t found;
  const bl_automatic_option_t fewest = {.kind = BL_AUTOMATIC_PAIRS, .mode = BL_BALANCE_FEWEST};
  const bl_automatic_option_t overlap = {.kind = BL_AUTOMATIC_PAIRS, .mode = BL_BALANCE_OVERLAP};
  decided(1e-6, 3, &fewest, &found); // copies cost nothing
  assert_int_equal(found.options[found.best].mode, BL_BALANCE_FEWEST);
  bl_automatic_cleanup(&found);
  decided(6, 3, &overlap, &found);
  assert_int_equal(found.options[found.best].kind, BL_AUTOMATIC_DROP);
  bl_automatic_cleanup(&found);
}

static void what_cannot_be_is_refused(void **state) {
  (void)state;
  bl_automatic_t found;
  bl_error_t err;
  assert_int_equal(decide(0.1, 0, NULL, &found, &err), BL_EXHAUSTED);
  assert_non_null(strstr(err.text, "1 own slots work"));
  assert_int_equal(decide(-1, 3, NULL, &found, &err), BL_INVALID);
  assert_non_null(strstr(err.text, "path of stage 0"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(nothing_moves_where_all_fits),
      cmocka_unit_test(a_fast_path_hides_copies),
      cmocka_unit_test(the_fastest_wins),
      cmocka_unit_test(one_in_force_goes_only_for_a_gain),
      cmocka_unit_test(a_path_that_hides_nothing_is_not_taken),
      cmocka_unit_test(what_cannot_be_is_refused),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
