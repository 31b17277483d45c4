// SPDX-License-Identifier: Apache-2.0
#include "checkpoint.h"

#include "base/words.h"
#include "driver_core.h"
#include "job/checkpoint_folder.h"
#include "sys/clock.h"
#include "sys/log.h"
#include "sys/version.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHARDS_OF_STAGE 2
#define WAIT_NOTED_NS   (100ull * BL_NS_PER_MS) // a shorter wait for the disk does not deserve a warning

static void ask(bl__save_part_t *part);

// ---- setup ----------------------------------------------------------------------------------------------------------

static void commit_work(bl_task_t *task);
static void commit_done(bl_task_t *task);

static const char *folder_of(const bl_driver_t *driver) {
  return driver->options.job->checkpoint.folder;
}

bl_status_t bl__save_prepare(bl_driver_t *driver, bl_error_t *err) {
  bl__save_t *save = &driver->save;
  if (folder_of(driver) == NULL) {
    return BL_OK;
  }
  save->parts = calloc(driver->stage_count, sizeof *save->parts);
  save->shards = calloc(SHARDS_OF_STAGE * driver->stage_count, sizeof *save->shards);
  if (save->parts == NULL || save->shards == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for checkpoints");
  }
  for (size_t i = 0; i < driver->stage_count; i++) {
    save->parts[i] = (bl__save_part_t){.driver = driver, .stage = i};
  }
  bl_status_t status = bl_companions_read(&save->companions, driver->options.job, err);
  if (status != BL_OK) {
    return status;
  }
  bl_task_init(&save->commit, commit_work, commit_done);
  return bl_worker_create_resting(driver->loop, "checkpoint", &save->worker, err);
}

static void drop_shards(bl__save_t *save) {
  for (size_t i = 0; i < save->shard_count; i++) {
    bl_checkpoint_file_t *file = &save->shards[i];
    for (size_t k = 0; k < file->tensor_count; k++) {
      free((void *)(uintptr_t)file->tensors[k].name);
    }
    free(file->tensors);
    free((void *)(uintptr_t)file->name);
  }
  save->shard_count = 0;
}

void bl__save_cleanup(bl_driver_t *driver) {
  bl__save_t *save = &driver->save;
  if (save->worker != NULL) {
    bl_worker_destroy(save->worker); // waits for a commit that has begun
    bl_loop_drain(driver->loop);
  }
  if (bl__save_is_busy(driver)) { // it will not be committed
    bl_checkpoint_folder_discard(save->partial);
  }
  drop_shards(save);
  bl_companions_cleanup(&save->companions);
  free(save->parts);
  free(save->shards);
  while (save->waits != NULL) {
    bl__save_wait_t *wait = save->waits;
    save->waits = wait->next;
    free(wait);
  }
}

bl_status_t bl__save_enter(bl_driver_t *driver, bl_error_t *err) {
  const char *folder = folder_of(driver);
  bl__save_t *save = &driver->save;
  if (folder == NULL) {
    return BL_OK;
  }
  if (driver->setup.anew && driver->step.applied > 0) {
    save->tried = driver->step.applied; // it was just read
    snprintf(save->path, sizeof save->path, "%s", driver->options.resume->path);
  }
  if (bl_checkpoint_folder_try(folder, err) != BL_OK) {
    return bl_error_prefix(err, "checkpoint.folder");
  }
  size_t count;
  bl_error_t fault;
  if (bl_checkpoint_folder_sweep(folder, &count, &fault) != BL_OK) {
    bl_log(BL_LOG_WARNING, "what an earlier run left half written stays: %s", fault.text);
  } else if (count > 0) {
    bl_log(BL_LOG_WARNING, "%s: removed %zu checkpoint%s that %s never finished", folder, count, bl_plural(count),
           count == 1 ? "was" : "were");
  }
  if (!driver->setup.anew) { // the driver before may have saved the step that stages hold
    uint64_t newest;
    if (bl_checkpoint_folder_newest(folder, save->path, &newest, &fault) == BL_OK && newest == driver->step.applied) {
      save->tried = newest;
    }
    return BL_OK;
  }
  if (driver->step.applied > 0) {
    return BL_OK;
  }
  char aside[PATH_MAX];
  bl_status_t status = bl_checkpoint_folder_set_aside(folder, aside, &count, err);
  if (status == BL_OK && count > 0) {
    snprintf(save->aside, sizeof save->aside, "%s", aside);
    bl_log(BL_LOG_WARNING, "this run starts from the beginning: of an earlier one %zu checkpoint%s in %s now", count,
           count == 1 ? " is" : "s are", aside);
  }
  return status;
}

