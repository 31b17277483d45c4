// SPDX-License-Identifier: Apache-2.0
#include "job/resume.h"

#include "base/words.h"
#include "job/checkpoint.h"
#include "job/checkpoint_folder.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

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
