// SPDX-License-Identifier: Apache-2.0
#include "stage_core.h"

#include "client/runtime_options.h"
#include "sys/clock.h"
#include "sys/log.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static uint64_t random_bits(void) {
  uint64_t bits = 0;
  while (bits == 0) { // 0 means "none" on the wire
    if (getrandom(&bits, sizeof bits, 0) != (ssize_t)sizeof bits) {
      bits = bl_clock_now_ns();
    }
  }
  return bits;
}

// ---- silence of the driver

// Releases what the stage holds at stores if no driver calls any more.
static void look_for_driver(bl_timer_t *timer, void *context) {
  (void)timer;
  bl_stage_t *stage = context;
  // Of what uses plans: the compute thread destroys replaced ones then.
  bool busy = stage->preparing || stage->step.phase == BL_STAGE_CONFIGURING || bl_stage_step_is_running(&stage->step);
  if (busy || bl_loop_now_ms(stage->loop) - stage->driven_ms < stage->options.rest_ms) {
    return;
  }
  for (size_t i = 0; i < BL__STAGE_PLANS; i++) {
    if (stage->plans[i] != NULL && stage->plans[i]->parking != NULL) {
      bl_store_parking_rest(stage->plans[i]->parking);
    }
  }
  bl_reserving_drop(&stage->ahead);
  bl__plans_retire(stage);
}

// ---- creation

static void snapshot_copied(void *context) {
  const bl_stage_t *stage = context;
  if (stage->options.observer.copied != NULL) {
    stage->options.observer.copied(stage->options.observer.context);
  }
}

static void snapshot_written(void *context, const bl_error_t *err) {
  const bl_stage_t *stage = context;
  if (stage->options.observer.written != NULL) {
    stage->options.observer.written(stage->options.observer.context, err);
  }
}

bl_status_t bl_stage_create(bl_loop_t *loop, const bl_stage_options_t *options, bl_stage_t **stage, bl_error_t *err) {
  bl_stage_t *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for a stage");
  }
  made->loop = loop;
  made->options = *options;
  made->incarnation = random_bits();
  bl__configuration_init(made);
  bl__peers_init(made);
  bl__plans_init(made);
  bl__attempts_init(made);
  bl_status_t status = bl_loop_thread_create("transfer", &made->transfer, err);
  if (status == BL_OK) {
    const bl_client_runtime_options_t runtime = {.thread = made->transfer, .beside = options->rpc};
    status = bl_client_runtime_create(&runtime, &made->runtime, err);
  }
  if (status == BL_OK) {
    status = bl_worker_create(loop, "compute", &made->worker, err);
  }
  if (status == BL_OK) {
    status = bl_timer_create(loop, look_for_driver, made, &made->rest, err);
  }
  if (status == BL_OK) {
    bl_saver_observer_t observer = {.context = made, .copied = snapshot_copied, .written = snapshot_written};
    status = bl_saver_create(loop, made->worker, &observer, &made->saver, err);
  }
  if (status != BL_OK) {
    bl_timer_destroy(made->rest);
    bl_worker_destroy(made->worker);
    bl_client_runtime_destroy(made->runtime);
    bl_loop_thread_destroy(made->transfer);
    free(made);
    return status;
  }
  if (options->rest_ms > 0) {
    bl_timer_start(made->rest, options->rest_ms, options->rest_ms);
  }
  *stage = made;
  return BL_OK;
}

void bl_stage_destroy(bl_stage_t *stage) {
  if (stage == NULL) {
    return;
  }
  stage->options.observer = (bl_stage_observer_t){0};
  bl_timer_destroy(stage->rest);
  if (stage->engine != NULL) {
    bl_executor_interrupt(stage->engine, &stage->progress);
  }
  bl_worker_destroy(stage->worker);
  stage->worker = NULL;
  bl_saver_destroy(stage->saver);
  stage->saver = NULL;
  bl_loop_drain(stage->loop);
  bl_prepared_destroy(stage->made_plan);
  bl__plans_drop(stage);
  bl__plans_retire(stage);
  bl_client_runtime_destroy(stage->runtime); // before the device is closed
  bl_engine_destroy(stage->engine);          // the end of its transport ends a pending connection
  bl_loop_drain(stage->loop);
  bl_engine_destroy(stage->old_engine);
  bl_loop_thread_destroy(stage->transfer);
  bl__configuration_drop(stage);
  free((char *)(uintptr_t)stage->plan_request.csv);
  bl__texts_free(&stage->texts);
  free(stage);
}

