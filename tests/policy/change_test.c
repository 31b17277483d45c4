// SPDX-License-Identifier: Apache-2.0
// Verifies single rules of changes of policy (policy/change.h) that the search over all interleavings
// (change_model_test.c) does not reach or does not show: what a refused first plan leads to and when, what is answered
// at once, dry runs that were asked for before the first plan, two changes before the first step, a full queue into
// which one comes back, and the end.
#include "policy/change.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static bl_policy_request_t request_for(uint32_t cap, uint64_t name) {
  const bl_policy_t policy = {.kind = BL_POLICY_CAP, .cap = cap};
  return (bl_policy_request_t){.request = name, .policy = policy, .begun = policy};
}

static void add(bl_changes_t *changes, uint32_t cap, int *caller, uint64_t now_ms) {
  const bl_policy_request_t request = request_for(cap, cap);
  bl_changes_add(changes, &request, caller, now_ms);
}

// With the policy cap 1 in force from step 1 on.
static bl_changes_t *steady(void) {
  static bl_changes_t changes;
  const bl_policy_t first = {.kind = BL_POLICY_CAP, .cap = 1};
  changes = (bl_changes_t){0};
  assert_false(bl_changes_open(&changes, &first, 0));
  bl_changes_first_agreed(&changes);
  bl_changes_opened(&changes);
  return &changes;
}

static bl_changes_action_t action(bl_changes_t *changes, uint64_t applied, uint64_t attempt) {
  bl_changes_answer_t answer;
  bl_error_t err;
  return bl_changes_boundary(changes, applied, attempt, false, &answer, &err);
}

static void test_a_first_plan_that_is_refused(void **state) {
  (void)state;
  bl_changes_t changes = {0};
  const bl_policy_t first = {.kind = BL_POLICY_CAP, .cap = 1};
  (void)bl_changes_open(&changes, &first, 0);
  assert_int_equal(bl_changes_first_refused(&changes, BL_UNAVAILABLE, false, 1000), BL_CHANGES_AGAIN);
  assert_int_equal(bl_changes_first_refused(&changes, BL_EXHAUSTED, false, 1000), BL_CHANGES_FAIL);
  assert_int_equal(bl_changes_first_refused(&changes, BL_PRECONDITION, false, 1000), BL_CHANGES_BLAME);
  const uint64_t late = 1000 + BL_CHANGES_SETUP_MS;
  assert_int_equal(bl_changes_first_refused(&changes, BL_DEADLINE, false, late), BL_CHANGES_AGAIN);
  assert_int_equal(bl_changes_first_refused(&changes, BL_DEADLINE, false, late + 1), BL_CHANGES_FAIL);
  assert_int_equal(bl_changes_first_refused(&changes, BL_DEADLINE, true, late + 1), BL_CHANGES_AGAIN);
}

static void test_what_a_predecessor_left_goes_on(void **state) {
  (void)state;
  bl_changes_t changes = {0};
  bl_policy_history_t left = {0};
  bl_policy_history_add(&left, &(bl_policy_record_t){.policy = {.kind = BL_POLICY_DROP}, .from_step = 7});
  const bl_policy_t first = {.kind = BL_POLICY_CAP, .cap = 1};
  bl_changes_learn(&changes, &left);
  assert_true(bl_changes_open(&changes, &first, 9));
  assert_int_equal(changes.wanted.policy.kind, BL_POLICY_DROP);
  assert_int_equal(changes.wanted.from_step, 7);
}

static void test_what_is_said_at_once(void **state) {
  (void)state;
  bl_changes_t *changes = steady(), closed = {0};
  bl_policy_record_t wanted;
  bl_changes_answer_t answer;
  bl_error_t err;
  bl_policy_request_t request = request_for(1, 5);
  assert_int_equal(bl_changes_ask(&closed, &request, 0, &wanted, &answer, &err), BL_CHANGES_ASK_LATER);
  assert_int_equal(bl_changes_ask(changes, &request, 3, &wanted, &answer, &err), BL_CHANGES_ASK_DONE);
  assert_true(answer.unchanged && answer.in_force);
  request = request_for(2, 5);
  assert_int_equal(bl_changes_ask(changes, &request, 3, &wanted, &answer, &err), BL_CHANGES_ASK_LOOK);
  assert_int_equal(wanted.from_step, 4);
  request = (bl_policy_request_t){.rollback = true};
  assert_int_equal(bl_changes_ask(changes, &request, 3, &wanted, &answer, &err), BL_CHANGES_ASK_REFUSED);
  assert_int_equal(err.status, BL_NOT_FOUND);
  int caller;
  add(changes, 2, &caller, 1);
  request = request_for(1, 6); // will not be in force by then
  assert_int_equal(bl_changes_ask(changes, &request, 3, &wanted, &answer, &err), BL_CHANGES_ASK_LOOK);
}

static void test_auto_that_is_asked_for_again_keeps_what_it_chose(void **state) {
  (void)state;
  bl_changes_t changes = {0};
  const bl_policy_t chosen = {.kind = BL_POLICY_AUTO, .chosen = BL_POLICY_DROP};
  (void)bl_changes_open(&changes, &chosen, 0);
  bl_changes_first_agreed(&changes);
  bl_changes_opened(&changes);
  bl_policy_request_t request = {.policy = {.kind = BL_POLICY_AUTO, .chosen = BL_POLICY_AUTO},
                                 .begun = {.kind = BL_POLICY_AUTO, .chosen = BL_POLICY_MIX}};
  bl_policy_record_t wanted;
  bl_changes_answer_t answer;
  bl_error_t err;
  assert_int_equal(bl_changes_ask(&changes, &request, 3, &wanted, &answer, &err), BL_CHANGES_ASK_DONE);
  assert_true(answer.unchanged);
  request.policy.cap = request.begun.cap = 2; // another auto
  assert_int_equal(bl_changes_ask(&changes, &request, 3, &wanted, &answer, &err), BL_CHANGES_ASK_LOOK);
  assert_int_equal(wanted.policy.chosen, BL_POLICY_MIX);
}

