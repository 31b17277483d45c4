// SPDX-License-Identifier: Apache-2.0
#include "choices.h"
#include "driver_core.h"

#include "schedule/csv/csv.h"
#include "schedule/generate.h"
#include "sys/log.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// ---- before the first call ------------------------------------------------------------------------------------------

static bl_status_t no_memory(bl_error_t *err) {
  return bl_error_set(err, BL_EXHAUSTED, "no memory to set up the run");
}

static bl_status_t make_forward_plan(bl_driver_t *driver, bl_run_kind_t kind, uint32_t micro_batches, bl_error_t *err) {
  bl_schedule_t *schedule;
  bl_status_t status = bl_schedule_forward(driver->options.training->schedule, micro_batches, &schedule, err);
  if (status != BL_OK) {
    return status;
  }
  size_t size;
  status = bl_csv_write(schedule, &driver->plans.texts[kind], &size);
  bl_schedule_destroy(schedule);
  return status == BL_OK ? BL_OK : no_memory(err);
}

// Returns the micro-batches of held-out data in one run: at most those of a training step, for which stages have
// memory.
static uint32_t validation_micro_batches(const bl_driver_t *driver) {
  const bl_training_t *training = driver->options.training;
  const uint64_t count = bl_dataset_validation_micro_batches(&training->dataset);
  const uint64_t each = (count + training->grid.data - 1) / training->grid.data; // of each replica
  const uint32_t most = training->schedule->micro_batches;
  return each > most ? most : (uint32_t)each;
}

// Checks that the stores exist which the job's policy needs, and connects to them.
static bl_status_t prepare_stores(bl_driver_t *driver, bl_error_t *err) {
  const bl_job_t *job = driver->options.job;
  bl_status_t status = bl_balance_check_stores(driver->options.training, job, err);
  if (status != BL_OK) {
    return status;
  }
  return bl_job_store_count(job) == 0 ? BL_OK : bl_stores_create(driver->options.rpc, job, &driver->stores, err);
}

bl_status_t bl__setup_prepare(bl_driver_t *driver, bl_error_t *err) {
  const bl_training_t *training = driver->options.training;
  size_t size;
  bl_status_t status = prepare_stores(driver, err);
  if (status != BL_OK) {
    return status;
  }
  driver->setup.round_retry = calloc(driver->stage_count, sizeof *driver->setup.round_retry);
  if (driver->setup.round_retry == NULL ||
      bl_resume_dump_job(driver->options.job, driver->options.given_init, &driver->setup.job_text, &size) != BL_OK ||
      bl_csv_write(training->schedule, &driver->setup.own_order, &size) != BL_OK ||
      (training->other != NULL && bl_csv_write(training->other, &driver->setup.other_order, &size) != BL_OK)) {
    return no_memory(err);
  }
  for (size_t i = 0; i < driver->stage_count; i++) {
    bl_remote_t *stage = &driver->stages[i];
    stage->configuration =
        (bl_configure_request_t){.job = driver->setup.job_text,
                                 .orders = {.own = driver->setup.own_order, .other = driver->setup.other_order},
                                 .stage = (uint32_t)i};
    if (driver->options.resume != NULL) {
      stage->configuration.resume = driver->options.resume->path;
      stage->configuration.resume_digest = driver->options.resume->digest;
    }
  }
  if (training->dataset.validation_windows > 0) {
    status = make_forward_plan(driver, BL_RUN_VALIDATE, validation_micro_batches(driver), err);
  }
  if (status == BL_OK) {
    status = make_forward_plan(driver, BL_RUN_GENERATE, 1, err);
  }
  return status;
}

static void free_place(bl_stage_place_t *place) {
  free((void *)(uintptr_t)place->unix_address);
  free((void *)(uintptr_t)place->tcp_address);
  free((void *)(uintptr_t)place->machine);
  for (size_t i = 0; i < place->memory_count; i++) {
    free((void *)(uintptr_t)place->memory[i].name);
  }
  free(place->memory);
  for (size_t i = 0; i < place->choice_count; i++) {
    free((void *)(uintptr_t)place->choices[i].shape);
    free((void *)(uintptr_t)place->choices[i].algorithm);
  }
  free(place->choices);
  *place = (bl_stage_place_t){0};
}

static void free_paths(bl_remote_t *stage) {
  for (size_t i = 0; i < stage->path_count; i++) {
    free((void *)(uintptr_t)stage->paths[i].data_path);
    free((void *)(uintptr_t)stage->paths[i].reason);
  }
  free(stage->paths);
  stage->paths = NULL;
  stage->path_count = 0;
}

void bl__setup_cleanup(bl_driver_t *driver) {
  for (size_t i = 0; i < driver->stage_count; i++) {
    free_place(&driver->stages[i].place);
    free_paths(&driver->stages[i]);
  }
  bl_stores_destroy(driver->stores);
  free(driver->setup.job_text);
  free(driver->setup.own_order);
  free(driver->setup.other_order);
  free(driver->setup.round_retry);
}

// ---- rounds: one call to every stage, the next when all have answered -----------------------------------------------

static void round_ask(bl_remote_t *stage);