// ---- the end of a checkpoint ----------------------------------------------------------------------------------------

// `all`: also those whose checkpoint has not begun.
static void tell_waits(bl_driver_t *driver, bool all, const char *path, const bl_error_t *err) {
  bl__save_wait_t *waits = driver->save.waits;
  driver->save.waits = NULL;
  while (waits != NULL) {
    bl__save_wait_t *wait = waits;
    waits = wait->next;
    if (!all && !wait->begun) {
      wait->next = driver->save.waits;
      driver->save.waits = wait;
      continue;
    }
    wait->done(driver->save.tried, path, err, wait->context);
    free(wait);
  }
}

void bl__save_end_waits(bl_driver_t *driver, const bl_error_t *err) {
  tell_waits(driver, true, "", err);
}

static void end(bl_driver_t *driver, const bl_error_t *err) {
  bl__save_t *save = &driver->save;
  bool good = err->status == BL_OK;
  bl_checkpoint_event_t event = {.step = save->step,
                                 .seconds = (double)(bl_clock_now_ns() - save->began_ns) * 1e-9,
                                 .stopped_seconds = (double)save->stopped_ns * 1e-9};
  for (size_t i = 0; i < save->shard_count; i++) {
    event.bytes += save->shards[i].size_bytes;
  }
  snprintf(event.folder, sizeof event.folder, "%s", good ? save->path : folder_of(driver));
  snprintf(event.error, sizeof event.error, "%s", good ? "" : err->text);
  if (good) {
    bl_log(BL_LOG_INFO, "checkpoint %s: %" PRIu64 " bytes in %.3f s, training stopped for %.3f s", save->path,
           event.bytes, event.seconds, event.stopped_seconds);
  } else {
    bl_log(BL_LOG_ERROR, "no checkpoint of step %" PRIu64 ": %s", save->step, err->text);
  }
  bl_run_journal_add_checkpoint(&driver->journal, &event);
  drop_shards(save);
  save->phase = BL__SAVE_IDLE;
  save->tried = save->step;
  save->err = *err;
  bl_error_clear(&save->failure);
  driver->options.observer.changed(driver->options.observer.context);
  tell_waits(driver, false, event.folder, err);
}

static void commit_work(bl_task_t *task) {
  bl__save_t *save = BL_TASK_OWNER(task, bl__save_t, commit);
  const bl_driver_t *driver = save->parts[0].driver;
  const bl_job_t *job = driver->options.job;
  bl_checkpoint_contents_t contents = {.step = save->step,
                                       .seed = job->train.seed,
                                       .tensor_parts = job->parallel.tensor_parts.value,
                                       .data_parts = job->parallel.data_parts.value,
                                       .slices = job->pipeline.slices.value,
                                       .attention = bl_job_attention_name(job->pipeline.attention),
                                       .writer = bl_version(),
                                       .job = driver->setup.job_text,
                                       .model = &driver->options.training->model,
                                       .shards = save->shards,
                                       .shard_count = save->shard_count,
                                       .companions = &save->companions};
  bl_error_clear(&save->commit_err);
  bl_error_clear(&save->prune_err);
  if (save->failure.status != BL_OK) {
    save->commit_err = save->failure;
    bl_checkpoint_folder_discard(save->partial);
    return;
  }
  bl_status_t status = bl_checkpoint_seal(save->partial, &contents, &save->commit_err);
  if (status == BL_OK) {
    status = bl_checkpoint_folder_commit(folder_of(driver), save->partial, save->step, save->path, &save->commit_err);
  }
  save->commit_err.status = status;
  if (status != BL_OK) {
    bl_checkpoint_folder_discard(save->partial);
    return;
  }
  save->prune_err.status =
      bl_checkpoint_folder_prune(folder_of(driver), (uint64_t)job->checkpoint.keep, &save->prune_err);
}

