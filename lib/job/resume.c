// SPDX-License-Identifier: Apache-2.0
#include "job/resume.h"

#include "base/words.h"
#include "job/checkpoint.h"
#include "job/checkpoint_folder.h"

#include <inttypes.h>
#include <stdio.h>

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
  const bool layers = resume->tensor_parts != job->parallel.tensor_parts.value;
  const long long parts = layers ? job->parallel.tensor_parts.value : job->parallel.data_parts.value;
  const long long before = layers ? resume->tensor_parts : resume->data_parts;
  if (resume->path[0] == '\0' || before == parts) {
    return false;
  }
  snprintf(text, BL_RESUME_WARNING,
           "%.256s was written by a run whose %s have %lld part%s, the job has %lld (parallel.%s_parts): it continues, "
           "but not to the bits of a run that never stopped",
           resume->path, layers ? "layers" : "gradients", before, bl_plural(before), parts, layers ? "tensor" : "data");
  return true;
}
