// SPDX-License-Identifier: Apache-2.0
#include "driver_core.h"

#include "base/random.h"
#include "job/rate.h"
#include "sys/clock.h"
#include "sys/log.h"

#include <inttypes.h>
#include <math.h>

#define AHEAD_SHARE 0.9 // of train.clip: if the last norm was above this share, the next one may be clipped

// ---- deciding -------------------------------------------------------------------------------------------------------

static void decide_training(bl_driver_t *driver) {
  // A predecessor may have left an attempt to decide and, before it, a step that was never reported. Once this attempt
  // is applied, the stages no longer know that step.
  bl__step_report(driver);
  bl_vote_result_t result = {0};
  if (bl__votes_count(driver, driver->step.run.attempt, &result, &driver->attempts.failure) != BL_OK) {
    driver->attempts.fatal = true;
    if (driver->attempts.failure.status == BL_PRECONDITION) { // a number is not finite
      bl__save_reject(driver, &driver->attempts.failure);
    }
    bl_driver_step_abort(&driver->step);
    return;
  }
  if (driver->options.observer.may_commit != NULL &&
      !driver->options.observer.may_commit(driver->options.observer.context, &driver->step.recorder)) {
    return;
  }
  const bl_job_t *job = driver->options.job;
  uint64_t step = driver->step.run.step;
  driver->attempts.norm = result.grad_norm;
  driver->attempts.again = !bl_driver_step_commit(&driver->step, bl_clip_scale(job->train.clip, result.grad_norm),
                                                  bl_rate_of_step(job, step));
  if (driver->attempts.again) {
    bl_log(BL_LOG_INFO,
           "step %" PRIu64 ": its gradients (norm %.6g) are to be clipped to %.6g, stages have applied them as they "
           "are: that is undone and the step is repeated",
           step, result.grad_norm, job->train.clip);
  }
}

static void decide_validation(bl_driver_t *driver) {
  const bl_job_t *job = driver->options.job;
  const uint64_t wanted = bl_dataset_validation_micro_batches(&driver->options.training->dataset);
  for (size_t s = 0; s < driver->stage_count; s++) {
    const bl_rank_vote_t *vote = &driver->stages[s].vote;
    for (size_t i = 0; i < vote->loss_count && driver->validation.windows_seen < wanted; i++) {
      driver->validation.sum += vote->losses[i];
      driver->validation.windows_seen++;
    }
  }
  bl_driver_step_close(&driver->step);
  driver->attempts.failures = 0;
  if (driver->validation.windows_seen < wanted) {
    return;
  }
  driver->validation.runs = false;
  driver->validation.step = driver->step.applied;
  bl_validation_event_t event = {.step = driver->step.applied,
                                 .loss = driver->validation.sum / (double)wanted,
                                 .tokens =
                                     wanted * (uint64_t)job->train.micro_batch * driver->options.training->model.seq};
  if (!isfinite(event.loss)) {
    driver->attempts.fatal = true;
    (void)bl_error_set(&driver->attempts.failure, BL_PRECONDITION,
                       "the held-out loss after step %" PRIu64 " is not finite; %s", event.step,
                       bl_finite_advice(job->train.clip));
    bl__save_reject(driver, &driver->attempts.failure);
    return;
  }
  bl_run_journal_add_validation(&driver->journal, &event);
  driver->options.observer.changed(driver->options.observer.context);
}

void bl__decide(bl_driver_t *driver) {
  switch (driver->step.run.kind) {
  case BL_RUN_TRAIN:
    decide_training(driver);
    break;
  case BL_RUN_VALIDATE:
    decide_validation(driver);
    break;
  case BL_RUN_GENERATE:
    bl__sampling_take(driver);
    break;
  case BL_RUN_KINDS:
    break;
  }
}

// ---- what follows ---------------------------------------------------------------------------------------------------

// Returns whether something must be done with the stages after the step that begins now.
static bool work_is_pending(bl_driver_t *driver) {
  const bl_job_t *job = driver->options.job;
  uint64_t step = driver->step.applied + 1;
  bool validates = driver->plans.texts[BL_RUN_VALIDATE] != NULL && job->train.validate_every > 0 &&
                   step % (uint64_t)job->train.validate_every == 0;
  bool saves =
      job->checkpoint.folder != NULL && job->checkpoint.every > 0 && step % (uint64_t)job->checkpoint.every == 0;
  bool asked = driver->control.paused || driver->control.stopping || driver->generation.has_caller ||
               driver->tracing.waits != NULL || driver->save.waits != NULL || driver->plans.changes.waiting_count > 0;
  return validates || saves || asked || step >= (uint64_t)job->train.steps || bl__automatic_will_look(driver);
}

// Returns whether stages may apply the step that begins now and continue before it is committed. They may if only a
// step follows, and its gradients will hardly be clipped.
static bool may_go_on(bl_driver_t *driver) {
  const bl_job_t *job = driver->options.job;
  bool clips =
      job->train.clip > 0 && !(driver->attempts.norm > 0 && driver->attempts.norm <= AHEAD_SHARE * job->train.clip);
  return job->train.post_validation && driver->state == BL__RUN_STEPS && !clips && !work_is_pending(driver);
}

static void start(bl_driver_t *driver, bl_run_kind_t kind) {
  driver->attempts.began_ns = driver->attempts.again ? driver->attempts.began_ns : bl_clock_now_ns();
  driver->attempts.again = false;
  if (kind == BL_RUN_TRAIN && may_go_on(driver)) {
    bl_driver_step_run_on(&driver->step, 1.0, bl_rate_of_step(driver->options.job, driver->step.applied + 1));
  } else {
    bl_driver_step_run(&driver->step, kind);
  }
  bl_log_step(driver->step.run.step, driver->step.run.attempt);
}

