// SPDX-License-Identifier: Apache-2.0
// Verifies the stage's side of the step protocol request by request: what is begun, joined, answered from what is kept,
// and refused, with which status; that a refusal changes nothing; plans and configurations.
#include "step/stage_step.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

static const bl_driver_id_t first = {.epoch = 1, .id = 11}, second = {.epoch = 2, .id = 22};

#define JOB 77

static bl_error_t fault; // of the last request

// A stage that follows `first`, is configured, and has plan 1 for training.
static bl_stage_step_t make_stage(void) {
  bl_stage_step_t stage = {0};
  uint64_t replaces;
  assert_true(bl_stage_step_takeover(&stage, first));
  assert_int_equal(bl_stage_step_configure(&stage, first, JOB, &fault), BL_STAGE_BEGIN);
  bl_stage_step_configure_ended(&stage, true, 0);
  bl_plan_record_t plan = {.version = 1, .digest = 5};
  assert_int_equal(bl_stage_step_plan(&stage, first, BL_RUN_TRAIN, plan, &replaces, &fault), BL_STAGE_BEGIN);
  bl_stage_step_plan_installed(&stage, BL_RUN_TRAIN, plan);
  return stage;
}

static bl_run_id_t training(uint64_t step, uint64_t attempt) {
  return (bl_run_id_t){.kind = BL_RUN_TRAIN, .step = step, .attempt = attempt, .plan_version = 1};
}

static bl_stage_decision_t run(bl_stage_step_t *stage, bl_driver_id_t driver, uint64_t step, uint64_t attempt,
                               bl_error_t *err) {
  bl_run_id_t id = training(step, attempt);
  return bl_stage_step_run(stage, driver, &id, err);
}

static void vote(bl_stage_step_t *stage, uint64_t step, uint64_t attempt) {
  assert_int_equal(run(stage, first, step, attempt, &fault), BL_STAGE_BEGIN);
  assert_int_equal(bl_stage_step_run_ended(stage, true), BL_STAGE_KEEP);
}

#define assert_refused(stage, call, expected)                                                                          \
  do {                                                                                                                 \
    bl_stage_step_t before = *(stage);                                                                                 \
    fault = (bl_error_t){0};                                                                                           \
    assert_int_equal(call, BL_STAGE_REFUSE);                                                                           \
    assert_string_equal(bl_status_name(fault.status), bl_status_name(expected));                                       \
    assert_true(fault.text[0] != '\0');                                                                                \
    assert_memory_equal(&before, (stage), sizeof before);                                                              \
  } while (0)

static void test_a_step(void **state) {
  (void)state;
  bl_stage_step_t stage = make_stage();
  assert_int_equal(run(&stage, first, 1, 1, &fault), BL_STAGE_BEGIN);
  assert_int_equal(run(&stage, first, 1, 1, &fault), BL_STAGE_WAIT);
  assert_false(bl_stage_step_is_prepared(&stage));
  assert_int_equal(bl_stage_step_run_ended(&stage, true), BL_STAGE_KEEP);
  assert_true(bl_stage_step_is_prepared(&stage));
  assert_int_equal(run(&stage, first, 1, 1, &fault), BL_STAGE_ANSWER);

  bl_commit_t commit = {.step = 1, .attempt = 1, .scale = 0.5, .learning_rate = 0.1};
  assert_int_equal(bl_stage_step_commit(&stage, first, &commit, &fault), BL_STAGE_BEGIN);
  assert_int_equal(bl_stage_step_commit(&stage, first, &commit, &fault), BL_STAGE_WAIT);
  assert_refused(&stage, run(&stage, first, 2, 2, &fault), BL_EXHAUSTED);
  bl_stage_step_commit_ended(&stage);
  assert_int_equal(bl_stage_step_commit(&stage, first, &commit, &fault), BL_STAGE_ANSWER);
  assert_int_equal(stage.applied, 1);

  bl_commit_t other = commit;
  other.scale = 1;
  assert_refused(&stage, bl_stage_step_commit(&stage, first, &other, &fault), BL_PRECONDITION);
  other = commit;
  other.attempt = 2;
  assert_refused(&stage, bl_stage_step_commit(&stage, first, &other, &fault), BL_PRECONDITION);
  assert_int_equal(run(&stage, first, 2, 2, &fault), BL_STAGE_BEGIN);
}