// Returns what became of it.
static bl_error_t commit_ended(bl_driver_t *driver) {
  const bl__save_t *save = &driver->save;
  if (save->prune_err.status != BL_OK) {
    bl_log(BL_LOG_WARNING, "an old checkpoint could not be deleted: %s", save->prune_err.text);
  }
  const bl_error_t err = save->commit_err;
  end(driver, &err);
  return err;
}

static void commit_done(bl_task_t *task) {
  bl__save_t *save = BL_TASK_OWNER(task, bl__save_t, commit);
  bl_driver_t *driver = save->parts[0].driver;
  if (driver->state == BL__RUN_STOPPED) {
    return;
  }
  const bool finite = save->failure.status != BL_DATA_LOSS; // what a stage answers if its numbers are not
  bl_error_t err = commit_ended(driver);
  if (!finite) { // no later checkpoint could be written
    char cause[BL_ERROR_TEXT_BYTES];
    memcpy(cause, err.text, sizeof cause);
    (void)bl_error_set(&err, BL_PRECONDITION, "step %" PRIu64 " is not saved: %s; %s", save->step, cause,
                       bl_finite_advice(driver->options.job->train.clip));
    bl__driver_fail(driver, &err);
    return;
  }
  bl__driver_pump(driver);
}

// ---- calls to stages ------------------------------------------------------------------------------------------------

typedef struct {
  bl__save_part_t *part;
  uint64_t number;
  bl__save_phase_t phase;
} asked_t;

static bl_checkpoint_file_t *find_file(bl__save_t *save, const char *name) {
  for (size_t i = 0; i < save->shard_count; i++) {
    if (strcmp(save->shards[i].name, name) == 0) {
      return &save->shards[i];
    }
  }
  return NULL;
}

// Adds what another rank has written of the same file. Each writes its elements of the tensors, so checksums add up.
static bool add_file(bl_checkpoint_file_t *to, const bl_checkpoint_file_t *from) {
  bool same = to->size_bytes == from->size_bytes && to->head_checksum == from->head_checksum &&
              to->tensor_count == from->tensor_count;
  for (size_t k = 0; same && k < to->tensor_count; k++) {
    same = strcmp(to->tensors[k].name, from->tensors[k].name) == 0 &&
           to->tensors[k].tile_bytes == from->tensors[k].tile_bytes;
    to->tensors[k].checksum += from->tensors[k].checksum;
  }
  return same;
}

// All ranks with copies of the same layers write one file together: those of a stage, and with two pipes those of the
// stage at the other end as well.
static uint32_t count_files(const bl_driver_t *driver) {
  const bl_grid_t *grid = &driver->options.training->grid;
  return grid->stages / bl_copies_pipes(bl_grid_copies(grid));
}

static uint32_t number_of_file(const bl_driver_t *driver, size_t rank) {
  const uint32_t stage = bl_grid_coords(&driver->options.training->grid, (uint32_t)rank).stage;
  return stage < count_files(driver) ? stage : driver->options.training->grid.stages - 1 - stage;
}

static const char *name_of_file(const bl_driver_t *driver, size_t rank, size_t kind,
                                char text[BL_CHECKPOINT_SHARD_BYTES]) {
  return bl_checkpoint_shard_name((bl_checkpoint_shard_kind_t)kind, number_of_file(driver, rank), count_files(driver),
                                  text);
}

