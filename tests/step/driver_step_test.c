// SPDX-License-Identifier: Apache-2.0
// Verifies the driver's side of the step protocol: what a new driver does with everything a predecessor may have left,
// that requests stand until answered, and that late answers change nothing.
#include "step/driver_step.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#define STAGES 2

typedef struct fixture {
  bl_driver_step_t step;
  bl_driver_peer_t peers[STAGES];
} fixture_t;

static void begin(fixture_t *fixture) {
  bl_driver_step_init(&fixture->step, (bl_driver_id_t){.epoch = 5, .id = 1}, fixture->peers, STAGES);
}

static bl_stage_report_t at(uint64_t applied, uint64_t attempt) {
  bl_stage_report_t report = {.ours = true, .applied = applied, .highest_attempt = attempt};
  if (applied > 0) {
    report.last_commit = (bl_commit_t){.step = applied, .attempt = attempt, .scale = 0.5, .learning_rate = 0.1};
  }
  return report;
}

static bl_stage_report_t prepared(bl_stage_report_t report, uint64_t attempt) {
  report.prepared = true;
  report.highest_attempt = attempt;
  report.run = (bl_run_id_t){.step = report.applied + 1, .attempt = attempt};
  return report;
}

static void take_over(fixture_t *fixture, bl_stage_report_t zero, bl_stage_report_t one) {
  begin(fixture);
  bl_driver_step_taken(&fixture->step, 0, 5, true, &zero);
  assert_int_equal(fixture->step.phase, BL_DRIVER_TAKEOVER); // not before all have accepted
  assert_int_equal(bl_driver_step_request(&fixture->step, 0).kind, BL_DRIVER_REQUEST_NONE);
  assert_int_equal(bl_driver_step_request(&fixture->step, 1).kind, BL_DRIVER_REQUEST_TAKEOVER);
  bl_driver_step_taken(&fixture->step, 1, 5, true, &one);
}

static void test_fresh_stages(void **state) {
  (void)state;
  fixture_t fixture;
  take_over(&fixture, at(0, 0), at(0, 0));
  assert_int_equal(fixture.step.phase, BL_DRIVER_BOUNDARY);
}

static void test_a_step_applied_by_one_is_applied_by_all(void **state) {
  (void)state;
  fixture_t fixture;
  take_over(&fixture, at(3, 8), prepared(at(2, 7), 8));
  assert_int_equal(fixture.step.phase, BL_DRIVER_COMMITTING);
  bl_driver_request_t request = bl_driver_step_request(&fixture.step, 1);
  assert_int_equal(request.kind, BL_DRIVER_REQUEST_COMMIT);
  assert_int_equal(request.commit.step, 3);
  assert_int_equal(request.commit.attempt, 8);
  assert_true(request.commit.scale == 0.5 && request.commit.learning_rate == 0.1);
  bl_driver_step_committed(&fixture.step, 1, 3);
  bl_driver_step_committed(&fixture.step, 0, 3);
  assert_int_equal(fixture.step.phase, BL_DRIVER_BOUNDARY);
  assert_int_equal(fixture.step.applied, 3);
  bl_driver_step_run(&fixture.step, BL_RUN_TRAIN);
  assert_int_equal(fixture.step.run.attempt, 9);
  assert_int_equal(fixture.step.run.step, 4);
}

static void test_an_attempt_prepared_on_all_is_decided(void **state) {
  (void)state;
  fixture_t fixture;
  take_over(&fixture, prepared(at(2, 7), 8), prepared(at(2, 7), 8));
  assert_int_equal(fixture.step.phase, BL_DRIVER_DECIDING);
  assert_int_equal(fixture.step.run.attempt, 8);
}

static void test_anything_else_is_aborted(void **state) {
  (void)state;
  const bl_stage_report_t left[][STAGES] = {
      {prepared(at(2, 7), 8), at(2, 7)},              // prepared on one only
      {prepared(at(2, 7), 8), prepared(at(2, 7), 9)}, // different attempts
      {at(2, 7), at(2, 7)},                           // perhaps running
  };
  for (size_t i = 0; i < sizeof left / sizeof left[0]; i++) {
    fixture_t fixture;
    take_over(&fixture, left[i][0], left[i][1]);
    assert_int_equal(fixture.step.phase, BL_DRIVER_ABORTING);
    uint64_t attempt = fixture.step.highest_attempt;
    for (size_t s = 0; s < STAGES; s++) {
      bl_driver_request_t request = bl_driver_step_request(&fixture.step, s);
      assert_int_equal(request.kind, BL_DRIVER_REQUEST_ABORT);
      assert_int_equal(request.next, 3);
      assert_int_equal(request.attempt, attempt);
      bl_driver_step_aborted(&fixture.step, s, attempt);
    }
    assert_int_equal(fixture.step.phase, BL_DRIVER_BOUNDARY);
  }
}

