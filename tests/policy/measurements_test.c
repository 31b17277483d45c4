// SPDX-License-Identifier: Apache-2.0
// Verifies what steps teach the policy auto: rates of paths are medians, so that one step that lies changes nothing; a
// path that nothing went over has the rate of the others; steps are slow when several in a row are; predictions are
// corrected by what steps took, follow disturbances slowly, and fade.
#include "policy/measurements.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define STAGES 3

static bl_measurements_t measurements;

static int set_up(void **state) {
  (void)state;
  return bl_measurements_init(&measurements, STAGES) == BL_OK ? 0 : -1;
}

static int tear_down(void **state) {
  (void)state;
  bl_measurements_cleanup(&measurements);
  return 0;
}

static void assert_near(double value, double expected) {
  if (!(fabs(value - expected) <= 1e-9 * expected)) {
    fail_msg("is %.12g, expected %.12g", value, expected);
  }
}

// A step in which stages 0 and 1 copied at these rates; 0: nothing.
static void add(double first, double second) {
  const double rates[] = {first, second};
  for (uint32_t s = 0; s < 2; s++) {
    if (rates[s] > 0) { // in two parts
      bl_measurements_copies(&measurements, BL_MEASUREMENTS_PEERS, s, 1e6, 1e6 / rates[s]);
      bl_measurements_copies(&measurements, BL_MEASUREMENTS_PEERS, s, 3e6, 3e6 / rates[s]);
    }
  }
  bl_measurements_end_step(&measurements);
}

static void one_step_that_lies_changes_no_rate(void **state) {
  (void)state;
  bl_measurements_begin(&measurements);
  add(1e9, 2e9);
  add(1e6, 1e12); // the path stood still; a clock jumped
  add(1.1e9, 1.9e9);
  assert_true(bl_measurements_rates(&measurements));
  assert_near(measurements.rates[0], 1e9);
  assert_near(measurements.rates[1], 2e9);
  assert_near(measurements.rates[2], 2 / (1 / 1e9 + 1 / 2e9)); // by the time of a byte
}

// The host's path is another than that to peers; what nothing is known of is taken to be like the other.
static void tiers_are_kept_apart(void **state) {
  (void)state;
  assert_null(bl_measurements_tier(&measurements, BL_MEASUREMENTS_HOST));
  bl_measurements_begin(&measurements);
  add(1e9, 1e9);
  assert_true(bl_measurements_rates(&measurements));
  assert_near(bl_measurements_tier(&measurements, BL_MEASUREMENTS_HOST)[2], 1e9);
  bl_measurements_begin(&measurements);
  bl_measurements_copies(&measurements, BL_MEASUREMENTS_HOST, 1, 1e6, 1e6 / 2e8);
  bl_measurements_end_step(&measurements);
  assert_true(bl_measurements_rates(&measurements));
  for (uint32_t s = 0; s < STAGES; s++) {
    assert_near(bl_measurements_tier(&measurements, BL_MEASUREMENTS_PEERS)[s], 1e9);
    assert_near(bl_measurements_tier(&measurements, BL_MEASUREMENTS_HOST)[s], 2e8);
  }
}

static void where_nothing_moved_what_was_known_stays(void **state) {
  (void)state;
  assert_false(measurements.known[BL_MEASUREMENTS_PEERS]);
  bl_measurements_begin(&measurements);
  add(0, 0);
  assert_false(bl_measurements_rates(&measurements) || measurements.known[BL_MEASUREMENTS_PEERS]);
  bl_measurements_begin(&measurements);
  add(0, 5e8);
  add(0, 0); // of steps without copies nothing is said
  assert_true(bl_measurements_rates(&measurements) && measurements.known[BL_MEASUREMENTS_PEERS]);
  for (int s = 0; s < STAGES; s++) {
    assert_near(measurements.rates[s], 5e8);
  }
  bl_measurements_begin(&measurements);
  add(0, 0);
  assert_false(bl_measurements_rates(&measurements));
  assert_true(measurements.known[BL_MEASUREMENTS_PEERS]);
  assert_near(measurements.rates[0], 5e8);
}

static void more_steps_than_are_kept_do_no_harm(void **state) {
  (void)state;
  bl_measurements_begin(&measurements);
  for (int i = 0; i < 2 * BL_MEASUREMENTS_STEPS; i++) {
    add(i < BL_MEASUREMENTS_STEPS ? 1e9 : 1e3, 1e9);
  }
  assert_true(bl_measurements_rates(&measurements));
  assert_near(measurements.rates[0], 1e9);
}

