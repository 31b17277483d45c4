// SPDX-License-Identifier: Apache-2.0
// Verifies the policy auto of a run (policy/choice.h) step by step, with the numbers that the search over all sequences
// (choice_model_test.c) leaves open: when samples begin and end, how long it rests, when trials are due, what ends a
// rest.
#include "policy/choice.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static bl_choice_t choice;
static bl_measurements_t measurements;
static bl_policy_record_t in_force;

static void begin(bl_policy_kind_t chosen, uint32_t copy) {
  choice = (bl_choice_t){0};
  measurements = (bl_measurements_t){0};
  in_force = (bl_policy_record_t){
      .version = 1, .from_step = 1, .policy = {.kind = BL_POLICY_AUTO, .chosen = chosen, .copy = copy}};
}

static bl_choice_now_t now_at(uint64_t applied) {
  return (bl_choice_now_t){.in_force = &in_force,
                           .drives = true,
                           .moves = true,
                           .applied = applied,
                           .seconds = 1,
                           .measurements = &measurements};
}

static bl_choice_action_t action_at(uint64_t applied) {
  const bl_choice_now_t now = now_at(applied);
  bool slower;
  return bl_choice_boundary(&choice, &now, &slower);
}

static bl_choice_due_t sample_at(uint64_t applied, uint32_t whole) {
  const bl_choice_now_t now = now_at(applied);
  assert_int_equal(action_at(applied), BL_CHOICE_SAMPLE);
  return bl_choice_sampled(&choice, &now, whole);
}

// Three samples from `step` on.
static void sample_enough(uint64_t step) {
  assert_int_equal(sample_at(step, 1), BL_CHOICE_MORE);
  assert_int_equal(sample_at(step + 1, 2), BL_CHOICE_MORE);
  assert_int_equal(sample_at(step + 2, 3), BL_CHOICE_DECIDE);
}

static void test_samples_then_a_rest(void **state) {
  (void)state;
  begin(BL_POLICY_BPIPE, 0);
  assert_int_equal(action_at(1), BL_CHOICE_NOTHING); // warms up
  sample_enough(2);
  const bl_choice_now_t now = now_at(4);
  assert_false(bl_choice_decided(&choice, &now, &(bl_choice_found_t){.known = true}));
  assert_int_equal(bl_choice_told(&choice, &in_force), BL_CHOICE_FOUND);
  for (uint64_t step = 5; step < 4 + BL_CHOICE_REST; step++) {
    assert_int_equal(action_at(step), BL_CHOICE_NOTHING);
  }
  assert_int_equal(action_at(4 + BL_CHOICE_REST), BL_CHOICE_SAMPLE);
}

static void test_samples_that_lack_operations_end(void **state) {
  (void)state;
  begin(BL_POLICY_BPIPE, 0);
  for (uint64_t step = 2; step < 1 + BL_CHOICE_SAMPLES; step++) {
    assert_int_equal(sample_at(step, 0), BL_CHOICE_MORE);
  }
  assert_int_equal(sample_at(1 + BL_CHOICE_SAMPLES, 0), BL_CHOICE_DECIDE);
}

static void test_nothing_is_sampled_where_nothing_moves(void **state) {
  (void)state;
  begin(BL_POLICY_NONE, 0);
  bl_choice_now_t now = now_at(5);
  bool slower;
  now.moves = false;
  assert_int_equal(bl_choice_boundary(&choice, &now, &slower), BL_CHOICE_NOTHING);
  assert_false(bl_choice_will_look(&choice, &now));
  now.moves = true;
  now.seconds = 0; // of a predecessor
  assert_int_equal(bl_choice_boundary(&choice, &now, &slower), BL_CHOICE_NOTHING);
}

static void test_the_first_step_parks_one_block(void **state) {
  (void)state;
  begin(BL_POLICY_MIX, BL_POLICY_COPY_PROBE);
  assert_int_equal(sample_at(1, 1), BL_CHOICE_BEGIN);
  assert_false(bl_choice_begun(&choice, true)); // it had to warm up
  assert_int_equal(sample_at(2, 2), BL_CHOICE_BEGIN);
  assert_true(bl_choice_begun(&choice, true));
  const bl_choice_now_t now = now_at(2);
  bl_choice_asked(&choice, &now, BL_CHOICE_START, true);
  assert_int_equal(action_at(3), BL_CHOICE_NOTHING);
  in_force =
      (bl_policy_record_t){.version = 2, .from_step = 4, .policy = {.kind = BL_POLICY_AUTO, .chosen = BL_POLICY_DROP}};
  bl_choice_answered(&choice, 3, &in_force);
  assert_int_equal(bl_choice_told(&choice, &in_force), BL_CHOICE_BEGINS);
  assert_int_equal(action_at(4), BL_CHOICE_NOTHING);
  assert_int_equal(action_at(5), BL_CHOICE_SAMPLE);
}