static bl_status_t keep_files(const bl__save_part_t *part, const bl_stage_answer_t *answer) {
  bl__save_t *save = &part->driver->save;
  if (answer->file_count != SHARDS_OF_STAGE) {
    return BL_INTERNAL;
  }
  for (size_t i = 0; i < SHARDS_OF_STAGE; i++) {
    const bl_checkpoint_file_t *from = &answer->files[i];
    char name[BL_CHECKPOINT_SHARD_BYTES];
    if (strcmp(from->name, name_of_file(part->driver, part->stage, i, name)) != 0) {
      return BL_INTERNAL;
    }
    bl_checkpoint_file_t *to = find_file(save, from->name);
    if (to != NULL) { // from another rank that shares its layers
      if (!add_file(to, from)) {
        return BL_INTERNAL;
      }
      continue;
    }
    to = &save->shards[save->shard_count];
    *to = *from;
    to->name = strdup(from->name);
    to->tensors = calloc(from->tensor_count + 1, sizeof *to->tensors);
    to->tensor_count = 0;
    save->shard_count++;
    if (to->name == NULL || to->tensors == NULL) {
      return BL_EXHAUSTED;
    }
    for (size_t k = 0; k < from->tensor_count; k++) {
      to->tensors[k] = from->tensors[k];
      to->tensors[k].name = strdup(from->tensors[k].name);
      to->tensor_count++;
      if (to->tensors[k].name == NULL) {
        return BL_EXHAUSTED;
      }
    }
  }
  return BL_OK;
}

static bool all_answered(const bl_driver_t *driver) {
  for (size_t i = 0; i < driver->stage_count; i++) {
    if (!driver->save.parts[i].answered) {
      return false;
    }
  }
  return true;
}

static void ask_all(bl_driver_t *driver) {
  uint64_t now = bl__driver_now_ms(driver);
  for (size_t i = 0; i < driver->stage_count; i++) {
    bl__save_part_t *part = &driver->save.parts[i];
    if (!part->asked && !part->answered && now >= part->again_ms) {
      ask(part);
    }
  }
}

static void enter(bl_driver_t *driver, bl__save_phase_t phase) {
  bl__save_t *save = &driver->save;
  save->phase = phase;
  for (size_t i = 0; i < driver->stage_count; i++) {
    save->parts[i].asked = save->parts[i].answered = false;
    save->parts[i].again_ms = 0;
  }
  if (phase == BL__SAVE_COMMITTING) {
    bl_worker_submit(save->worker, &save->commit);
  } else {
    ask_all(driver);
  }
}

// Returns whether the call is repeated: it was lost, or the stage is busy. A copy waits for the one before. A file
// that cannot be written is an answer.
static bool asks_again(bl__save_phase_t phase, bl_status_t status) {
  return status == BL_UNAVAILABLE || status == BL_DEADLINE || (phase == BL__SAVE_COPYING && status == BL_EXHAUSTED);
}

// Records that a stage failed. The first cause is reported when no stage writes any more and the folder is removed.
static void part_failed(bl__save_part_t *part, const bl_error_t *err) {
  bl__save_t *save = &part->driver->save;
  char name[BL__STAGE_NAME_BYTES];
  if (save->failure.status == BL_OK) {
    save->failure = *err;
    (void)bl_error_prefix(&save->failure, "%s", bl__stage_name(&part->driver->stages[part->stage], name));
  }
}

// Returns whether the stage is done, successfully or not.
static bool take_answer(bl__save_part_t *part, const bl_stage_answer_t *answer) {
  bl_driver_t *driver = part->driver;
  bl__save_t *save = &driver->save;
  if (asks_again(save->phase, answer->err->status)) {
    part->again_ms = bl__driver_now_ms(driver) + BL__RETRY_MS;
    if (answer->err->status != BL_EXHAUSTED) {
      bl__presence_doubt(&driver->stages[part->stage]);
    }
    return false;
  }
  bl_error_t err = *answer->err;
  if (err.status == BL_OK && save->phase == BL__SAVE_WRITING) {
    const bl_status_t kept = keep_files(part, answer);
    if (kept != BL_OK) {
      (void)bl_error_set(&err, kept,
                         kept == BL_EXHAUSTED
                             ? "no memory for what it has written"
                             : "it wrote other files than those asked for, or than the ranks that share them");
    }
  }
  if (err.status != BL_OK) {
    part_failed(part, &err);
  }
  part->answered = true;
  return true;
}

