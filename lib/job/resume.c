// SPDX-License-Identifier: Apache-2.0
#include "job/resume.h"

#include "base/words.h"
#include "job/checkpoint.h"
#include "job/checkpoint_folder.h"
#include "sys/file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VALUE_MOST 120 // bytes of a value in a warning

static bl_status_t check(const bl_checkpoint_t *checkpoint, uint64_t step, const bl_job_t *job, const bl_model_t *model,
                         bool thorough, bl_error_t *err) {
  const bl_checkpoint_state_t *state = &checkpoint->state;
  if (state->step != step) {
    return bl_error_set(err, BL_INVALID, "%s: is of step %" PRIu64 " by its " BL_CHECKPOINT_STATE_FILE,
                        checkpoint->folder, state->step);
  }
  bl_status_t status = bl_checkpoint_check(checkpoint, model, err);
  if (status == BL_OK && state->seed != job->train.seed) {
    status = bl_error_set(err, BL_INVALID,
                          "%s: was trained with train.seed %" PRId64 ", the job says %" PRId64
                          ": the data would come in another order",
                          checkpoint->folder, state->seed, (int64_t)job->train.seed);
  }
  return status == BL_OK && thorough ? bl_checkpoint_verify(checkpoint, err) : status;
}

// The newest checkpoint is not complete: adds to `err` what can be done instead. No checkpoint is skipped silently.
static bl_status_t advise(const bl_resume_t *found, const char *folder, bl_status_t status, bl_error_t *err) {
  uint64_t before;
  if (err == NULL) {
    return status;
  }
  if (bl_checkpoint_folder_before(folder, found->step, &before, NULL) == BL_OK) {
    return bl_error_set(err, status, "%s; move %s away to continue from step %" PRIu64, err->text, found->path, before);
  }
  return bl_error_set(err, status,
                      "%s; there is no checkpoint before it: without --resume the run starts from the beginning",
                      err->text);
}

// ---- what the job had otherwise -------------------------------------------------------------------------------------

// Returns whether the row decides the losses of the following steps. Other models and seeds are refused.
static bool decides(const bl_option_t *row, const bl_job_t *job) {
  static const char *const without[] = {"train.seed", "train.validate_every", "train.post_validation",
                                        "train.optimizer_memory"};
  static const char *const others[] = {"model.config", "model.init", "model.seq"};
  const bool cosine = job->train.lr_schedule == BL_JOB_LR_COSINE;
  for (size_t i = 0; i < sizeof without / sizeof without[0]; i++) {
    if (strcmp(row->name, without[i]) == 0) {
      return false;
    }
  }
  if (strcmp(row->name, "train.steps") == 0 || strcmp(row->name, "train.min_lr") == 0) {
    return cosine;
  }
  for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
    if (strcmp(row->name, others[i]) == 0) {
      return true;
    }
  }
  return strncmp(row->name, "data.", strlen("data.")) == 0 || strncmp(row->name, "train.", strlen("train.")) == 0;
}

static void add_change(bl_resume_t *found, const char *key, const char *before, const char *now) {
  const size_t used = strlen(found->changes), room = sizeof found->changes - used;
  const int needed =
      snprintf(found->changes + used, room, "%s%s %.*s%s (now %.*s%s)", used > 0 ? ", " : "", key, VALUE_MOST, before,
               strlen(before) > VALUE_MOST ? "..." : "", VALUE_MOST, now, strlen(now) > VALUE_MOST ? "..." : "");
  if (needed < 0 || (size_t)needed >= room) {
    snprintf(found->changes + used, room, ", ...");
  }
}

static void compare(bl_resume_t *found, const bl_job_t *before, const bl_job_t *job) {
  const bl_option_table_t *table = bl_job_options();
  for (size_t i = 0; i < table->count; i++) {
    const bl_option_t *row = &table->rows[i];
    const bool replaced =
        strcmp(row->name, "model.init") == 0 && job->model.init != NULL && strcmp(job->model.init, found->path) == 0;
    if (replaced || !decides(row, job)) {
      continue;
    }
    char *then = bl_option_text(row, before), *now = bl_option_text(row, job);
    if (then != NULL && now != NULL && strcmp(then, now) != 0) {
      add_change(found, row->name, then, now);
    }
    free(then);
    free(now);
  }
}

// A job of another version of the programs may not be understood. Then nothing is known.
static void find_changes(bl_resume_t *found, const bl_job_t *job) {
  char path[PATH_MAX], *bytes;
  size_t size_bytes;
  bl_job_t before;
  bl_error_t fault;
  if (bl_path_join(path, sizeof path, found->path, BL_CHECKPOINT_JOB_FILE) != BL_OK ||
      bl_file_read(path, BL_OPTIONS_FILE_BYTES, &bytes, &size_bytes, &fault) != BL_OK) {
    return;
  }
  const bl_job_source_t source = {.file = {.name = path, .bytes = bytes, .size_bytes = size_bytes}};
  if (bl_job_parse(&before, &source, &fault) == BL_OK) {
    compare(found, &before, job);
    bl_job_cleanup(&before);
  }
  free(bytes);
}