static void test_a_change_is_checked_and_what_that_finds_is_not(void **state) {
  (void)state;
  begin(BL_POLICY_BPIPE, 0);
  uint64_t step = 2;
  for (unsigned change = 0; change < 2; change++) {
    sample_enough(step);
    const bl_choice_now_t now = now_at(step + 2);
    assert_true(bl_choice_decided(&choice, &now, &(bl_choice_found_t){.known = true, .other = true}));
    bl_choice_asked(&choice, &now, BL_CHOICE_CHANGE, true);
    assert_int_equal(bl_choice_told(&choice, &in_force), BL_CHOICE_NOTHING_KNOWN);
    in_force.version++;
    in_force.from_step = step + 3;
    bl_choice_answered(&choice, step + 2, &in_force);
    assert_int_equal(bl_choice_told(&choice, &in_force), BL_CHOICE_FOUND);
    assert_int_equal(action_at(step + 3), BL_CHOICE_NOTHING);
    assert_int_equal(action_at(step + 4), change == 0 ? BL_CHOICE_SAMPLE : BL_CHOICE_NOTHING);
    step += 4;
  }
  assert_int_equal(action_at(8 + BL_CHOICE_REST), BL_CHOICE_SAMPLE);
}

static void decide_to_give_up(uint64_t step, uint64_t trial_after) {
  const bl_choice_now_t now = now_at(step);
  const bl_choice_found_t found = {
      .known = true, .gives_up = true, .may_try = true, .trial_after = trial_after, .trial = {.chosen = BL_POLICY_CAP}};
  assert_false(bl_choice_decided(&choice, &now, &found));
}

static void test_trials_that_are_refused_wait_twice_as_long(void **state) {
  (void)state;
  begin(BL_POLICY_DROP, 0);
  sample_enough(2);
  decide_to_give_up(4, 120);
  uint64_t measured = 4, step = 4;
  for (unsigned refused = 0; refused < 3; refused++) {
    const uint64_t due = measured + (UINT64_C(120) << refused);
    assert_int_equal(choice.trial_at, due);
    for (; step + BL_CHOICE_REST < due; step += BL_CHOICE_REST + 2) {
      sample_enough(step + BL_CHOICE_REST);
      decide_to_give_up(step + BL_CHOICE_REST + 2, 120);
      assert_int_equal(choice.trial_at, due); // of when paths were measured, not of now
    }
    choice.next = due + 1;
    assert_int_equal(action_at(due - 1), BL_CHOICE_NOTHING);
    assert_int_equal(action_at(due), BL_CHOICE_TRY);
    bl_choice_now_t now = now_at(due);
    bl_choice_asked(&choice, &now, BL_CHOICE_TRIAL, false); // somebody else is changing the policy
    assert_int_equal(action_at(due), BL_CHOICE_TRY);
    bl_choice_asked(&choice, &now, BL_CHOICE_TRIAL, true);
    bl_choice_answered(&choice, due, NULL);
    assert_int_equal(action_at(due), BL_CHOICE_NOTHING); // until the next decision
    measured = due;
    sample_enough(due + 1);
    decide_to_give_up(due + 3, 120);
    step = due + 3;
  }
  bl_choice_measured(&choice, step);
  decide_to_give_up((sample_enough(step + BL_CHOICE_REST), step + BL_CHOICE_REST + 2), 1);
  assert_int_equal(choice.trial_at, step + BL_CHOICE_REST); // never sooner than a rest
}

static void test_a_trial_that_costs_too_much_is_never_due(void **state) {
  (void)state;
  begin(BL_POLICY_DROP, 0);
  sample_enough(2);
  decide_to_give_up(4, UINT64_MAX);
  assert_int_equal(choice.trial_at, 0);
}

static void test_slow_steps_end_a_rest(void **state) {
  (void)state;
  begin(BL_POLICY_BPIPE, 0);
  sample_enough(2);
  bl_choice_now_t now = now_at(4);
  (void)bl_choice_decided(&choice, &now, &(bl_choice_found_t){.known = true});
  measurements.expected = 0.5;
  bool slower;
  for (unsigned i = 1; i <= BL_MEASUREMENTS_SLOW; i++) {
    now = now_at(4 + i);
    assert_int_equal(bl_choice_boundary(&choice, &now, &slower), BL_CHOICE_NOTHING);
    assert_int_equal(slower, i == BL_MEASUREMENTS_SLOW);
    assert_int_equal(bl_choice_boundary(&choice, &now, &slower), BL_CHOICE_NOTHING); // the step counts once
    assert_false(slower);
  }
  assert_int_equal(action_at(5 + BL_MEASUREMENTS_SLOW), BL_CHOICE_SAMPLE);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_samples_then_a_rest),
      cmocka_unit_test(test_samples_that_lack_operations_end),
      cmocka_unit_test(test_nothing_is_sampled_where_nothing_moves),
      cmocka_unit_test(test_the_first_step_parks_one_block),
      cmocka_unit_test(test_a_change_is_checked_and_what_that_finds_is_not),
      cmocka_unit_test(test_trials_that_are_refused_wait_twice_as_long),
      cmocka_unit_test(test_a_trial_that_costs_too_much_is_never_due),
      cmocka_unit_test(test_slow_steps_end_a_rest),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
