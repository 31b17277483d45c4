// SPDX-License-Identifier: Apache-2.0
#include "stage_core.h"

#include "pod.h"

#include "base/words.h"
#include "sys/log.h"
#include "sys/thread.h"

#include <stdlib.h>
#include <string.h>

void bl__configuration_drop(bl_stage_t *stage) {
  bl__plans_drop(stage);
  for (size_t i = 0; i < sizeof stage->votes / sizeof stage->votes[0]; i++) {
    bl_vote_cleanup(&stage->votes[i]);
  }
  stage->ahead_failed = 0;
  free(stage->context);
  stage->context = NULL;
  stage->connected = false;
  stage->connect_dropped = stage->connecting; // the end of the transport ends the connection
  if (stage->saver != NULL) {
    bl_saver_forget(stage->saver);
  }
}

static void configure_work(bl_task_t *task) {
  bl_stage_t *stage = BL_TASK_OWNER(task, bl__work_t, task)->stage;
  bl__work_t *work = &stage->configure;
  bl_error_clear(&work->err);
  bl__plans_retire(stage);
  bl_client_runtime_wait(stage->runtime);
  bl_engine_destroy(stage->old_engine);
  stage->old_engine = NULL;
  bl_thread_flush_denormals();
  bl_engine_options_t options = {.job = stage->texts.job,
                                 .job_bytes = strlen(stage->texts.job),
                                 .orders = {.own = stage->texts.own, .other = stage->texts.other},
                                 .resume = stage->texts.resume,
                                 .resume_digest = stage->resume_digest,
                                 .rank = stage->rank,
                                 .gpu = stage->options.gpu,
                                 .nccl_shared_gpu = stage->options.nccl_shared_gpu,
                                 .first_core = stage->options.first_core,
                                 .core_tokens = stage->options.core_tokens,
                                 .unix_path = stage->options.unix_path,
                                 .tcp_host = stage->options.tcp_host,
                                 .tcp_advertise = stage->options.tcp_advertise,
                                 .tls = stage->options.tls,
                                 .plaintext_ok = stage->options.plaintext_ok,
                                 .transfer = stage->transfer};
  bl_engine_t *engine;
  // The result decides: err may also be set by an alternative that failed.
  work->err.status = bl_engine_create(&options, &engine, &work->err);
  if (work->err.status == BL_OK) {
    stage->made_engine = engine;
  }
}

// Allocates votes and contexts, so that steps do not allocate.
static bl_status_t make_room(bl_stage_t *stage, bl_error_t *err) {
  const bl_engine_t *engine = stage->engine;
  uint32_t losses = engine->training.schedule->micro_batches,
           stores = engine->training.stage_count + engine->training.hosts.count;
  bl_status_t status = BL_OK;
  for (size_t i = 0; i < sizeof stage->votes / sizeof stage->votes[0] && status == BL_OK; i++) {
    status = bl_vote_init(&stage->votes[i], losses, engine->square_count, stores);
  }
  stage->context = calloc(engine->training.model.seq, sizeof *stage->context);
  return status == BL_OK && stage->context != NULL ? BL_OK : bl_error_set(err, BL_EXHAUSTED, "no memory for votes");
}

static void log_choices(const bl_engine_t *engine) {
  size_t count = 0;
  const bl_ops_choice_t *choices = engine->ops->choices != NULL ? engine->ops->choices(engine->compute, &count) : NULL;
  for (size_t i = 0; i < count; i++) {
    bl_log(BL_LOG_DEBUG, "products %s: %s", choices[i].shape, choices[i].algorithm);
  }
}