static void round_begin(bl_driver_t *driver, bl__round_t round) {
  driver->setup.round = round;
  driver->setup.round_open = driver->stage_count;
  for (size_t i = 0; i < driver->stage_count; i++) {
    driver->setup.round_retry[i] = false;
    round_ask(&driver->stages[i]);
  }
}

static char *copy_text(const char *text) {
  return strdup(text != NULL ? text : "");
}

static void keep_place(bl_remote_t *stage, const bl_stage_place_t *from) {
  free_place(&stage->place);
  bl_stage_place_t place = *from;
  place.unix_address = copy_text(from->unix_address);
  place.tcp_address = copy_text(from->tcp_address);
  place.machine = copy_text(from->machine);
  place.memory = calloc(from->memory_count + 1, sizeof *place.memory);
  place.memory_count = place.memory != NULL ? from->memory_count : 0;
  for (size_t i = 0; i < place.memory_count; i++) {
    place.memory[i] = (bl_memory_share_t){copy_text(from->memory[i].name), from->memory[i].planned_bytes};
  }
  place.choices = calloc(from->choice_count + 1, sizeof *place.choices);
  place.choice_count = place.choices != NULL ? from->choice_count : 0;
  for (size_t i = 0; i < place.choice_count; i++) {
    place.choices[i] = (bl_choice_share_t){copy_text(from->choices[i].shape), copy_text(from->choices[i].algorithm)};
  }
  stage->place = place;
}

static void keep_paths(bl_remote_t *stage, const bl_path_share_t *from, size_t count) {
  free_paths(stage);
  stage->paths = calloc(count + 1, sizeof *stage->paths);
  for (size_t i = 0; stage->paths != NULL && i < count; i++) {
    stage->paths[i] = (bl_path_share_t){from[i].stage, copy_text(from[i].data_path), copy_text(from[i].reason)};
    stage->path_count = i + 1;
  }
}

void bl__setup_end(bl_driver_t *driver) {
  bl_error_t err;
  if (bl__save_enter(driver, &err) != BL_OK) {
    bl__driver_fail(driver, &err);
    return;
  }
  driver->state = BL__RUN_STEPS;
  bl_run_journal_add_plan(&driver->journal);
  bl__driver_set_phase(driver, "running", "", 0);
}

// Begins with plans once the process of each store is known, because reports name it from the first step on.
static void plan_when_known(bl_driver_t *driver) {
  if (driver->setup.round != BL__ROUND_CONNECT || driver->setup.round_open > 0 || bl__plans_setting_up(driver) ||
      !bl_stores_known(driver->stores)) {
    return;
  }
  if (!bl__plans_begin(driver)) {
    bl__setup_end(driver);
  }
  bl__driver_pump(driver);
}

static void round_end(bl_driver_t *driver) {
  switch (driver->setup.round) {
  case BL__ROUND_FORGET:
    round_begin(driver, BL__ROUND_CONFIGURE);
    break;
  case BL__ROUND_CONFIGURE:
    if (driver->setup.anew) {
      bl_driver_step_reset(&driver->step, driver->options.resume != NULL ? driver->options.resume->step : 0);
    }
    bl__choices_compare(driver);
    round_begin(driver, BL__ROUND_CONNECT);
    break;
  case BL__ROUND_CONNECT:
    plan_when_known(driver);
    break;
  case BL__ROUND_ABORT:
    if (driver->options.own_stages) {
      round_begin(driver, BL__ROUND_LEAVE);
      break;
    }
    // fall through
  case BL__ROUND_LEAVE:
    driver->state = BL__RUN_STOPPED;
    driver->options.observer.ended(driver->control.exit_code, driver->options.observer.context);
    break;
  }
}

static void round_failed(bl_remote_t *stage, const bl_error_t *err) {
  bl_driver_t *driver = stage->driver;
  char name[BL__STAGE_NAME_BYTES];
  if (bl_status_retryable(err->status)) {
    // The stage is busy, or the call was lost. presence.c finds out whether the stage is alive.
    driver->setup.round_retry[stage->index] = true;
    stage->ask_again_ms = bl__driver_now_ms(driver) + BL__RETRY_MS;
    if (err->status != BL_EXHAUSTED) {
      bl__presence_doubt(stage);
    }
    if (driver->setup.failures == 0 || strcmp(driver->setup.failure.text, err->text) != 0) {
      bl_log(BL_LOG_WARNING, "%s: %s; trying again", bl__stage_name(stage, name), err->text);
      driver->setup.failure = *err; // that of attempts may be why the run ends
    }
    if (++driver->setup.failures <= 50 * driver->stage_count) {
      return;
    }
  }
  bl_error_t failure = *err;
  (void)bl_error_prefix(&failure, "%s", bl__stage_name(stage, name));
  if (failure.status == BL_PRECONDITION) { // it may be another process, which does not know this run
    bl__presence_blame(stage, &failure);
    return;
  }
  bl__driver_fail(driver, &failure);
}

