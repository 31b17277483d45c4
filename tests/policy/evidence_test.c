// SPDX-License-Identifier: Apache-2.0
// Verifies what steps teach the policy auto: rates of paths are medians, so that one step that lies changes nothing; a path
// that nothing went over has the rate of the others; steps are slow when several in a row are; predictions are corrected by
// what steps took, follow disturbances slowly, and fade.
#include "policy/evidence.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define STAGES 3

static bl_evidence_t evidence;

static int set_up(void **state) {
  (void)state;
  return bl_evidence_init(&evidence, STAGES) == BL_OK ? 0 : -1;
}

static int tear_down(void **state) {
  (void)state;
  bl_evidence_cleanup(&evidence);
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
      bl_evidence_copies(&evidence, BL_EVIDENCE_PEERS, s, 1e6, 1e6 / rates[s]);
      bl_evidence_copies(&evidence, BL_EVIDENCE_PEERS, s, 3e6, 3e6 / rates[s]);
    }
  }
  bl_evidence_end_step(&evidence);
}

static void one_step_that_lies_changes_no_rate(void **state) {
  (void)state;
  bl_evidence_begin(&evidence);
  add(1e9, 2e9);
  add(1e6, 1e12); // the path stood still; a clock jumped
  add(1.1e9, 1.9e9);
  assert_true(bl_evidence_rates(&evidence));
  assert_near(evidence.rates[0], 1e9);
  assert_near(evidence.rates[1], 2e9);
  assert_near(evidence.rates[2], 2 / (1 / 1e9 + 1 / 2e9)); // by the time of a byte
}

// The host's path is another than that to peers; what nothing is known of is taken to be like the other.
static void tiers_are_kept_apart(void **state) {
  (void)state;
  assert_null(bl_evidence_tier(&evidence, BL_EVIDENCE_HOST));
  bl_evidence_begin(&evidence);
  add(1e9, 1e9);
  assert_true(bl_evidence_rates(&evidence));
  assert_near(bl_evidence_tier(&evidence, BL_EVIDENCE_HOST)[2], 1e9);
  bl_evidence_begin(&evidence);
  bl_evidence_copies(&evidence, BL_EVIDENCE_HOST, 1, 1e6, 1e6 / 2e8);
  bl_evidence_end_step(&evidence);
  assert_true(bl_evidence_rates(&evidence));
  for (uint32_t s = 0; s < STAGES; s++) {
    assert_near(bl_evidence_tier(&evidence, BL_EVIDENCE_PEERS)[s], 1e9);
    assert_near(bl_evidence_tier(&evidence, BL_EVIDENCE_HOST)[s], 2e8);
  }
}

static void where_nothing_moved_what_was_known_stays(void **state) {
  (void)state;
  assert_false(evidence.known[BL_EVIDENCE_PEERS]);
  bl_evidence_begin(&evidence);
  add(0, 0);
  assert_false(bl_evidence_rates(&evidence) || evidence.known[BL_EVIDENCE_PEERS]);
  bl_evidence_begin(&evidence);
  add(0, 5e8);
  add(0, 0); // of steps without copies nothing is said
  assert_true(bl_evidence_rates(&evidence) && evidence.known[BL_EVIDENCE_PEERS]);
  for (int s = 0; s < STAGES; s++) {
    assert_near(evidence.rates[s], 5e8);
  }
  bl_evidence_begin(&evidence);
  add(0, 0);
  assert_false(bl_evidence_rates(&evidence));
  assert_true(evidence.known[BL_EVIDENCE_PEERS]);
  assert_near(evidence.rates[0], 5e8);
}

static void more_steps_than_are_kept_do_no_harm(void **state) {
  (void)state;
  bl_evidence_begin(&evidence);
  for (int i = 0; i < 2 * BL_EVIDENCE_STEPS; i++) {
    add(i < BL_EVIDENCE_STEPS ? 1e9 : 1e3, 1e9);
  }
  assert_true(bl_evidence_rates(&evidence));
  assert_near(evidence.rates[0], 1e9);
}

static void slow_is_several_in_a_row(void **state) {
  (void)state;
  assert_false(bl_evidence_step(&evidence, 100)); // nothing is expected
  evidence.expected = 1;
  for (int i = 0; i < 50; i++) { // every other one, and two in a row
    assert_false(bl_evidence_step(&evidence, i % 2 == 0 ? 1 : 1e3));
  }
  assert_false(bl_evidence_step(&evidence, 1.01 * BL_EVIDENCE_SLOWER));
  assert_false(bl_evidence_step(&evidence, 0.99 * BL_EVIDENCE_SLOWER));
  bl_evidence_compare(&evidence, 0, 1, 1.2);
  for (int i = 1; i < BL_EVIDENCE_SLOW; i++) {
    assert_false(bl_evidence_step(&evidence, 1.01 * BL_EVIDENCE_SLOWER));
  }
  assert_near(bl_evidence_ratio(&evidence, 0, 0), 1.2);
  assert_true(bl_evidence_step(&evidence, 1.01 * BL_EVIDENCE_SLOWER));
  assert_near(bl_evidence_ratio(&evidence, 0, 0), 1); // of another time
  assert_false(bl_evidence_step(&evidence, 10));      // counts anew
}

static void predictions_are_corrected_by_steps(void **state) {
  (void)state;
  assert_near(bl_evidence_ratio(&evidence, 1, BL_EVIDENCE_PLANS), 1);
  bl_evidence_compare(&evidence, 1, 2, 2.2);
  assert_near(bl_evidence_ratio(&evidence, 1, 1), 1.1);
  assert_near(bl_evidence_ratio(&evidence, 2, 1), 1.1); // as what is in force
  assert_near(bl_evidence_ratio(&evidence, 2, BL_EVIDENCE_PLANS), 1);
  bl_evidence_compare(&evidence, 2, 2, 3);
  assert_near(bl_evidence_ratio(&evidence, 2, 2), 1.5);
  assert_near(bl_evidence_ratio(&evidence, 1, 2), 1.5 + BL_EVIDENCE_FADE * (1.1 - 1.5));
  bl_evidence_compare(&evidence, 2, 0, 3); // nothing is learnt
  bl_evidence_compare(&evidence, 2, 3, 0);
  bl_evidence_compare(&evidence, BL_EVIDENCE_PLANS, 1, 2);
  assert_near(bl_evidence_ratio(&evidence, 2, 2), 1.5);
  bl_evidence_forget(&evidence);
  assert_near(bl_evidence_ratio(&evidence, 2, 2), 1);
}

static void a_disturbed_look_counts_little(void **state) {
  (void)state;
  bl_evidence_compare(&evidence, 0, 1, 1);
  bl_evidence_compare(&evidence, 0, 1, 1.4);
  assert_near(bl_evidence_ratio(&evidence, 0, 0), 1 + BL_EVIDENCE_RISE * 0.4);
  bl_evidence_compare(&evidence, 0, 1, 1); // nobody makes steps faster than they are
  assert_near(bl_evidence_ratio(&evidence, 0, 0), 1);
  bl_evidence_compare(&evidence, 3, 1, 1e6);
  assert_near(bl_evidence_ratio(&evidence, 3, 3), BL_EVIDENCE_FARTHEST);
  bl_evidence_compare(&evidence, 4, 1e6, 1);
  assert_near(bl_evidence_ratio(&evidence, 4, 4), 1 / BL_EVIDENCE_FARTHEST);
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
