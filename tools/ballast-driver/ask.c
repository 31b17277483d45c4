// SPDX-License-Identifier: Apache-2.0
#include "driver_core.h"

#include "sys/clock.h"
#include "sys/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// A call in flight. Its answer is passed to the step machine whenever it arrives. `number` shows whether it is still
// the stage's current call.
typedef struct asked {
  bl_remote_t *stage;
  bl_driver_request_t request;
  uint64_t number;
} asked_t;

static void keep_vote(bl_driver_t *driver, bl_rank_vote_t *to, const bl_rank_vote_t *from) {
  if (bl_rank_vote_copy(to, from) != BL_OK) {
    bl_error_t err;
    (void)bl_error_set(&err, BL_EXHAUSTED, "no memory for votes");
    bl__driver_fail(driver, &err);
  }
}

static void hear_takeover(bl_remote_t *stage, const bl_driver_request_t *request, const bl_stage_answer_t *answer) {
  bl_driver_t *driver = stage->driver;
  const bl_stage_said_t *said = &answer->said;
  bl_configure_request_t has = stage->configuration;
  has.resume_digest = said->resumed;
  stage->resumed = said->resumed;
  bl_stage_report_t report = {.epoch = said->epoch,
                              .ours = said->configured == bl_configure_request_digest(&has),
                              .applied = said->applied,
                              .highest_attempt = said->highest_attempt,
                              .prepared = said->prepared,
                              .ahead = said->ahead,
                              .last_commit = said->last_commit,
                              .plan_version = said->plan_version};
  memcpy(report.plans, said->plans, sizeof report.plans);
  if (said->prepared) {
    report.run = (bl_run_id_t){.kind = BL_RUN_TRAIN,
                               .step = said->vote.step,
                               .attempt = said->vote.attempt,
                               .plan_version = said->vote_plan_version};
    keep_vote(driver, &stage->vote, &said->vote);
  }
  if (said->last_commit.step > 0) {
    keep_vote(driver, &stage->last_vote, &said->last_vote);
  }
  memcpy(stage->policy_histories, said->policy_histories, sizeof stage->policy_histories);
  if (!answer->accepted) {
    char name[BL__STAGE_NAME_BYTES];
    bl_log(BL_LOG_WARNING, "%s follows a driver of epoch %" PRIu64 ", trying a higher one", bl__stage_name(stage, name),
           said->epoch);
  }
  bl_driver_step_taken(&driver->step, stage->index, request->driver.epoch, answer->accepted, &report);
}

static void hear_vote(bl_remote_t *stage, const bl_driver_request_t *request, const bl_stage_answer_t *answer) {
  bl_driver_t *driver = stage->driver;
  if (driver->step.phase == BL_DRIVER_RUNNING && driver->step.run.attempt == request->run.attempt) {
    keep_vote(driver, &stage->vote, &answer->vote);
    stage->token = answer->token;
  }
  bl_driver_step_voted(&driver->step, stage->index, request->run.attempt);
}

static void note_failure(bl_driver_t *driver, const bl_remote_t *stage, const bl_driver_request_t *request,
                         const bl_error_t *err) {
  if (driver->step.phase != BL_DRIVER_RUNNING || driver->step.run.attempt != request->run.attempt) {
    return; // the attempt was already aborted, and only the first cause is reported
  }
  char name[BL__STAGE_NAME_BYTES];
  const char *cause = stage->cause[0] != '\0' ? stage->cause : stage->silence;
  bool lost_before = err->status == BL_PRECONDITION && cause[0] != '\0';
  driver->attempts.failures++;
  (void)bl_error_set(&driver->attempts.failure, lost_before ? BL_UNAVAILABLE : err->status,
                     "step %" PRIu64 ", attempt %" PRIu64 " failed on %s: %s", request->run.step, request->run.attempt,
                     bl__stage_name(stage, name), lost_before ? cause : err->text);
  bl_log(BL_LOG_WARNING, "%s", driver->attempts.failure.text);
}

// The call was answered with an error.
static void hear_error(bl_remote_t *stage, const bl_driver_request_t *request, const bl_error_t *err) {
  bl_driver_t *driver = stage->driver;
  switch (err->status) {
  case BL_UNAVAILABLE:
  case BL_DEADLINE:
    // The call was lost, or the stage has lost a peer. Both are retried once the stage is known to be alive.
    if (stage->cause[0] == '\0') {
      snprintf(stage->cause, sizeof stage->cause, "%s", err->text);
    }
    bl__presence_doubt(stage);
    stage->ask_again_ms = bl__driver_now_ms(driver) + BL__RETRY_MS;
    return;
  case BL_EXHAUSTED: // busy with something that ends by itself
    stage->ask_again_ms = bl__driver_now_ms(driver) + BL__RETRY_MS;
    return;
  case BL_FENCED:
  case BL_PRECONDITION:
    if (request->kind == BL_DRIVER_REQUEST_PREPARE && err->status == BL_PRECONDITION) {
      bl__plan_refused(stage, request, err);
      return;
    }
    if (request->kind == BL_DRIVER_REQUEST_RUN && err->status == BL_PRECONDITION) {
      note_failure(driver, stage, request, err);
    }
    bl_driver_step_refused(&driver->step, stage->index, request, err->status);
    return;
  default:
    break;
  }
  if (request->kind == BL_DRIVER_REQUEST_RUN) {
    note_failure(driver, stage, request, err);
    bl_driver_step_run_failed(&driver->step, stage->index, request->run.attempt);
    return;
  }
  if (request->kind == BL_DRIVER_REQUEST_PREPARE) {
    bl__plan_refused(stage, request, err);
    return;
  }
  char name[BL__STAGE_NAME_BYTES];
  bl_error_t failure = *err;
  (void)bl_error_prefix(&failure, "%s", bl__stage_name(stage, name));
  bl__driver_fail(driver, &failure);
}