static void test_runs_that_are_refused(void **state) {
  (void)state;
  bl_stage_step_t stage = {0};
  assert_true(bl_stage_step_takeover(&stage, first));
  assert_refused(&stage, run(&stage, first, 1, 1, &fault), BL_PRECONDITION); // not configured
  stage = make_stage();
  assert_refused(&stage, run(&stage, first, 2, 1, &fault), BL_PRECONDITION);  // not the next step
  assert_refused(&stage, run(&stage, second, 1, 1, &fault), BL_PRECONDITION); // has not taken over
  bl_run_id_t unprepared = {.kind = BL_RUN_TRAIN, .step = 1, .attempt = 1, .plan_version = 9};
  assert_refused(&stage, bl_stage_step_run(&stage, first, &unprepared, &fault), BL_PRECONDITION);
  vote(&stage, 1, 3);
  assert_refused(&stage, run(&stage, first, 1, 2, &fault), BL_PRECONDITION); // out of date
  assert_refused(&stage, run(&stage, first, 1, 4, &fault), BL_PRECONDITION); // another one is voted
  assert_true(bl_stage_step_takeover(&stage, second));
  assert_refused(&stage, run(&stage, first, 1, 5, &fault), BL_FENCED);
}

static void test_a_failed_run_is_not_run_again(void **state) {
  (void)state;
  bl_stage_step_t stage = make_stage();
  assert_int_equal(run(&stage, first, 1, 1, &fault), BL_STAGE_BEGIN);
  assert_int_equal(bl_stage_step_run_ended(&stage, false), BL_STAGE_FAILED);
  assert_refused(&stage, run(&stage, first, 1, 1, &fault), BL_PRECONDITION);
  assert_int_equal(run(&stage, first, 1, 2, &fault), BL_STAGE_BEGIN);
}

static void test_aborts(void **state) {
  (void)state;
  bl_stage_step_t stage = make_stage();
  bool dropped = true;
  // Of an attempt that has not come yet: it will be too late.
  assert_int_equal(bl_stage_step_abort(&stage, first, 1, 4, &dropped, &fault), BL_STAGE_ANSWER);
  assert_false(dropped);
  assert_refused(&stage, run(&stage, first, 1, 4, &fault), BL_PRECONDITION);
  // Of one that runs.
  assert_int_equal(run(&stage, first, 1, 5, &fault), BL_STAGE_BEGIN);
  assert_int_equal(bl_stage_step_abort(&stage, first, 1, 4, &dropped, &fault), BL_STAGE_ANSWER); // an older one
  assert_int_equal(stage.phase, BL_STAGE_RUNNING);
  assert_int_equal(bl_stage_step_abort(&stage, first, 1, 5, &dropped, &fault), BL_STAGE_BEGIN);
  assert_int_equal(bl_stage_step_abort(&stage, first, 1, 5, &dropped, &fault), BL_STAGE_WAIT);
  assert_refused(&stage, run(&stage, first, 1, 6, &fault), BL_PRECONDITION);
  assert_int_equal(bl_stage_step_run_ended(&stage, true), BL_STAGE_DROP); // it came to its end all the same
  assert_false(bl_stage_step_is_prepared(&stage));
  // Of a voted one.
  vote(&stage, 1, 6);
  assert_int_equal(bl_stage_step_abort(&stage, first, 1, 6, &dropped, &fault), BL_STAGE_ANSWER);
  assert_true(dropped);
  bl_commit_t commit = {.step = 1, .attempt = 6};
  assert_refused(&stage, bl_stage_step_commit(&stage, first, &commit, &fault), BL_PRECONDITION);
  // Of an applied one.
  vote(&stage, 1, 7);
  commit.attempt = 7;
  assert_int_equal(bl_stage_step_commit(&stage, first, &commit, &fault), BL_STAGE_BEGIN);
  bl_stage_step_commit_ended(&stage);
  assert_refused(&stage, bl_stage_step_abort(&stage, first, 1, 7, &dropped, &fault), BL_PRECONDITION);
}