static void heard(const bl_stage_answer_t *answer, void *context) {
  asked_t asked = *(asked_t *)context;
  free(context);
  bl__save_part_t *part = asked.part;
  bl_driver_t *driver = part->driver;
  bl__save_t *save = &driver->save;
  if (driver->state >= BL__RUN_STOPPING || asked.number != save->number || asked.phase != save->phase) {
    return;
  }
  part->asked = false;
  if (!take_answer(part, answer) || !all_answered(driver)) {
    return;
  }
  if (save->phase == BL__SAVE_COPYING && save->failure.status == BL_OK) {
    save->stopped_ns = bl_clock_now_ns() - save->began_ns;
    enter(driver, BL__SAVE_WRITING);
    bl__driver_pump(driver);
  } else if (save->failure.status == BL_OK) {
    save->phase = BL__SAVE_WRITTEN;
    save->written_ns = bl_clock_now_ns();
    bl__driver_pump(driver);
  } else {
    enter(driver, BL__SAVE_COMMITTING);
  }
}

static void ask(bl__save_part_t *part) {
  bl_driver_t *driver = part->driver;
  const bl__save_t *save = &driver->save;
  bl_stage_client_t *client = driver->stages[part->stage].client;
  asked_t *asked = malloc(sizeof *asked);
  if (asked == NULL) {
    part->again_ms = bl__driver_now_ms(driver) + BL__RETRY_MS;
    return;
  }
  *asked = (asked_t){.part = part, .number = save->number, .phase = save->phase};
  part->asked = true;
  if (save->phase == BL__SAVE_COPYING) {
    bl_stage_client_snapshot(client, driver->step.id, save->step, heard, asked);
    return;
  }
  char texts[SHARDS_OF_STAGE][BL_CHECKPOINT_SHARD_BYTES];
  const char *names[SHARDS_OF_STAGE];
  for (size_t kind = 0; kind < SHARDS_OF_STAGE; kind++) {
    names[kind] = name_of_file(driver, part->stage, kind, texts[kind]);
  }
  bl_stage_client_write_snapshot(client, driver->step.id, save->step, save->partial, names, heard, asked);
}

void bl__save_tick(bl_driver_t *driver) {
  if (driver->save.phase == BL__SAVE_COPYING || driver->save.phase == BL__SAVE_WRITING) {
    ask_all(driver);
  }
}

// ---- whether it is committed -----------------------------------------------------------------------------------------

// Returns whether a checkpoint waits to be committed, which ends now.
static bool ends_wait(bl__save_t *save) {
  const bool waits = save->phase == BL__SAVE_WRITTEN;
  save->began_ns += waits ? bl_clock_now_ns() - save->written_ns : 0; // the disk was not busy in this time
  return waits;
}

void bl__save_release(bl_driver_t *driver) {
  const bl__control_t *control = &driver->control;
  const uint64_t applied = driver->step.applied, step = driver->save.step;
  const bool last = applied >= (uint64_t)driver->options.job->train.steps;
  const bool decided =
      applied > step || driver->validation.step == step || last || control->stopping || control->paused;
  if (decided && ends_wait(&driver->save)) {
    enter(driver, BL__SAVE_COMMITTING);
  }
}

void bl__save_reject(bl_driver_t *driver, const bl_error_t *err) {
  bl__save_t *save = &driver->save;
  if (save->step != driver->step.applied) {
    return; // with the weights of an earlier step the next loss was finite
  }
  if (ends_wait(save)) {
    save->failure = *err;
    enter(driver, BL__SAVE_COMMITTING);
  } else if (save->phase == BL__SAVE_WRITING && save->failure.status == BL_OK) {
    save->failure = *err; // once no stage writes any more
  }
}