static void expect_end(bl_stage_report_t zero, bl_stage_report_t one, bl_driver_end_t end, size_t stage,
                       bl_status_t status) {
  fixture_t fixture;
  take_over(&fixture, zero, one);
  assert_int_equal(fixture.step.phase, BL_DRIVER_ENDED);
  assert_int_equal(fixture.step.end, end);
  assert_int_equal(fixture.step.end_stage, stage);
  bl_error_t err;
  char name[32];
  snprintf(name, sizeof name, "stage %zu of replica 1", stage);
  assert_int_equal(bl_driver_step_explain(&fixture.step, name, &err), status);
  assert_non_null(strstr(err.text, name));
}

static void test_what_cannot_be_continued(void **state) {
  (void)state;
  bl_stage_report_t stranger = {.applied = 9};
  bl_stage_report_t other = at(3, 8);
  other.last_commit.scale = 1;
  expect_end(at(3, 8), stranger, BL_DRIVER_END_LOST, 1, BL_DATA_LOSS);              // restarted
  expect_end(at(3, 8), at(2, 7), BL_DRIVER_END_LOST, 1, BL_DATA_LOSS);              // without its vote
  expect_end(at(3, 8), prepared(at(2, 6), 7), BL_DRIVER_END_LOST, 1, BL_DATA_LOSS); // with another one
  expect_end(prepared(at(1, 6), 8), at(3, 8), BL_DRIVER_END_LOST, 0, BL_DATA_LOSS); // two steps behind
  expect_end(at(3, 8), other, BL_DRIVER_END_DIVERGED, 1, BL_INTERNAL);
}

// Where there is a checkpoint to begin from, a stage that lost the run ends no run: attempts are given up, and the shell
// configures all stages anew.
static void test_what_is_lost_may_start_over(void **state) {
  (void)state;
  bl_stage_report_t stranger = {.highest_attempt = 2}, behind = at(2, 7), reports[] = {stranger, behind};
  for (size_t i = 0; i < sizeof reports / sizeof reports[0]; i++) {
    fixture_t fixture;
    bl_stage_report_t ahead = at(3, 8);
    begin(&fixture);
    fixture.step.may_start_over = true;
    bl_driver_step_taken(&fixture.step, 0, 5, true, &ahead);
    bl_driver_step_taken(&fixture.step, 1, 5, true, &reports[i]);
    assert_int_equal(fixture.step.phase, BL_DRIVER_ABORTING);
    assert_true(fixture.step.starts_over);
    assert_int_equal(fixture.step.end_stage, 1);
    bl_driver_step_aborted(&fixture.step, 0, 8);
    bl_driver_step_aborted(&fixture.step, 1, 8);
    assert_int_equal(fixture.step.phase, BL_DRIVER_BOUNDARY);
    bl_driver_step_reset(&fixture.step, 1);
    bl_driver_step_run(&fixture.step, BL_RUN_TRAIN);
    assert_int_equal(fixture.step.run.step, 2);
    assert_int_equal(fixture.step.run.attempt, 9); // never an attempt that a stage has seen
  }
}

static void test_stages_of_another_job_are_stopped_first(void **state) {
  (void)state;
  fixture_t fixture;
  bl_stage_report_t stranger = {.applied = 9, .highest_attempt = 30};
  take_over(&fixture, at(0, 0), stranger);
  assert_int_equal(fixture.step.phase, BL_DRIVER_ABORTING);
  assert_int_equal(bl_driver_step_request(&fixture.step, 1).next, 10);
  bl_driver_step_aborted(&fixture.step, 0, 30);
  bl_driver_step_aborted(&fixture.step, 1, 30);
  bl_driver_step_reset(&fixture.step, 0);
  bl_driver_step_run(&fixture.step, BL_RUN_TRAIN);
  assert_int_equal(fixture.step.run.step, 1);
  assert_int_equal(fixture.step.run.attempt, 31);
}

