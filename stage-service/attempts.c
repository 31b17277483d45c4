// SPDX-License-Identifier: Apache-2.0
#include "stage_core.h"

#include "sys/log.h"

#include <stdlib.h>
#include <string.h>

// ---- runs

static void run_work(bl_task_t *task) {
  bl_stage_t *stage = BL_TASK_OWNER(task, bl__work_t, task)->stage;
  bl_error_clear(&stage->run.err);
  bl__plans_bury(stage);
  bl_prepared_use(stage->running_plan, stage->engine);
  bl_status_t status =
      bl_executor_run(stage->engine, &stage->run_request, &stage->progress, &stage->vote, &stage->run.err);
  stage->run.err.status = status;
  bl_store_parking_t *parking = stage->running_plan->parking;
  stage->vote.device_count = parking != NULL ? stage->engine->training.stage_count : 0;
  for (uint32_t d = 0; d < stage->vote.device_count; d++) {
    stage->vote.leased_peaks[d] = bl_store_parking_peak(parking, d);
  }
  if (parking != NULL) {
    bl_store_parking_moved(parking, &stage->vote.counters.moved_bytes, &stage->vote.counters.moved_ns);
  }
}

static void run_done(bl_task_t *task) {
  bl_stage_t *stage = BL_TASK_OWNER(task, bl__work_t, task)->stage;
  const bl_error_t *err = &stage->run.err;
  bl_stage_outcome_t outcome = bl_stage_step_run_ended(&stage->step, err->status == BL_OK);
  if (outcome == BL_STAGE_FAILED) {
    bl_log(BL_LOG_ERROR, "the attempt failed: %s", err->text);
  }
  if (stage->options.observer.ran != NULL) {
    stage->options.observer.ran(stage->options.observer.context, outcome, err);
  }
}

// Whether what the stage is configured for can run this; the step machine asks whether it may.
static bl_status_t check_run(const bl_stage_t *stage, const bl_stage_run_request_t *request, bl_error_t *err) {
  if (stage->engine == NULL) {
    return BL_OK; // the step machine refuses
  }
  if (stage->step.phase != BL_STAGE_RUNNING && !stage->connected && bl_engine_peers(stage->engine, NULL, 0) > 0) {
    return bl_error_set(err, BL_PRECONDITION, "not connected to its peers");
  }
  if (stage->preparing) {
    return bl_error_set(err, BL_EXHAUSTED, "a plan is being prepared: ask again");
  }
  uint32_t seq = stage->engine->training.model.seq;
  if (request->token_count > seq) {
    return bl_error_set(err, BL_INVALID, "a context of %u tokens, the model takes %u", request->token_count, seq);
  }
  return BL_OK;
}

bl_stage_decision_t bl_stage_run(bl_stage_t *stage, bl_driver_id_t driver, const bl_stage_run_request_t *request,
                                 bl_error_t *err) {
  bl__stage_driven(stage);
  // An older driver is told that first: it must end, not repair the stage.
  if (bl_stage_check(stage, driver, err) == BL_STAGE_REFUSE || check_run(stage, request, err) != BL_OK) {
    return BL_STAGE_REFUSE;
  }
  bl_stage_decision_t decision = bl_stage_step_run(&stage->step, driver, &request->id, err);
  if (decision != BL_STAGE_BEGIN) {
    return decision;
  }
  if (request->token_count > 0) {
    memcpy(stage->context, request->tokens, request->token_count * sizeof *stage->context);
  }
  bl__plans_drop_forgotten(stage);
  stage->running_plan = *bl__plans_find(stage, request->id.plan_version);
  bl_store_parking_t *parking = stage->running_plan->parking;
  stage->engine->parking = parking != NULL ? bl_store_parking_seam(parking) : NULL;
  if (parking != NULL) {
    bl_store_parking_set_step(parking, request->id.step);
  }
  stage->run_request = (bl_run_t){.plan = stage->running_plan->plan,
                                  .id = request->id,
                                  .first_window = request->first_window,
                                  .tokens = stage->context,
                                  .token_count = request->token_count,
                                  .draw_seed = request->draw_seed,
                                  .temperature = request->temperature};
  bl_log_step(request->id.step, request->id.attempt);
  atomic_store(&stage->progress.done, 0);
  atomic_store(&stage->progress.slots, 0);
  atomic_store(&stage->progress.waiting_ns, 0);
  atomic_store(&stage->progress.cancelled, false);
  bl_worker_submit(stage->worker, &stage->run.task);
  return BL_STAGE_BEGIN;
}

// ---- commits and aborts

static void commit_work(bl_task_t *task) {
  bl_stage_t *stage = BL_TASK_OWNER(task, bl__work_t, task)->stage;
  const bl_commit_t *commit = &stage->step.last_commit; // fixed while it is being applied
  bl_error_clear(&stage->commit.err);
  stage->commit.err.status =
      bl_executor_update(stage->engine, commit->step, commit->scale, commit->learning_rate, &stage->commit.err);
}

static void commit_done(bl_task_t *task) {
  bl_stage_t *stage = BL_TASK_OWNER(task, bl__work_t, task)->stage;
  if (stage->commit.err.status != BL_OK) {
    // A commit that was decided cannot be taken back, and these weights are no longer those of the other stages.
    bl_log(BL_LOG_ERROR, "step %lu could not be applied, ending: %s", stage->step.last_commit.step,
           stage->commit.err.text);
    exit(bl_status_exit_code(BL_INTERNAL));
  }
  bl_stage_step_commit_ended(&stage->step);
  if (stage->options.observer.committed != NULL) {
    stage->options.observer.committed(stage->options.observer.context);
  }
}

bl_stage_decision_t bl_stage_commit(bl_stage_t *stage, bl_driver_id_t driver, const bl_commit_t *commit,
                                    bl_error_t *err) {
  bl__stage_driven(stage);
  bl_stage_decision_t decision = bl_stage_step_commit(&stage->step, driver, commit, err);
  if (decision == BL_STAGE_BEGIN) {
    bl_vote_t kept = stage->commit_vote;
    stage->commit_vote = stage->vote;
    stage->vote = kept;
    bl_worker_submit(stage->worker, &stage->commit.task);
  }
  return decision;
}

bl_stage_decision_t bl_stage_abort(bl_stage_t *stage, bl_driver_id_t driver, uint64_t next, uint64_t attempt,
                                   bl_error_t *err) {
  bl__stage_driven(stage);
  bool dropped;
  bl_stage_decision_t decision = bl_stage_step_abort(&stage->step, driver, next, attempt, &dropped, err);
  if (decision == BL_STAGE_BEGIN) {
    bl_executor_interrupt(stage->engine, &stage->progress);
  }
  return decision;
}

void bl__attempts_init(bl_stage_t *stage) {
  stage->run.stage = stage;
  stage->commit.stage = stage;
  bl_task_init(&stage->run.task, run_work, run_done);
  bl_task_init(&stage->commit.task, commit_work, commit_done);
}
