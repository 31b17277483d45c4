// SPDX-License-Identifier: Apache-2.0
// Where `--resume` goes on: the newest checkpoint of a job's folder, if it fits the job.
//
// Reads files. Thread: any.
#ifndef BALLAST_JOB_RESUME_H
#define BALLAST_JOB_RESUME_H

#include "config/job.h"
#include "model/model.h"

#include <limits.h>

typedef struct bl_resume {
  char path[PATH_MAX]; // "": begin anew
  uint64_t step;
  uint64_t digest; // of the checkpoint (job/checkpoint.h), 0: none
  // parallel.tensor_parts and parallel.data_parts of the run that wrote it: with other numbers the bits that follow are
  // others.
  int64_t tensor_parts, data_parts;
} bl_resume_t;

// Finds the newest checkpoint and checks what can be checked from its heads: format, sizes, every tensor the model
// needs with its moments and shape, the seed. With `thorough` also every checksum: that reads it whole. BL_NOT_FOUND:
// there is none; BL_INVALID: no checkpoint.folder, another model or seed; what bl_checkpoint_open reports else.
BL_MUST_USE bl_status_t bl_resume_find(bl_resume_t *resume, const bl_job_t *job, const bl_model_t *model, bool thorough,
                                       bl_error_t *err);

#define BL_RESUME_WARNING 512
// Whether what follows will not have the bits of a run that never stopped; then `text` says why.
bool bl_resume_warning(const bl_resume_t *resume, const bl_job_t *job, char text[BL_RESUME_WARNING]);

#endif