static void heard(const bl_stage_answer_t *answer, void *context) {
  asked_t *asked = context;
  bl_remote_t *stage = asked->stage;
  bl_driver_t *driver = stage->driver;
  bl_driver_request_t request = asked->request;
  bool present = asked->number == stage->ask_number;
  free(asked);
  if (present) {
    stage->asked.kind = BL_DRIVER_REQUEST_NONE;
  }
  if (driver->state >= BL__RUN_STOPPING) {
    return;
  }
  if (answer->err->status != BL_OK) {
    if (present || answer->err->status == BL_FENCED) {
      hear_error(stage, &request, answer->err);
    }
  } else {
    stage->cause[0] = stage->silence[0] = '\0';
    switch (request.kind) {
    case BL_DRIVER_REQUEST_TAKEOVER:
      hear_takeover(stage, &request, answer);
      break;
    case BL_DRIVER_REQUEST_PREPARE:
      if (answer->refusal.status != BL_OK) {
        bl__plan_refused(stage, &request, &answer->refusal);
      } else {
        bl_driver_step_prepared(&driver->step, stage->index, request.plan.version);
      }
      break;
    case BL_DRIVER_REQUEST_RUN:
      hear_vote(stage, &request, answer);
      break;
    case BL_DRIVER_REQUEST_COMMIT:
      bl_driver_step_committed(&driver->step, stage->index, request.commit.step);
      break;
    case BL_DRIVER_REQUEST_ABORT:
      bl_driver_step_aborted(&driver->step, stage->index, request.attempt);
      break;
    case BL_DRIVER_REQUEST_NONE:
      break;
    }
  }
  bl__driver_pump(driver);
}

static void ask(bl_remote_t *stage, const bl_driver_request_t *request) {
  bl_driver_t *driver = stage->driver;
  asked_t *asked = malloc(sizeof *asked);
  if (asked == NULL) {
    stage->ask_again_ms = bl__driver_now_ms(driver) + BL__RETRY_MS;
    return;
  }
  stage->asked = *request;
  stage->ask_number = ++driver->next_ask;
  *asked = (asked_t){.stage = stage, .request = *request, .number = stage->ask_number};
  switch (request->kind) {
  case BL_DRIVER_REQUEST_TAKEOVER:
    bl_stage_client_takeover(stage->client, request->driver, driver->options.job->name, driver->address, heard, asked);
    break;
  case BL_DRIVER_REQUEST_PREPARE: {
    bl_stage_plan_text_t text = bl__plan_text(driver, request);
    bl_stage_client_prepare(stage->client, request->driver, &text, heard, asked);
    break;
  }
  case BL_DRIVER_REQUEST_RUN: {
    bl_stage_run_text_t text = bl__run_text(driver, request);
    bl_stage_client_run(stage->client, request->driver, &text, heard, asked);
    break;
  }
  case BL_DRIVER_REQUEST_COMMIT:
    bl_stage_client_commit(stage->client, request->driver, &request->commit, heard, asked);
    break;
  case BL_DRIVER_REQUEST_ABORT:
    bl_stage_client_abort(stage->client, request->driver, request->next, request->attempt, heard, asked);
    break;
  case BL_DRIVER_REQUEST_NONE:
    free(asked);
    break;
  }
}

void bl__ask_all(bl_driver_t *driver) {
  for (size_t i = 0; i < driver->stage_count; i++) {
    bl_remote_t *stage = &driver->stages[i];
    bl_driver_request_t request = bl_driver_step_request(&driver->step, i);
    if (request.kind == BL_DRIVER_REQUEST_NONE) {
      continue;
    }
    bool under_way = stage->asked.kind != BL_DRIVER_REQUEST_NONE && bl_driver_request_equal(&stage->asked, &request);
    bool other = stage->asked.kind != BL_DRIVER_REQUEST_NONE && !under_way;
    if (!under_way && (other || bl__driver_now_ms(driver) >= stage->ask_again_ms)) {
      ask(stage, &request);
    }
  }
}