static void slow_is_several_in_a_row(void **state) {
  (void)state;
  assert_false(bl_measurements_step(&measurements, 100)); // nothing is expected
  measurements.expected = 1;
  for (int i = 0; i < 50; i++) { // every other one, and two in a row
    assert_false(bl_measurements_step(&measurements, i % 2 == 0 ? 1 : 1e3));
  }
  assert_false(bl_measurements_step(&measurements, 1.01 * BL_MEASUREMENTS_SLOWER));
  assert_false(bl_measurements_step(&measurements, 0.99 * BL_MEASUREMENTS_SLOWER));
  bl_measurements_compare(&measurements, 0, 1, 1.2);
  for (int i = 1; i < BL_MEASUREMENTS_SLOW; i++) {
    assert_false(bl_measurements_step(&measurements, 1.01 * BL_MEASUREMENTS_SLOWER));
  }
  assert_near(bl_measurements_ratio(&measurements, 0, 0), 1.2);
  assert_true(bl_measurements_step(&measurements, 1.01 * BL_MEASUREMENTS_SLOWER));
  assert_near(bl_measurements_ratio(&measurements, 0, 0), 1); // of another time
  assert_false(bl_measurements_step(&measurements, 10));      // counts anew
}

static void predictions_are_corrected_by_steps(void **state) {
  (void)state;
  assert_near(bl_measurements_ratio(&measurements, 1, BL_MEASUREMENTS_PLANS), 1);
  bl_measurements_compare(&measurements, 1, 2, 2.2);
  assert_near(bl_measurements_ratio(&measurements, 1, 1), 1.1);
  assert_near(bl_measurements_ratio(&measurements, 2, 1), 1.1); // as what is in force
  assert_near(bl_measurements_ratio(&measurements, 2, BL_MEASUREMENTS_PLANS), 1);
  bl_measurements_compare(&measurements, 2, 2, 3);
  assert_near(bl_measurements_ratio(&measurements, 2, 2), 1.5);
  assert_near(bl_measurements_ratio(&measurements, 1, 2), 1.5 + BL_MEASUREMENTS_FADE * (1.1 - 1.5));
  bl_measurements_compare(&measurements, 2, 0, 3); // nothing is learnt
  bl_measurements_compare(&measurements, 2, 3, 0);
  bl_measurements_compare(&measurements, BL_MEASUREMENTS_PLANS, 1, 2);
  assert_near(bl_measurements_ratio(&measurements, 2, 2), 1.5);
  bl_measurements_forget(&measurements);
  assert_near(bl_measurements_ratio(&measurements, 2, 2), 1);
}

static void a_disturbed_look_counts_little(void **state) {
  (void)state;
  bl_measurements_compare(&measurements, 0, 1, 1);
  bl_measurements_compare(&measurements, 0, 1, 1.4);
  assert_near(bl_measurements_ratio(&measurements, 0, 0), 1 + BL_MEASUREMENTS_RISE * 0.4);
  bl_measurements_compare(&measurements, 0, 1, 1); // nobody makes steps faster than they are
  assert_near(bl_measurements_ratio(&measurements, 0, 0), 1);
  bl_measurements_compare(&measurements, 3, 1, 1e6);
  assert_near(bl_measurements_ratio(&measurements, 3, 3), BL_MEASUREMENTS_FARTHEST);
  bl_measurements_compare(&measurements, 4, 1e6, 1);
  assert_near(bl_measurements_ratio(&measurements, 4, 4), 1 / BL_MEASUREMENTS_FARTHEST);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(one_step_that_lies_changes_no_rate, set_up, tear_down),
      cmocka_unit_test_setup_teardown(tiers_are_kept_apart, set_up, tear_down),
      cmocka_unit_test_setup_teardown(where_nothing_moved_what_was_known_stays, set_up, tear_down),
      cmocka_unit_test_setup_teardown(more_steps_than_are_kept_do_no_harm, set_up, tear_down),
      cmocka_unit_test_setup_teardown(slow_is_several_in_a_row, set_up, tear_down),
      cmocka_unit_test_setup_teardown(predictions_are_corrected_by_steps, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_disturbed_look_counts_little, set_up, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