// A training attempt with the next one offered behind it, to be applied with factor 1 and rate 0.1.
static bl_stage_decision_t run_on(bl_stage_step_t *stage, uint64_t step, uint64_t attempt, uint64_t next) {
  bl_run_id_t id = training(step, attempt);
  bl_offer_t offer = {.attempt = next, .scale = 1, .learning_rate = 0.1};
  return bl_stage_step_run_on(stage, first, &id, &offer, &fault);
}

static bl_commit_t as_offered(uint64_t step, uint64_t attempt) {
  return (bl_commit_t){.step = step, .attempt = attempt, .scale = 1, .learning_rate = 0.1};
}

static bl_stage_step_t make_ahead(void) {
  bl_stage_step_t stage = make_stage();
  assert_int_equal(run_on(&stage, 1, 1, 2), BL_STAGE_BEGIN);
  assert_int_equal(bl_stage_step_highest(&stage), 2);
  assert_int_equal(bl_stage_step_run_ended(&stage, true), BL_STAGE_KEEP);
  assert_true(bl_stage_step_go_on(&stage));
  assert_false(bl_stage_step_go_on(&stage));
  return stage;
}

static void test_a_step_ahead_is_confirmed(void **state) {
  (void)state;
  bl_stage_step_t stage = make_ahead();
  bl_run_id_t next = bl_stage_step_ahead(&stage);
  assert_int_equal(next.step, 2);
  assert_int_equal(next.attempt, 2);
  assert_true(bl_stage_step_is_prepared(&stage)); // attempt 1 still is
  assert_int_equal(run(&stage, first, 1, 1, &fault), BL_STAGE_ANSWER);
  bl_commit_t commit = as_offered(1, 1), other = commit;
  other.scale = 0.5;
  assert_refused(&stage, bl_stage_step_commit(&stage, first, &other, &fault), BL_PRECONDITION);
  assert_refused(&stage, bl_stage_step_snapshot(&stage, first, 0, &fault), BL_PRECONDITION);
  assert_int_equal(bl_stage_step_commit(&stage, first, &commit, &fault), BL_STAGE_ANSWER);
  assert_int_equal(bl_stage_step_commit(&stage, first, &commit, &fault), BL_STAGE_ANSWER);
  assert_int_equal(stage.applied, 1);
  // Attempt 2 is one like any other now, and takes the offer that comes with its own request.
  assert_int_equal(stage.phase, BL_STAGE_RUNNING);
  assert_int_equal(run_on(&stage, 2, 2, 3), BL_STAGE_WAIT);
  assert_int_equal(bl_stage_step_run_ended(&stage, true), BL_STAGE_KEEP);
  assert_true(bl_stage_step_go_on(&stage));
  // This one ends before its commit comes.
  assert_int_equal(bl_stage_step_run_ended(&stage, true), BL_STAGE_AHEAD);
  commit = as_offered(2, 2);
  assert_int_equal(bl_stage_step_commit(&stage, first, &commit, &fault), BL_STAGE_ANSWER);
  assert_int_equal(run(&stage, first, 3, 3, &fault), BL_STAGE_ANSWER);
}

static void test_a_failure_ahead_is_found_after_the_commit(void **state) {
  (void)state;
  bl_stage_step_t stage = make_ahead();
  assert_int_equal(bl_stage_step_run_ended(&stage, false), BL_STAGE_AHEAD);
  bl_commit_t commit = as_offered(1, 1);
  assert_int_equal(bl_stage_step_commit(&stage, first, &commit, &fault), BL_STAGE_ANSWER);
  assert_refused(&stage, run(&stage, first, 2, 2, &fault), BL_PRECONDITION);
  assert_int_equal(run(&stage, first, 2, 3, &fault), BL_STAGE_BEGIN);
}

