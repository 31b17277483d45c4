// SPDX-License-Identifier: Apache-2.0
#include "stage_core.h"

#include "executor/shadow.h"
#include "sys/log.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- runs

// Applies the update of the previous step, ahead of its commit.
static bool apply_ahead(bl_stage_t *stage) {
  const bl_offer_t *numbers = &stage->applies;
  if (numbers->attempt == 0) {
    return true;
  }
  return bl_shadow_keep(stage->engine, &stage->run.err) == BL_OK &&
         bl_executor_update(stage->engine, stage->run_request.id.step - 1, numbers->scale, numbers->learning_rate,
                            &stage->run.err) == BL_OK;
}

static void run_work(bl_task_t *task) {
  bl_stage_t *stage = BL_TASK_OWNER(task, bl__work_t, task)->stage;
  bl_vote_t *vote = stage->voting;
  bl_error_clear(&stage->run.err);
  if (!apply_ahead(stage)) {
    return; // `applies` is still set
  }
  stage->applies.attempt = 0;
  bl__plans_retire(stage);
  bl_prepared_use(stage->running_plan, stage->engine);
  stage->run.err.status = bl_executor_run(stage->engine, &stage->run_request, &stage->progress, vote, &stage->run.err);
  atomic_store(&stage->progress.slots, 0);
  bl_store_parking_t *parking = stage->running_plan->parking;
  const bl_training_t *training = &stage->engine->training;
  vote->store_count = parking != NULL ? training->stage_count + training->hosts.count : 0;
  for (uint32_t d = 0; d < vote->store_count; d++) {
    vote->leased_peaks[d] = bl_store_parking_peak(parking, d);
  }
  vote->counters.cross_machine_bytes = bl_transport_take_cross_machine_bytes(stage->engine->transport);
  if (parking != NULL) {
    const bl_store_parking_moved_t moved = bl_store_parking_moved(parking);
    vote->counters.moved_bytes = moved.bytes;
    vote->counters.moved_ns = moved.ns;
    vote->counters.host_moved_bytes = moved.host_bytes;
    vote->counters.host_moved_ns = moved.host_ns;
    vote->counters.cross_machine_bytes += bl_store_parking_cross_machine_bytes(parking);
  }
}

static void submit_run(bl_stage_t *stage, const bl_run_id_t *id, bl_vote_t *vote) {
  bl_store_parking_t *parking = stage->running_plan->parking;
  stage->engine->parking = parking != NULL ? bl_store_parking_seam(parking) : NULL;
  if (parking != NULL) {
    bl_store_parking_set_step(parking, id->step);
  }
  stage->run_request.plan = stage->running_plan->plan;
  stage->run_request.id = *id;
  stage->voting = vote;
  bl_log_step(id->step, id->attempt);
  atomic_store(&stage->progress.done, 0);
  atomic_store(&stage->progress.slots, 0);
  atomic_store(&stage->progress.wait_since_ns, 0);
  atomic_store(&stage->progress.cancelled, false);
  bl_worker_submit(stage->worker, &stage->run.task);
}

// Whether this stage's part of the gradients still allows an update with factor 1.
static bool stands(const bl_stage_t *stage) {
  const double clip = stage->engine->job.train.clip;
  double sum = 0;
  for (uint32_t i = 0; i < stage->vote->square_count; i++) {
    sum += stage->vote->squares[i];
  }
  return stage->vote->finite && isfinite(sum) && (clip == 0 || sum <= clip * clip);
}

// Applies the attempt that this stage just voted for as offered, and begins the next attempt.
static void go_on(bl_stage_t *stage) {
  if (stage->engine->shadow.bytes == 0 || !stands(stage) || !bl_stage_step_go_on(&stage->step)) {
    return;
  }
  bl_run_id_t next = bl_stage_step_ahead(&stage->step);
  stage->applies = stage->step.offer;
  submit_run(stage, &next, stage->ahead_vote);
}

static void take_back(bl_stage_t *stage) {
  bl_worker_submit(stage->worker, &stage->undo.task);
}

static void run_done(bl_task_t *task) {
  bl_stage_t *stage = BL_TASK_OWNER(task, bl__work_t, task)->stage;
  const bl_error_t *err = &stage->run.err;
  if (stage->applies.attempt != 0) {
    // The weights are those of neither step.
    bl_log(BL_LOG_ERROR, "step %lu could not be applied, ending: %s", stage->run_request.id.step - 1, err->text);
    exit(bl_status_exit_code(BL_INTERNAL));
  }
  bl_stage_outcome_t outcome = bl_stage_step_run_ended(&stage->step, err->status == BL_OK);
  bool failed = outcome == BL_STAGE_FAILED || (outcome == BL_STAGE_AHEAD && err->status != BL_OK);
  if (failed) {
    bl_log(BL_LOG_ERROR, "the attempt failed: %s", err->text);
  }
  if (failed && outcome == BL_STAGE_AHEAD) {
    stage->ahead_err = *err;
    stage->ahead_failed = stage->run_request.id.attempt;
  }
  if (stage->options.observer.ran != NULL) {
    stage->options.observer.ran(stage->options.observer.context, outcome, err);
  }
  if (outcome == BL_STAGE_KEEP) {
    go_on(stage);
  } else if (outcome == BL_STAGE_UNDO) {
    take_back(stage);
  }
}