static void configure_done(bl_task_t *task) {
  bl_stage_t *stage = BL_TASK_OWNER(task, bl__work_t, task)->stage;
  bl_error_t *err = &stage->configure.err;
  bl__texts_free(&stage->texts);
  stage->engine = stage->made_engine; // NULL if it failed
  stage->made_engine = NULL;
  if (err->status == BL_OK && make_room(stage, err) != BL_OK) {
    stage->old_engine = stage->engine;
    stage->engine = NULL;
  }
  bool well = err->status == BL_OK && stage->engine != NULL;
  bl_stage_step_configure_ended(&stage->step, well, well ? stage->engine->applied : 0);
  if (err->status != BL_OK) {
    bl_log(BL_LOG_ERROR, "cannot be configured as rank %u: %s", stage->rank, err->text);
  } else {
    const char *run = stage->engine->job.name != NULL ? stage->engine->job.name : "";
    const bl_engine_t *engine = stage->engine;
    char word[BL_LOG_WORD], tensor[24] = "", data[24] = "", start[BL_START_TEXT];
    if (engine->training.grid.tensor > 1) {
      snprintf(tensor, sizeof tensor, " tensor=%u", engine->coords.tensor);
    }
    if (engine->training.grid.data > 1) {
      snprintf(data, sizeof data, " data=%u", engine->coords.data);
    }
    bl_log_context("stage=%u%s%s%s%s", engine->coords.stage, tensor, data, run[0] != '\0' ? " run=" : "",
                   bl_log_word(run, word));
    bl_log(BL_LOG_INFO, "configured: %u slot%s of %lu bytes, %u edge buffer%s, %s", stage->engine->slots.count,
           bl_plural(stage->engine->slots.count), stage->engine->slot_bytes, stage->engine->edges_allocated,
           bl_plural(stage->engine->edges_allocated), stage->engine->ops->describe(stage->engine->compute));
    bl_log(BL_LOG_INFO, "started in %s", bl_engine_start_text(engine, start));
    log_choices(engine);
    bl_pod_compare(stage->options.pod, stage->rank, &stage->engine->training.grid);
  }
  if (stage->options.observer.configured != NULL) {
    stage->options.observer.configured(stage->options.observer.context, err);
  }
}

void bl__texts_free(bl__texts_t *texts) {
  free(texts->job);
  free(texts->own);
  free(texts->other);
  free(texts->resume);
  *texts = (bl__texts_t){0};
}

static bool copy_text(const char *from, char **to) {
  *to = from != NULL ? strdup(from) : NULL;
  return from == NULL || *to != NULL;
}

static bool copy_texts(const bl_stage_configuration_t *from, bl__texts_t *to) {
  *to = (bl__texts_t){0};
  return copy_text(from->job, &to->job) && copy_text(from->orders.own, &to->own) &&
         copy_text(from->orders.other, &to->other) && copy_text(from->resume, &to->resume);
}

void bl__configuration_init(bl_stage_t *stage) {
  stage->configure.stage = stage;
  bl_task_init(&stage->configure.task, configure_work, configure_done);
}

bl_stage_decision_t bl_stage_configure(bl_stage_t *stage, bl_driver_id_t driver,
                                       const bl_stage_configuration_t *configuration, bl_error_t *err) {
  bl__texts_t texts;
  bl_stage_decision_t decision = BL_STAGE_REFUSE;
  if (!copy_texts(configuration, &texts)) {
    (void)bl__stage_refuse(err, BL_EXHAUSTED, "no memory for the job");
  } else if (stage->preparing) {
    (void)bl__stage_refuse(err, BL_EXHAUSTED, "a plan is being prepared: ask again");
  } else {
    decision = bl_stage_step_configure(&stage->step, driver, configuration->digest, err);
  }
  if (decision == BL_STAGE_BEGIN && bl_saver_is_busy(stage->saver)) {
    bl_stage_step_configure_ended(&stage->step, false, 0);
    decision = bl__stage_refuse(err, BL_EXHAUSTED, "still writing a checkpoint of the configuration before");
  }
  if (decision != BL_STAGE_BEGIN) {
    bl__texts_free(&texts);
    return decision;
  }
  bl__configuration_drop(stage);
  stage->old_engine = stage->engine;
  stage->engine = NULL;
  stage->texts = texts;
  stage->resume_digest = configuration->resume_digest;
  stage->rank = configuration->rank;
  bl_worker_submit(stage->worker, &stage->configure.task);
  return BL_STAGE_BEGIN;
}

bl_stage_decision_t bl_stage_release(bl_stage_t *stage, bl_driver_id_t driver, bl_error_t *err) {
  if (bl_saver_is_busy(stage->saver) || stage->preparing) {
    return bl__stage_refuse(err, BL_EXHAUSTED,
                            stage->preparing ? "a plan is being prepared: ask again" : "still writing a checkpoint");
  }
  bl_stage_decision_t decision = bl_stage_step_release(&stage->step, driver, err);
  if (decision == BL_STAGE_ANSWER) {
    bl__configuration_drop(stage);
    bl__plans_retire(stage);
    bl_client_runtime_wait(stage->runtime);
    bl_engine_destroy(stage->engine);
    stage->engine = NULL;
    bl_log(BL_LOG_INFO, "released");
  }
  return decision;
}