static void test_a_step_ahead_is_taken_back(void **state) {
  (void)state;
  bool dropped;
  for (int how = 0; how < 3; how++) { // the attempt ahead runs, has voted, has failed
    bl_stage_step_t stage = make_ahead();
    bl_stage_outcome_t ended = how == 0 ? BL_STAGE_AHEAD : bl_stage_step_run_ended(&stage, how == 1);
    assert_int_equal(ended, BL_STAGE_AHEAD);
    assert_int_equal(bl_stage_step_abort(&stage, first, 1, 1, &dropped, &fault), BL_STAGE_BEGIN);
    if (how == 0) {
      assert_int_equal(stage.phase, BL_STAGE_STOPPING);
      assert_int_equal(bl_stage_step_abort(&stage, first, 1, 2, &dropped, &fault), BL_STAGE_WAIT);
      assert_int_equal(bl_stage_step_run_ended(&stage, true), BL_STAGE_UNDO);
    }
    assert_int_equal(stage.phase, BL_STAGE_UNDOING);
    assert_int_equal(bl_stage_step_abort(&stage, first, 1, 2, &dropped, &fault), BL_STAGE_WAIT);
    bl_commit_t commit = as_offered(1, 1);
    assert_refused(&stage, bl_stage_step_commit(&stage, first, &commit, &fault), BL_PRECONDITION);
    assert_refused(&stage, run(&stage, first, 1, 3, &fault), BL_PRECONDITION);
    bl_stage_step_undone(&stage);
    assert_int_equal(bl_stage_step_abort(&stage, first, 1, 2, &dropped, &fault), BL_STAGE_ANSWER);
    assert_int_equal(run(&stage, first, 1, 3, &fault), BL_STAGE_BEGIN);
    assert_int_equal(bl_stage_step_run_ended(&stage, true), BL_STAGE_KEEP);
    assert_false(bl_stage_step_go_on(&stage)); // nothing was offered behind this one
  }
}

static void test_offers_that_make_no_sense(void **state) {
  (void)state;
  bl_stage_step_t stage = make_stage();
  assert_refused(&stage, run_on(&stage, 1, 2, 2), BL_INVALID);
  bl_run_id_t look = {.kind = BL_RUN_VALIDATE, .attempt = 1, .plan_version = 1};
  bl_offer_t offer = {.attempt = 2};
  assert_refused(&stage, bl_stage_step_run_on(&stage, first, &look, &offer, &fault), BL_INVALID);
  // A stage that does not go on applies the step when it is told to.
  assert_int_equal(run_on(&stage, 1, 1, 2), BL_STAGE_BEGIN);
  assert_int_equal(bl_stage_step_run_ended(&stage, true), BL_STAGE_KEEP);
  bl_commit_t commit = {.step = 1, .attempt = 1, .scale = 0.5};
  assert_int_equal(bl_stage_step_commit(&stage, first, &commit, &fault), BL_STAGE_BEGIN);
  assert_false(bl_stage_step_go_on(&stage));
}

static void test_who_drives(void **state) {
  (void)state;
  bl_stage_step_t stage = {0};
  bl_driver_id_t same_epoch = {.epoch = 1, .id = 99}, nobody = {0};
  assert_false(bl_stage_step_takeover(&stage, nobody));
  assert_true(bl_stage_step_takeover(&stage, first));
  assert_true(bl_stage_step_takeover(&stage, first)); // asked again
  assert_false(bl_stage_step_takeover(&stage, same_epoch));
  assert_refused(&stage, bl_stage_step_check(&stage, same_epoch, &fault), BL_FENCED);
  assert_refused(&stage, bl_stage_step_check(&stage, second, &fault), BL_PRECONDITION);
  assert_true(bl_stage_step_takeover(&stage, second));
  assert_false(bl_stage_step_takeover(&stage, first));
  assert_refused(&stage, bl_stage_step_check(&stage, first, &fault), BL_FENCED);
  assert_int_equal(bl_stage_step_check(&stage, second, &fault), BL_STAGE_ANSWER);
}