static void test_a_declined_takeover_tries_a_higher_epoch(void **state) {
  (void)state;
  fixture_t fixture;
  begin(&fixture);
  bl_stage_report_t report = at(0, 0);
  bl_driver_step_taken(&fixture.step, 0, 5, true, &report);
  bl_stage_report_t refusal = {.epoch = 8};
  bl_driver_step_taken(&fixture.step, 1, 5, false, &refusal);
  assert_int_equal(fixture.step.id.epoch, 9);
  assert_int_equal(bl_driver_step_request(&fixture.step, 0).kind, BL_DRIVER_REQUEST_TAKEOVER); // also who had accepted
  bl_driver_step_taken(&fixture.step, 1, 5, true, &report);                                    // late, of the old epoch
  assert_false(fixture.peers[1].answered);
}

static void test_requests_stand_until_answered(void **state) {
  (void)state;
  fixture_t fixture;
  take_over(&fixture, at(0, 0), at(0, 0));
  bl_driver_step_run(&fixture.step, BL_RUN_TRAIN);
  bl_driver_request_t run = bl_driver_step_request(&fixture.step, 0), again = bl_driver_step_request(&fixture.step, 0);
  assert_true(bl_driver_request_equal(&run, &again));
  bl_driver_step_voted(&fixture.step, 0, 1);
  bl_driver_step_voted(&fixture.step, 0, 1); // doubled
  assert_int_equal(fixture.step.phase, BL_DRIVER_RUNNING);
  bl_driver_step_voted(&fixture.step, 1, 1);
  assert_int_equal(fixture.step.phase, BL_DRIVER_DECIDING);
  bl_driver_step_commit(&fixture.step, 1, 0.1);
  bl_driver_step_committed(&fixture.step, 0, 1);
  // From here on only the commit is asked for, whatever arrives late.
  bl_driver_step_run_failed(&fixture.step, 1, 1);
  bl_driver_step_aborted(&fixture.step, 1, 1);
  bl_driver_step_refused(&fixture.step, 1, &run, BL_PRECONDITION);
  assert_int_equal(fixture.step.phase, BL_DRIVER_COMMITTING);
  assert_int_equal(bl_driver_step_request(&fixture.step, 1).kind, BL_DRIVER_REQUEST_COMMIT);
  bl_driver_step_committed(&fixture.step, 1, 1);
  assert_int_equal(fixture.step.phase, BL_DRIVER_BOUNDARY);
}

static void test_refusals(void **state) {
  (void)state;
  fixture_t fixture;
  take_over(&fixture, at(0, 0), at(0, 0));
  bl_driver_step_run(&fixture.step, BL_RUN_TRAIN);
  bl_driver_request_t run = bl_driver_step_request(&fixture.step, 1);
  bl_driver_step_refused(&fixture.step, 1, &run, BL_PRECONDITION);
  assert_int_equal(fixture.step.phase, BL_DRIVER_ABORTING);
  bl_driver_step_aborted(&fixture.step, 0, 1);
  bl_driver_step_aborted(&fixture.step, 1, 1);
  bl_driver_step_run(&fixture.step, BL_RUN_TRAIN);
  assert_int_equal(fixture.step.run.attempt, 2);
  bl_driver_step_refused(&fixture.step, 1, &run, BL_FENCED); // also a late one: there is a newer driver
  assert_int_equal(fixture.step.end, BL_DRIVER_END_FENCED);
  bl_error_t err;
  assert_int_equal(bl_driver_step_explain(&fixture.step, "stage 1", &err), BL_FENCED);
}

static void test_forward_only_attempts_leave_no_trace(void **state) {
  (void)state;
  fixture_t fixture;
  take_over(&fixture, at(2, 7), at(2, 7));
  bl_driver_step_aborted(&fixture.step, 0, 7);
  bl_driver_step_aborted(&fixture.step, 1, 7);
  bl_driver_step_run(&fixture.step, BL_RUN_VALIDATE);
  assert_int_equal(fixture.step.run.step, 2);
  bl_driver_step_voted(&fixture.step, 0, 8);
  bl_driver_step_voted(&fixture.step, 1, 8);
  bl_driver_step_close(&fixture.step);
  assert_int_equal(fixture.step.phase, BL_DRIVER_BOUNDARY);
  bl_driver_step_run(&fixture.step, BL_RUN_TRAIN);
  assert_int_equal(fixture.step.run.step, 3);
  assert_int_equal(fixture.step.run.attempt, 9);
}