// ---- drivers

bool bl_stage_takeover(bl_stage_t *stage, bl_driver_id_t driver, const char *run) {
  bl_stage_driven(stage);
  bool news = !bl_driver_id_equal(stage->step.driver, driver);
  bool accepted = bl_stage_step_takeover(&stage->step, driver);
  if (accepted && news) {
    bl_log(BL_LOG_INFO, "following driver %016lx, epoch %lu, run '%s'", driver.id, driver.epoch, run);
  } else if (!accepted) {
    bl_log(BL_LOG_WARNING, "refused driver %016lx, epoch %lu: following epoch %lu", driver.id, driver.epoch,
           stage->step.driver.epoch);
  }
  return accepted;
}

bl_stage_decision_t bl_stage_check(const bl_stage_t *stage, bl_driver_id_t driver, bl_error_t *err) {
  return bl_stage_step_check(&stage->step, driver, err);
}

// ---- checkpoints

bl_stage_decision_t bl_stage_snapshot(bl_stage_t *stage, bl_driver_id_t driver, uint64_t step, bl_error_t *err) {
  bl_stage_decision_t decision = bl_stage_step_snapshot(&stage->step, driver, step, err);
  if (decision != BL_STAGE_ANSWER) {
    return decision;
  }
  if (stage->engine->snapshot == NULL) {
    return bl__stage_refuse(err, BL_PRECONDITION,
                            "the job has no checkpoint.folder, so no memory is planned for checkpoints");
  }
  return bl_saver_copy(stage->saver, stage->engine->snapshot, step, err);
}

bl_stage_decision_t bl_stage_write(bl_stage_t *stage, bl_driver_id_t driver, const bl_saver_request_t *request,
                                   bl_error_t *err) {
  bl_stage_decision_t decision = bl_stage_step_check(&stage->step, driver, err);
  return decision == BL_STAGE_ANSWER ? bl_saver_write(stage->saver, request, err) : decision;
}

// ---- views

bool bl_stage_has_refused(const bl_stage_t *stage, uint64_t version) {
  bool kept = false;
  for (size_t i = 0; i < BL__STAGE_PLANS; i++) {
    kept = kept || stage->step.plans[i / BL_STAGE_PLANS][i % BL_STAGE_PLANS].version == version;
  }
  return version <= stage->step.plan_version && !kept;
}

uint64_t bl_stage_resumed(const bl_stage_t *stage) {
  return stage->step.configured != 0 ? stage->resume_digest : 0;
}

const bl_saver_t *bl_stage_saver(const bl_stage_t *stage) {
  return stage->saver;
}

const bl_stage_step_t *bl_stage_step(const bl_stage_t *stage) {
  return &stage->step;
}

bl_loop_thread_t *bl_stage_transfer(const bl_stage_t *stage) {
  return stage->transfer;
}

uint64_t bl_stage_incarnation(const bl_stage_t *stage) {
  return stage->incarnation;
}

const bl_engine_t *bl_stage_engine(const bl_stage_t *stage) {
  return stage->step.phase == BL_STAGE_CONFIGURING ? NULL : stage->engine;
}

bool bl_stage_is_connected(const bl_stage_t *stage) {
  return stage->connected;
}

const bl_vote_t *bl_stage_vote(const bl_stage_t *stage) {
  return stage->vote;
}

const bl_vote_t *bl_stage_commit_vote(const bl_stage_t *stage) {
  return stage->commit_vote;
}

const bl_run_progress_t *bl_stage_progress(const bl_stage_t *stage) {
  return &stage->progress;
}

const bl_executor_plan_t *bl_stage_running_plan(const bl_stage_t *stage) {
  return stage->running_plan != NULL ? stage->running_plan->plan : NULL;
}

bool bl_stage_store_wait(const bl_stage_t *stage, bl_store_parking_wait_t *wait) {
  bl_store_parking_t *parking = stage->running_plan != NULL ? stage->running_plan->parking : NULL;
  return parking != NULL && bl_store_parking_look(parking, wait);
}

void bl_stage_store_paths(const bl_stage_t *stage, uint32_t counts[BL_PATHS]) {
  memset(counts, 0, BL_PATHS * sizeof counts[0]);
  if (stage->running_plan != NULL && stage->running_plan->parking != NULL) {
    bl_store_parking_paths(stage->running_plan->parking, counts);
  }
}