static void test_configurations(void **state) {
  (void)state;
  bl_stage_step_t stage = make_stage();
  assert_int_equal(bl_stage_step_configure(&stage, first, JOB, &fault), BL_STAGE_ANSWER);
  assert_refused(&stage, bl_stage_step_configure(&stage, first, 0, &fault), BL_INVALID);
  vote(&stage, 1, 1);
  assert_refused(&stage, bl_stage_step_configure(&stage, first, 78, &fault), BL_PRECONDITION);
  assert_refused(&stage, bl_stage_step_release(&stage, first, &fault), BL_PRECONDITION);
  bl_commit_t commit = {.step = 1, .attempt = 1};
  assert_int_equal(bl_stage_step_commit(&stage, first, &commit, &fault), BL_STAGE_BEGIN);
  assert_refused(&stage, bl_stage_step_configure(&stage, first, 78, &fault), BL_EXHAUSTED);
  bl_stage_step_commit_ended(&stage);

  assert_int_equal(bl_stage_step_configure(&stage, first, 78, &fault), BL_STAGE_BEGIN);
  assert_int_equal(bl_stage_step_configure(&stage, first, 78, &fault), BL_STAGE_WAIT);
  assert_refused(&stage, bl_stage_step_configure(&stage, first, 79, &fault), BL_EXHAUSTED);
  assert_refused(&stage, run(&stage, first, 1, 2, &fault), BL_PRECONDITION);
  assert_int_equal(stage.applied, 0);
  assert_int_equal(stage.highest_attempt, 1); // never falls
  bl_stage_step_configure_ended(&stage, false, 0);
  assert_int_equal(stage.configured, 0);

  stage = make_stage();
  assert_int_equal(bl_stage_step_release(&stage, first, &fault), BL_STAGE_ANSWER);
  assert_int_equal(stage.configured, 0);
  assert_true(bl_driver_id_equal(stage.driver, first));
}

static bl_stage_decision_t prepare(bl_stage_step_t *stage, uint64_t version, uint64_t *replaces, bl_error_t *err) {
  bl_plan_record_t plan = {.version = version, .digest = version * 10};
  bl_stage_decision_t decision = bl_stage_step_plan(stage, first, BL_RUN_TRAIN, plan, replaces, err);
  if (decision == BL_STAGE_BEGIN) {
    bl_stage_step_plan_installed(stage, BL_RUN_TRAIN, plan);
  }
  return decision;
}

static void test_a_refused_plan_leaves_the_old_one(void **state) {
  (void)state;
  bl_stage_step_t stage = make_stage();
  uint64_t replaces = 9;
  vote(&stage, 1, 1);
  assert_refused(&stage, prepare(&stage, 2, &replaces, &fault), BL_PRECONDITION); // gradients are kept
  bool dropped;
  assert_int_equal(bl_stage_step_abort(&stage, first, 1, 1, &dropped, &fault), BL_STAGE_ANSWER);
  assert_int_equal(prepare(&stage, 2, &replaces, &fault), BL_STAGE_BEGIN);
  assert_int_equal(replaces, 0);
  assert_int_equal(prepare(&stage, 2, &replaces, &fault), BL_STAGE_ANSWER);
  // Another stage refused 2: the next proposal takes its place, and 1 still runs.
  assert_int_equal(prepare(&stage, 3, &replaces, &fault), BL_STAGE_BEGIN);
  assert_int_equal(replaces, 2);
  assert_refused(&stage, prepare(&stage, 2, &replaces, &fault), BL_PRECONDITION);
  bl_run_id_t id = training(1, 2);
  assert_int_equal(bl_stage_step_run(&stage, first, &id, &fault), BL_STAGE_BEGIN);
  assert_int_equal(bl_stage_step_run_ended(&stage, false), BL_STAGE_FAILED);
  // 1 has run, so 3 was refused somewhere: it is not kept.
  id = (bl_run_id_t){.kind = BL_RUN_TRAIN, .step = 1, .attempt = 3, .plan_version = 3};
  assert_refused(&stage, bl_stage_step_run(&stage, first, &id, &fault), BL_PRECONDITION);
  // Once 4 has run, 1 is gone.
  assert_int_equal(prepare(&stage, 4, &replaces, &fault), BL_STAGE_BEGIN);
  id.plan_version = 4;
  assert_int_equal(bl_stage_step_run(&stage, first, &id, &fault), BL_STAGE_BEGIN);
  assert_int_equal(bl_stage_step_run_ended(&stage, false), BL_STAGE_FAILED);
  assert_refused(&stage, run(&stage, first, 1, 4, &fault), BL_PRECONDITION);
}