bl_stage_run_text_t bl__run_text(const bl_driver_t *driver, const bl_driver_request_t *request) {
  const bl_run_id_t *run = &request->run;
  bl_stage_run_text_t text = {.run = *run, .offer = request->offer};
  if (run->kind == BL_RUN_VALIDATE) {
    text.first_window = driver->validation.windows_seen * (uint64_t)driver->options.job->train.micro_batch;
  } else if (run->kind == BL_RUN_GENERATE) {
    text.tokens = driver->generation.tokens;
    text.token_count = driver->generation.count;
    text.draw_seed =
        bl_random_bits(bl_random_key(driver->generation.request.seed, "generate"), driver->generation.generated);
    text.temperature = driver->generation.request.temperature;
  }
  return text;
}

static bool all_steps_done(const bl_driver_t *driver) {
  return driver->step.applied >= (uint64_t)driver->options.job->train.steps;
}

static bool validation_is_due(const bl_driver_t *driver) {
  uint64_t applied = driver->step.applied;
  uint64_t every = (uint64_t)driver->options.job->train.validate_every;
  if (driver->plans.texts[BL_RUN_VALIDATE] == NULL || applied == 0 || driver->validation.step == applied) {
    return false;
  }
  return all_steps_done(driver) || (every > 0 && applied % every == 0);
}

// The last attempt was aborted: returns whether the run continues, or ends it.
static bool survives_failure(bl_driver_t *driver) {
  if (driver->attempts.failures == 0 && !driver->attempts.fatal) {
    return true;
  }
  bool again = bl_status_retryable(driver->attempts.failure.status) ||
               driver->attempts.failure.status == BL_DATA_LOSS || driver->attempts.failure.status == BL_CANCELLED;
  if (!driver->attempts.fatal && again && driver->attempts.failures < bl_driver_attempts(driver->stage_count)) {
    return true;
  }
  bl__driver_fail(driver, &driver->attempts.failure);
  return false;
}

static void hold(bl_driver_t *driver) {
  if (driver->state == BL__RUN_STEPS) {
    bl__driver_set_phase(driver, "paused", "", 0);
  }
  if (driver->control.held != NULL) {
    bl_driver_held_fn held = driver->control.held;
    driver->control.held = NULL;
    held(driver->step.applied, driver->control.held_context);
  }
}

// Begins one thing that is due between two steps. Returns true if it has begun, or the run has ended.
static bool next_pending_work(bl_driver_t *driver) {
  bool looks = validation_is_due(driver) || driver->generation.has_caller || bl__automatic_wants(driver);
  if ((looks || driver->tracing.waits != NULL || all_steps_done(driver)) && !bl__traces_ready(driver)) {
    return true; // traces of the last step, before something else runs
  }
  bl__automatic_look(driver);
  if (validation_is_due(driver)) {
    if (!driver->validation.runs) {
      driver->validation.runs = true;
      driver->validation.windows_seen = 0;
      driver->validation.sum = 0;
    }
    start(driver, BL_RUN_VALIDATE);
    return true;
  }
  return false;
}

void bl__boundary(bl_driver_t *driver) {
  bl__step_report(driver);
  if (!survives_failure(driver)) {
    return;
  }
  bl__save_release(driver);
  if (driver->step.offer.attempt != 0) { // stages have begun it: whatever was requested in the meantime must wait
    start(driver, BL_RUN_TRAIN);
    return;
  }
  // Held-out data come first: a checkpoint of weights with which their loss is not finite must replace no other.
  const bool stops_early = driver->control.stopping && !all_steps_done(driver);
  if (!stops_early && validation_is_due(driver) && next_pending_work(driver)) {
    return;
  }
  if (bl__save_boundary(driver)) {
    return;
  }
  if (stops_early) {
    if (!bl__save_is_busy(driver)) {
      bl__driver_leave(driver, 130);
    }
    return;
  }
  if (next_pending_work(driver)) {
    return;
  }
  if (all_steps_done(driver) && (driver->state == BL__RUN_STEPS || driver->control.stopping)) {
    if (bl__save_is_busy(driver)) {
      return;
    }
    if (driver->save.tried == driver->step.applied && driver->save.err.status != BL_OK) {
      bl_error_t err = driver->save.err; // the weights exist in memory only
      (void)bl_error_prefix(&err, "all steps are done, but the result could not be saved");
      bl__driver_fail(driver, &err);
      return;
    }
    driver->state = BL__RUN_FINISHED;
    bl__driver_set_phase(driver, "finished", "", 0);
    if (!driver->options.linger || driver->control.stopping) {
      bl__driver_leave(driver, 0);
      return;
    }
  }
  bool held = driver->state == BL__RUN_FINISHED || driver->control.paused;
  if (bl__plans_boundary(driver, held)) {
    return;
  }
  if (held) {
    hold(driver);
    if (driver->generation.has_caller) {
      start(driver, BL_RUN_GENERATE);
    }
    return;
  }
  if (driver->generation.has_caller) {
    bl_error_t err;
    (void)bl_error_set(&err, BL_PRECONDITION, "the run continues: text is drawn while it is paused or finished");
    bl__sampling_end(driver, &err);
  }
  bl__driver_set_phase(driver, "running", "", 0);
  start(driver, BL_RUN_TRAIN);
}