static void undo_work(bl_task_t *task) {
  bl_stage_t *stage = BL_TASK_OWNER(task, bl__work_t, task)->stage;
  bl_error_clear(&stage->undo.err);
  stage->undo.err.status = bl_shadow_restore(stage->engine, &stage->undo.err);
}

static void undo_done(bl_task_t *task) {
  bl_stage_t *stage = BL_TASK_OWNER(task, bl__work_t, task)->stage;
  if (stage->undo.err.status != BL_OK) {
    bl_log(BL_LOG_ERROR, "step %lu could not be taken back, ending: %s", stage->step.run.step, stage->undo.err.text);
    exit(bl_status_exit_code(BL_INTERNAL));
  }
  bl_log(BL_LOG_INFO, "step %lu, applied ahead of its commit, was taken back", stage->step.run.step);
  bl_stage_step_undone(&stage->step);
  stage->ahead_failed = 0;
  bl_error_t none = {.status = BL_OK};
  if (stage->options.observer.ran != NULL) {
    stage->options.observer.ran(stage->options.observer.context, BL_STAGE_DROP, &none);
  }
}

// Checks whether the stage's configuration can run this. The step machine checks whether it may.
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
  bl_stage_driven(stage);
  // An older driver receives that refusal first: it must end, not repair the stage.
  if (bl_stage_check(stage, driver, err) == BL_STAGE_REFUSE || check_run(stage, request, err) != BL_OK) {
    return BL_STAGE_REFUSE;
  }
  bl_stage_decision_t decision = bl_stage_step_run_on(&stage->step, driver, &request->id, &request->offer, err);
  if (decision == BL_STAGE_REFUSE && request->id.attempt == stage->ahead_failed) {
    *err = stage->ahead_err; // the attempt began ahead and failed with this error
    stage->ahead_failed = 0;
  }
  if (decision != BL_STAGE_BEGIN) {
    return decision;
  }
  if (request->token_count > 0) {
    memcpy(stage->context, request->tokens, request->token_count * sizeof *stage->context);
  }
  bl__plans_drop_forgotten(stage);
  bl__plans_age(stage);
  stage->running_plan = *bl__plans_find(stage, request->id.plan_version);
  stage->run_request = (bl_run_t){.first_window = request->first_window,
                                  .tokens = stage->context,
                                  .token_count = request->token_count,
                                  .draw_seed = request->draw_seed,
                                  .temperature = request->temperature};
  stage->ahead_failed = 0;
  submit_run(stage, &request->id, stage->vote);
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
    // A commit that was decided cannot be undone, and these weights differ from those of the other stages.
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
  bl_stage_driven(stage);
  const uint64_t before = stage->step.applied;
  bl_stage_decision_t decision = bl_stage_step_commit(&stage->step, driver, commit, err);
  bl_vote_t *spare = stage->commit_vote;
  if (decision == BL_STAGE_BEGIN) {
    stage->commit_vote = stage->vote;
    stage->vote = spare;
    bl_worker_submit(stage->worker, &stage->commit.task);
  } else if (stage->step.applied != before) { // applied ahead, now confirmed
    stage->commit_vote = stage->vote;
    stage->vote = stage->ahead_vote;
    stage->ahead_vote = spare;
  }
  return decision;
}

bl_stage_decision_t bl_stage_abort(bl_stage_t *stage, bl_driver_id_t driver, uint64_t next, uint64_t attempt,
                                   bl_error_t *err) {
  bl_stage_driven(stage);
  bool dropped;
  bl_stage_decision_t decision = bl_stage_step_abort(&stage->step, driver, next, attempt, &dropped, err);
  if (decision == BL_STAGE_BEGIN && stage->step.phase == BL_STAGE_UNDOING) {
    take_back(stage);
  } else if (decision == BL_STAGE_BEGIN) {
    bl_executor_interrupt(stage->engine, &stage->progress);
  }
  return decision;
}

void bl__attempts_init(bl_stage_t *stage) {
  stage->run.stage = stage;
  stage->commit.stage = stage;
  stage->undo.stage = stage;
  stage->vote = &stage->votes[0];
  stage->ahead_vote = &stage->votes[1];
  stage->commit_vote = &stage->votes[2];
  bl_task_init(&stage->run.task, run_work, run_done);
  bl_task_init(&stage->commit.task, commit_work, commit_done);
  bl_task_init(&stage->undo.task, undo_work, undo_done);
}