// A plan that is in force, though it has not run yet, stays beside the next proposal.
static void test_a_plan_in_force_is_kept(void **state) {
  (void)state;
  bl_stage_step_t stage = make_stage();
  uint64_t replaces = 9;
  assert_int_equal(prepare(&stage, 2, &replaces, &fault), BL_STAGE_BEGIN);
  bl_plan_record_t plan = {.version = 3, .digest = 30, .policy = 2, .follows = 2};
  assert_int_equal(bl_stage_step_plan(&stage, first, BL_RUN_TRAIN, plan, &replaces, &fault), BL_STAGE_BEGIN);
  assert_int_equal(replaces, 1);
  bl_stage_step_plan_installed(&stage, BL_RUN_TRAIN, plan);
  assert_int_equal(stage.plans[BL_RUN_TRAIN][0].version, 2);
  assert_int_equal(stage.plans[BL_RUN_TRAIN][1].version, 3);
  bl_run_id_t id = {.kind = BL_RUN_TRAIN, .step = 1, .attempt = 1, .plan_version = 2};
  assert_int_equal(bl_stage_step_run(&stage, first, &id, &fault), BL_STAGE_BEGIN);
}

static void test_a_refusal_is_final(void **state) {
  (void)state;
  bl_stage_step_t stage = make_stage();
  uint64_t replaces;
  bl_plan_record_t plan = {.version = 2, .digest = 20};
  assert_int_equal(bl_stage_step_plan(&stage, first, BL_RUN_TRAIN, plan, &replaces, &fault), BL_STAGE_BEGIN);
  bl_stage_step_plan_refused(&stage, 2);
  assert_refused(&stage, prepare(&stage, 2, &replaces, &fault), BL_PRECONDITION); // repeated late
  assert_int_equal(prepare(&stage, 3, &replaces, &fault), BL_STAGE_BEGIN);
  bl_stage_step_plan_refused(&stage, 2);
  assert_int_equal(stage.plan_version, 3);
}

static void test_forward_only_runs(void **state) {
  (void)state;
  bl_stage_step_t stage = make_stage();
  uint64_t replaces;
  bl_plan_record_t plan = {.version = 2, .digest = 6};
  assert_int_equal(bl_stage_step_plan(&stage, first, BL_RUN_VALIDATE, plan, &replaces, &fault), BL_STAGE_BEGIN);
  bl_stage_step_plan_installed(&stage, BL_RUN_VALIDATE, plan);
  bl_run_id_t look = {.kind = BL_RUN_VALIDATE, .step = 0, .attempt = 1, .plan_version = 2};
  assert_int_equal(bl_stage_step_run(&stage, first, &look, &fault), BL_STAGE_BEGIN);
  assert_int_equal(bl_stage_step_run_ended(&stage, true), BL_STAGE_KEEP);
  assert_false(bl_stage_step_is_prepared(&stage));
  bl_commit_t commit = {.step = 1, .attempt = 1};
  assert_refused(&stage, bl_stage_step_commit(&stage, first, &commit, &fault), BL_PRECONDITION);
  // Its vote needs no undoing, that of a training attempt does.
  vote(&stage, 1, 2);
  look.attempt = 3;
  assert_refused(&stage, bl_stage_step_run(&stage, first, &look, &fault), BL_PRECONDITION);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_step),
      cmocka_unit_test(test_runs_that_are_refused),
      cmocka_unit_test(test_a_failed_run_is_not_run_again),
      cmocka_unit_test(test_aborts),
      cmocka_unit_test(test_a_step_ahead_is_confirmed),
      cmocka_unit_test(test_a_failure_ahead_is_found_after_the_commit),
      cmocka_unit_test(test_a_step_ahead_is_taken_back),
      cmocka_unit_test(test_offers_that_make_no_sense),
      cmocka_unit_test(test_who_drives),
      cmocka_unit_test(test_configurations),
      cmocka_unit_test(test_a_refused_plan_leaves_the_old_one),
      cmocka_unit_test(test_a_plan_in_force_is_kept),
      cmocka_unit_test(test_a_refusal_is_final),
      cmocka_unit_test(test_forward_only_runs),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