static void test_a_dry_run_that_waited_changes_nothing(void **state) {
  (void)state;
  bl_changes_t changes = {0};
  bl_policy_request_t request = request_for(2, 5);
  request.dry_run = true;
  int caller;
  bl_changes_add(&changes, &request, &caller, 1);
  const bl_policy_t first = {.kind = BL_POLICY_CAP, .cap = 1};
  (void)bl_changes_open(&changes, &first, 0);
  bl_changes_first_agreed(&changes);
  bl_changes_opened(&changes);
  assert_int_equal(action(&changes, 0, 0), BL_CHANGES_LOOK);
  assert_ptr_equal(changes.change.caller, &caller);
  assert_int_equal(changes.wanted.policy.cap, 2);
  assert_int_equal(changes.phase, BL_CHANGES_STEADY);
  assert_int_equal(changes.history.count, 1);
}

// Also where no step of the run has begun, be it of this driver or at all.
static void test_a_step_runs_between_two_changes(void **state) {
  (void)state;
  for (uint64_t attempt = 0; attempt < 2; attempt++) {
    bl_changes_t *changes = steady();
    int callers[2];
    add(changes, 2, &callers[0], 1);
    add(changes, 3, &callers[1], 1);
    assert_int_equal(action(changes, 0, attempt), BL_CHANGES_MAKE);
    bl_changes_proposed(changes, 4, 1);
    bl_changes_agreed(changes, attempt);
    assert_int_equal(action(changes, 0, attempt), BL_CHANGES_NOTHING);
    assert_int_equal(action(changes, 1, attempt + 1), BL_CHANGES_MAKE);
    assert_int_equal(bl_policy_history_current(&changes->next)->version, 3);
    assert_int_equal(bl_policy_history_current(&changes->next)->from_step, 2);
  }
}

static void test_slow_stores_are_asked_again_under_the_first_reservation(void **state) {
  (void)state;
  bl_changes_t *changes = steady();
  int caller;
  add(changes, 2, &caller, 1);
  for (uint64_t i = 0; i <= BL_CHANGES_PROPOSALS; i++) {
    assert_int_equal(action(changes, i, i), BL_CHANGES_MAKE);
    bl_changes_proposed(changes, 4 + i, 1000);
    assert_int_equal(changes->change.reservation, 4);
    // The third is the first that has taken its time.
    assert_int_equal(bl_changes_refused(changes, BL_DEADLINE, i, 1000 + BL_CHANGES_PROPOSALS_MS),
                     i < BL_CHANGES_PROPOSALS);
  }
  assert_int_equal(bl_changes_open_count(changes), 0);
}

static void test_a_full_queue(void **state) {
  (void)state;
  bl_changes_t *changes = steady();
  int callers[BL_CHANGES_MAX + 1];
  for (unsigned i = 0; i < BL_CHANGES_MAX; i++) {
    assert_false(bl_changes_full(changes));
    add(changes, 2 + i, &callers[i], 1);
  }
  assert_true(bl_changes_full(changes));
  assert_int_equal(action(changes, 1, 1), BL_CHANGES_MAKE);
  add(changes, 99, &callers[BL_CHANGES_MAX], 1);
  assert_true(bl_changes_stores_away(changes, 2)); // comes back
  bl_changes_end(changes);
  bl_change_t change;
  for (unsigned i = 0; i <= BL_CHANGES_MAX; i++) {
    assert_true(bl_changes_take(changes, &change));
    assert_ptr_equal(change.caller, &callers[i]);
  }
  assert_false(bl_changes_take(changes, &change));
}

static void test_the_end_answers_who_is_under_way(void **state) {
  (void)state;
  bl_changes_t *changes = steady();
  int callers[2];
  add(changes, 2, &callers[0], 1);
  add(changes, 3, &callers[1], 1);
  assert_int_equal(action(changes, 1, 1), BL_CHANGES_MAKE);
  bl_changes_proposed(changes, 4, 1);
  bl_changes_end(changes);
  bl_changes_end(changes); // again
  bl_change_t change;
  assert_true(bl_changes_take(changes, &change));
  assert_ptr_equal(change.caller, &callers[0]);
  assert_true(bl_changes_take(changes, &change));
  assert_false(bl_changes_take(changes, &change));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_first_plan_that_is_refused),
      cmocka_unit_test(test_what_a_predecessor_left_goes_on),
      cmocka_unit_test(test_what_is_said_at_once),
      cmocka_unit_test(test_auto_that_is_asked_for_again_keeps_what_it_chose),
      cmocka_unit_test(test_a_dry_run_that_waited_changes_nothing),
      cmocka_unit_test(test_a_step_runs_between_two_changes),
      cmocka_unit_test(test_slow_stores_are_asked_again_under_the_first_reservation),
      cmocka_unit_test(test_a_full_queue),
      cmocka_unit_test(test_the_end_answers_who_is_under_way),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