bool bl_resume_changes_warning(const bl_resume_t *resume, char text[BL_RESUME_WARNING]) {
  if (resume->changes[0] == '\0') {
    return false;
  }
  snprintf(text, BL_RESUME_WARNING,
           "%.256s was written by a run with %s: it continues, but not to the bits of a run that never stopped",
           resume->path, resume->changes);
  return true;
}

// ---- finding --------------------------------------------------------------------------------------------------------

static bool is_gone(const char *folder) {
  return folder != NULL && access(folder, F_OK) != 0 && errno == ENOENT;
}

bool bl_resume_init_from(bl_job_t *job, const char *checkpoint) {
  char config[PATH_MAX];
  if (!is_gone(job->model.init) || bl_path_join(config, sizeof config, checkpoint, "config.json") != BL_OK ||
      access(config, R_OK) != 0) {
    return false;
  }
  char *folder = strdup(checkpoint);
  if (folder == NULL) {
    return false;
  }
  free(job->model.init);
  job->model.init = folder;
  return true;
}

bool bl_resume_replace_init(bl_job_t *job, char given[PATH_MAX]) {
  char path[PATH_MAX];
  uint64_t step;
  if (!is_gone(job->model.init) || job->checkpoint.folder == NULL ||
      bl_checkpoint_folder_newest(job->checkpoint.folder, path, &step, NULL) != BL_OK) {
    return false;
  }
  snprintf(given, PATH_MAX, "%s", job->model.init);
  if (!bl_resume_init_from(job, path)) {
    given[0] = '\0';
    return false;
  }
  return true;
}

bl_status_t bl_resume_dump_job(const bl_job_t *job, char *given, char **text, size_t *text_bytes) {
  bl_job_t dumped = *job; // borrows
  if (given != NULL && given[0] != '\0') {
    dumped.model.init = given;
  }
  return bl_job_dump(&dumped, text, text_bytes);
}

bl_status_t bl_resume_find(bl_resume_t *resume, const bl_job_t *job, const bl_model_t *model, bool thorough,
                           bl_error_t *err) {
  bl_resume_t found = {0};
  if (job->checkpoint.folder == NULL) {
    return bl_job_fail(job, err, "checkpoint.folder", "is missing; there is nothing to resume from without it");
  }
  bl_status_t status = bl_checkpoint_folder_newest(job->checkpoint.folder, found.path, &found.step, err);
  if (status != BL_OK) {
    return status;
  }
  bl_checkpoint_t checkpoint;
  status = bl_checkpoint_open(&checkpoint, found.path, err);
  if (status != BL_OK) {
    const bool other = status == BL_EXHAUSTED || status == BL_DENIED || status == BL_UNIMPLEMENTED;
    return other ? status : advise(&found, job->checkpoint.folder, status == BL_NOT_FOUND ? BL_INVALID : status, err);
  }
  found.digest = checkpoint.digest;
  found.tensor_parts = checkpoint.state.tensor_parts;
  found.data_parts = checkpoint.state.data_parts;
  found.slices = checkpoint.state.slices;
  snprintf(found.attention, sizeof found.attention, "%s", checkpoint.state.attention);
  status = check(&checkpoint, found.step, job, model, thorough, err);
  bl_checkpoint_close(&checkpoint);
  if (status == BL_DATA_LOSS) {
    status = advise(&found, job->checkpoint.folder, status, err);
  }
  if (status == BL_OK) {
    find_changes(&found, job);
    *resume = found;
  }
  return status;
}

bool bl_resume_warning(const bl_resume_t *resume, const bl_job_t *job, char text[BL_RESUME_WARNING]) {
  const struct {
    const char *key, *of, *part;
    long long before, now;
  } numbers[] = {
      {"parallel.tensor_parts", "layers", "part", resume->tensor_parts, job->parallel.tensor_parts.value},
      {"parallel.data_parts", "gradients", "part", resume->data_parts, job->parallel.data_parts.value},
      {"pipeline.slices", "sequences", "slice", resume->slices, job->pipeline.slices.value},
  };
  static const char consequence[] = "it continues, but not to the bits of a run that never stopped";
  const char *attention = bl_job_attention_name(job->pipeline.attention);
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0] && resume->path[0] != '\0'; i++) {
    if (numbers[i].before != 0 && numbers[i].before != numbers[i].now) {
      snprintf(text, BL_RESUME_WARNING,
               "%.256s was written by a run whose %s have %lld %s%s, the job has %lld (%s): %s", resume->path,
               numbers[i].of, numbers[i].before, numbers[i].part, bl_plural(numbers[i].before), numbers[i].now,
               numbers[i].key, consequence);
      return true;
    }
  }
  if (resume->path[0] != '\0' && resume->attention[0] != '\0' && strcmp(resume->attention, attention) != 0) {
    snprintf(text, BL_RESUME_WARNING,
             "%.256s was written by a run with %s attention, the job has %s (pipeline.attention): %s", resume->path,
             resume->attention, attention, consequence);
    return true;
  }
  return false;
}