static bl_stage_report_t keeping(uint64_t older, uint64_t newer) {
  bl_stage_report_t report = at(0, 0);
  report.plan_version = newer > older ? newer : older;
  report.plans[0] = (bl_plan_record_t){.version = older, .digest = older * 10, .policy = older};
  report.plans[1] = (bl_plan_record_t){.version = newer, .digest = newer * 10, .policy = newer};
  return report;
}

static void test_the_plan_in_force_is_the_newest_that_all_keep(void **state) {
  (void)state;
  fixture_t fixture;
  take_over(&fixture, keeping(3, 5), keeping(3, 5));
  assert_int_equal(fixture.step.plans[BL_RUN_TRAIN].version, 5);
  take_over(&fixture, keeping(3, 5), keeping(3, 0));
  assert_int_equal(fixture.step.plans[BL_RUN_TRAIN].version, 3);
  take_over(&fixture, keeping(5, 0), keeping(3, 5)); // one runs it already
  assert_int_equal(fixture.step.plans[BL_RUN_TRAIN].version, 5);
  take_over(&fixture, keeping(0, 0), keeping(1, 0)); // a predecessor's first, which not all have
  assert_int_equal(fixture.step.plans[BL_RUN_TRAIN].version, 0);
  bl_stage_report_t other = keeping(3, 5);
  other.plans[1].digest = 7;
  take_over(&fixture, keeping(3, 5), other);
  assert_int_equal(fixture.step.plans[BL_RUN_TRAIN].version, 3);
  assert_int_equal(fixture.step.plan_version, 5);
}

static void test_a_plan_is_in_force_when_all_agree(void **state) {
  (void)state;
  fixture_t fixture;
  take_over(&fixture, keeping(3, 0), keeping(3, 4));
  bl_driver_step_t *step = &fixture.step;
  bl_driver_step_prepare(step, BL_RUN_TRAIN, 99, 4);
  bl_driver_request_t request = bl_driver_step_request(step, 1);
  assert_int_equal(request.kind, BL_DRIVER_REQUEST_PREPARE);
  assert_int_equal(request.plan.version, 5);
  assert_int_equal(request.plan.follows, 3);
  assert_int_equal(request.plan.policy, 4);
  bl_driver_step_prepared(step, 0, 5);
  bl_driver_step_prepared(step, 1, 4); // a late answer
  assert_int_equal(step->phase, BL_DRIVER_PREPARING);
  bl_driver_step_prepared(step, 1, 5);
  assert_int_equal(step->phase, BL_DRIVER_BOUNDARY);
  assert_false(step->proposal_refused);
  assert_int_equal(step->plans[BL_RUN_TRAIN].version, 5);

  bl_driver_step_prepare(step, BL_RUN_TRAIN, 100, 5);
  bl_driver_step_prepared(step, 0, 6);
  request = bl_driver_step_request(step, 1);
  bl_driver_step_refused(step, 1, &request, BL_PRECONDITION);
  assert_int_equal(step->phase, BL_DRIVER_BOUNDARY);
  assert_true(step->proposal_refused);
  assert_int_equal(step->refuser, 1);
  assert_int_equal(step->plans[BL_RUN_TRAIN].version, 5);
  bl_driver_step_run(step, BL_RUN_TRAIN);
  assert_int_equal(step->run.plan_version, 5);
}

static void vote_all(bl_driver_step_t *step) {
  for (size_t s = 0; s < STAGES; s++) {
    bl_driver_step_voted(step, s, step->run.attempt);
  }
  assert_int_equal(step->phase, BL_DRIVER_DECIDING);
}