static void round_heard(const bl_stage_answer_t *answer, void *context) {
  bl_remote_t *stage = context;
  bl_driver_t *driver = stage->driver;
  if (driver->state != BL__RUN_SETUP) {
    return;
  }
  if (answer->err->status != BL_OK) {
    round_failed(stage, answer->err);
    return;
  }
  if (driver->setup.round == BL__ROUND_CONFIGURE) {
    keep_place(stage, &answer->place);
  } else if (driver->setup.round == BL__ROUND_CONNECT) {
    keep_paths(stage, answer->paths, answer->path_count);
  }
  driver->setup.failures = 0;
  if (--driver->setup.round_open == 0) {
    round_end(driver);
  }
}

static void ask_connect(bl_remote_t *stage) {
  bl_driver_t *driver = stage->driver;
  bl_stage_peer_t *peers = calloc(driver->stage_count, sizeof *peers);
  size_t count = 0;
  for (size_t i = 0; peers != NULL && i < driver->stage_count; i++) {
    if (bl_training_exchange(driver->options.training, (uint32_t)stage->index, (uint32_t)i)) {
      peers[count++] = (bl_stage_peer_t){.stage = (int32_t)i, .place = &driver->stages[i].place};
    }
  }
  bl_stage_client_connect(stage->client, driver->step.id, peers, count,
                          bl_job_data_path_name(bl_job_boundary_path(driver->options.job)), round_heard, stage);
  free(peers);
}

static void left(const bl_stage_answer_t *answer, void *context) {
  bl_remote_t *stage = context;
  bl_driver_t *driver = stage->driver;
  if (answer->err->status != BL_OK) {
    char name[BL__STAGE_NAME_BYTES];
    bl_log(BL_LOG_WARNING, "taking leave of %s: %s", bl__stage_name(stage, name), answer->err->text);
  }
  if (driver->state == BL__RUN_STOPPING && --driver->setup.round_open == 0) {
    round_end(driver);
  }
}

static void round_ask(bl_remote_t *stage) {
  bl_driver_t *driver = stage->driver;
  switch (driver->setup.round) {
  case BL__ROUND_CONFIGURE:
    bl_stage_client_configure(stage->client, driver->step.id, &stage->configuration, round_heard, stage);
    break;
  case BL__ROUND_CONNECT:
    ask_connect(stage);
    break;
  case BL__ROUND_FORGET:
    bl_stage_client_release(stage->client, driver->step.id, round_heard, stage);
    break;
  case BL__ROUND_ABORT:
    bl_stage_client_abort(stage->client, driver->step.id, driver->step.applied + 1, driver->step.highest_attempt, left,
                          stage);
    break;
  case BL__ROUND_LEAVE:
    if (driver->options.own_stages) {
      bl_stage_client_stop(stage->client, driver->step.id, left, stage);
    } else {
      bl_stage_client_release(stage->client, driver->step.id, left, stage);
    }
    break;
  }
}

void bl__setup_begin(bl_driver_t *driver) {
  driver->state = BL__RUN_SETUP;
  driver->attempts.failures = driver->setup.failures = 0;
  for (size_t i = 0; i < driver->stage_count; i++) {
    driver->setup.anew = driver->setup.anew || !driver->peers[i].report.ours;
  }
  for (size_t i = 0; i < driver->stage_count && !driver->setup.anew; i++) {
    // They continue with what they have, whatever checkpoint that began from.
    bl_remote_t *stage = &driver->stages[i];
    stage->configuration.resume_digest = stage->resumed;
  }
  if (!driver->setup.anew && !driver->step.starts_over) {
    bl_log(BL_LOG_INFO, "stages hold this job at step %" PRIu64 ": going on", driver->step.applied);
    round_begin(driver, BL__ROUND_CONFIGURE);
    return;
  }
  const char *path = driver->options.resume != NULL ? driver->options.resume->path : "";
  const char *from = path[0] != '\0' ? "from " : "at the first step";
  bl__driver_set_phase(driver, "configuring", "", 0);
  driver->setup.anew = true;
  if (driver->step.starts_over) {
    char name[BL__STAGE_NAME_BYTES];
    bl_log(BL_LOG_WARNING, "%s was restarted and has lost its state; all stages restart %s%s",
           bl__stage_name(&driver->stages[driver->step.end_stage], name), from, path);
    round_begin(driver, BL__ROUND_FORGET);
  } else {
    bl_log(BL_LOG_INFO, "all stages start %s%s", from, path);
    round_begin(driver, BL__ROUND_CONFIGURE);
  }
}

void bl__setup_tick(bl_driver_t *driver) {
  uint64_t now = bl__driver_now_ms(driver);
  for (size_t i = 0; i < driver->stage_count; i++) {
    if (driver->setup.round_retry[i] && now >= driver->stages[i].ask_again_ms) {
      driver->setup.round_retry[i] = false;
      round_ask(&driver->stages[i]);
    }
  }
  plan_when_known(driver);
}

void bl__leave_begin(bl_driver_t *driver, bool abort, bool release) {
  if (abort) {
    round_begin(driver, BL__ROUND_ABORT);
  } else if (release || driver->options.own_stages) {
    round_begin(driver, BL__ROUND_LEAVE);
  } else {
    driver->setup.round = BL__ROUND_LEAVE;
    round_end(driver);
  }
}