void bl__save_keep(bl_driver_t *driver) {
  if (ends_wait(&driver->save)) {
    commit_work(&driver->save.commit); // here, because the worker may not come to it before the driver has gone
    (void)commit_ended(driver);
  }
}

// ---- at a boundary --------------------------------------------------------------------------------------------------

bool bl__save_is_busy(const bl_driver_t *driver) {
  return driver->save.phase != BL__SAVE_IDLE;
}

static bool is_due(const bl_driver_t *driver) {
  const bl_job_t *job = driver->options.job;
  uint64_t applied = driver->step.applied, every = (uint64_t)job->checkpoint.every;
  const bl__save_t *save = &driver->save;
  bool again = save->waits != NULL && save->err.status != BL_OK; // it is requested once more
  if (job->checkpoint.folder == NULL || applied == 0 || (save->tried == applied && !again) ||
      (bl__save_is_busy(driver) && save->step == applied)) {
    return false;
  }
  return (every > 0 && applied % every == 0) || applied >= (uint64_t)job->train.steps || driver->control.stopping ||
         save->waits != NULL;
}

static void begin(bl_driver_t *driver) {
  bl__save_t *save = &driver->save;
  bl_error_t err;
  save->step = driver->step.applied;
  save->number++;
  save->began_ns = bl_clock_now_ns();
  save->stopped_ns = 0;
  for (bl__save_wait_t *wait = save->waits; wait != NULL; wait = wait->next) {
    wait->begun = true;
  }
  bl_checkpoint_claim_t *claim = driver->options.claim;
  // Until now an older driver may have held the folder.
  if ((claim != NULL && bl_checkpoint_claim_take(claim, driver->options.job, &err) != BL_OK) ||
      bl_checkpoint_folder_begin(folder_of(driver), save->step, driver->step.id.id, save->partial, &err) != BL_OK) {
    end(driver, &err);
    return;
  }
  enter(driver, BL__SAVE_COPYING);
}

bool bl__save_boundary(bl_driver_t *driver) {
  bl__save_t *save = &driver->save;
  if (save->phase == BL__SAVE_COPYING) {
    return true;
  }
  if (save->waits != NULL && save->tried == driver->step.applied && save->err.status == BL_OK) {
    tell_waits(driver, true, save->path, &save->err); // already saved
  }
  if (!is_due(driver)) {
    return false;
  }
  uint64_t now = bl_clock_now_ns();
  if (bl__save_is_busy(driver)) {
    save->waiting_since_ns = save->waiting_since_ns == 0 ? now : save->waiting_since_ns;
    return true;
  }
  if (save->waiting_since_ns != 0 && now - save->waiting_since_ns > WAIT_NOTED_NS) {
    bl_log(
        BL_LOG_WARNING,
        "training waited %.2f s for the checkpoint before to be written: raise checkpoint.every, or use a faster disk",
        (double)(now - save->waiting_since_ns) * 1e-9);
  }
  save->waiting_since_ns = 0;
  begin(driver);
  return save->phase == BL__SAVE_COPYING;
}

bl_status_t bl_driver_checkpoint(bl_driver_t *driver, bl_driver_saved_fn done, void *context, bl_error_t *err) {
  if (folder_of(driver) == NULL) {
    return bl_error_set(err, BL_PRECONDITION, "the job has no checkpoint.folder, so there is no place for checkpoints");
  }
  if (driver->state >= BL__RUN_STOPPING || driver->step.applied == 0) {
    return bl_error_set(err, BL_PRECONDITION, "the run %s: there is nothing to save",
                        driver->step.applied == 0 ? "has not made a step" : "has ended");
  }
  bl__save_wait_t *wait = malloc(sizeof *wait);
  if (wait == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory to wait for a checkpoint");
  }
  *wait = (bl__save_wait_t){.next = driver->save.waits, .done = done, .context = context};
  driver->save.waits = wait;
  bl__driver_pump(driver);
  return BL_OK;
}