static void test_an_offer_is_met_or_the_attempt_given_up(void **state) {
  (void)state;
  fixture_t fixture;
  bl_driver_step_t *step = &fixture.step;
  take_over(&fixture, at(0, 0), at(0, 0));
  bl_driver_step_run_on(step, 1, 0.1);
  bl_driver_request_t request = bl_driver_step_request(step, 0);
  assert_int_equal(request.run.attempt, 1);
  assert_int_equal(request.offer.attempt, 2);
  vote_all(step);
  assert_true(bl_driver_step_commit(step, 1, 0.1));
  bl_driver_step_committed(step, 0, 1);
  bl_driver_step_committed(step, 1, 1);
  assert_int_equal(step->phase, BL_DRIVER_BOUNDARY);
  assert_int_equal(step->offer.attempt, 2);
  bl_driver_step_run_on(step, 1, 0.1);
  assert_int_equal(step->run.attempt, 2);
  assert_int_equal(step->run.step, 2);
  assert_int_equal(step->offer.attempt, 3);
  vote_all(step);
  assert_false(bl_driver_step_commit(step, 0.5, 0.1));
  request = bl_driver_step_request(step, 1);
  assert_int_equal(request.kind, BL_DRIVER_REQUEST_ABORT);
  assert_int_equal(request.next, 2);
  assert_int_equal(request.attempt, 3);
  bl_driver_step_aborted(step, 0, 3);
  bl_driver_step_aborted(step, 1, 3);
  bl_driver_step_run(step, BL_RUN_TRAIN);
  assert_int_equal(step->run.attempt, 4);
  assert_int_equal(step->run.step, 2);
  assert_int_equal(bl_driver_step_request(step, 0).offer.attempt, 0);
}

static void test_what_a_predecessor_let_begin_is_given_up(void **state) {
  (void)state;
  fixture_t fixture;
  bl_driver_step_t *step = &fixture.step;
  bl_stage_report_t ahead = prepared(at(2, 7), 8);
  ahead.highest_attempt = 9;
  ahead.ahead = (bl_offer_t){.attempt = 9, .scale = 1, .learning_rate = 0.1};
  take_over(&fixture, ahead, prepared(at(2, 7), 8)); // one has gone on, the other has not
  assert_int_equal(step->phase, BL_DRIVER_DECIDING);
  assert_true(bl_driver_step_commit(step, 1, 0.1));
  bl_driver_step_committed(step, 0, 3);
  bl_driver_step_committed(step, 1, 3);
  bl_driver_request_t request = bl_driver_step_request(step, 0);
  assert_int_equal(request.kind, BL_DRIVER_REQUEST_ABORT);
  assert_int_equal(request.next, 4);
  assert_int_equal(request.attempt, 9);

  take_over(&fixture, ahead, prepared(at(2, 7), 8));
  assert_false(bl_driver_step_commit(step, 0.5, 0.1));
  assert_int_equal(bl_driver_step_request(step, 0).next, 3);

  // One has the commit already, and runs the attempt that follows.
  bl_stage_report_t further = at(3, 8);
  further.highest_attempt = 9;
  further.last_commit.attempt = 8;
  take_over(&fixture, further, ahead);
  assert_int_equal(step->phase, BL_DRIVER_COMMITTING);
  bl_driver_step_committed(step, 0, 3);
  bl_driver_step_committed(step, 1, 3);
  assert_int_equal(step->phase, BL_DRIVER_ABORTING);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_fresh_stages),
      cmocka_unit_test(test_a_step_applied_by_one_is_applied_by_all),
      cmocka_unit_test(test_an_attempt_prepared_on_all_is_decided),
      cmocka_unit_test(test_anything_else_is_aborted),
      cmocka_unit_test(test_what_cannot_be_continued),
      cmocka_unit_test(test_what_is_lost_may_start_over),
      cmocka_unit_test(test_stages_of_another_job_are_stopped_first),
      cmocka_unit_test(test_a_declined_takeover_tries_a_higher_epoch),
      cmocka_unit_test(test_requests_stand_until_answered),
      cmocka_unit_test(test_refusals),
      cmocka_unit_test(test_forward_only_attempts_leave_no_trace),
      cmocka_unit_test(test_the_plan_in_force_is_the_newest_that_all_keep),
      cmocka_unit_test(test_a_plan_is_in_force_when_all_agree),
      cmocka_unit_test(test_an_offer_is_met_or_the_attempt_given_up),
      cmocka_unit_test(test_what_a_predecessor_let_begin_is_given_up),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
