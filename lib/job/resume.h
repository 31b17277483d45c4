// SPDX-License-Identifier: Apache-2.0
// Where `--resume` continues: the newest checkpoint of a job's folder, if it fits the job.
//
// Reads files. Thread: any.
#ifndef BALLAST_JOB_RESUME_H
#define BALLAST_JOB_RESUME_H

#include "config/job.h"
#include "model/model.h"

#include <limits.h>

#define BL_RESUME_ATTENTION 16
#define BL_RESUME_CHANGES   768

typedef struct bl_resume {
  char path[PATH_MAX]; // "": start from scratch
  uint64_t step;
  uint64_t digest; // of the checkpoint (job/checkpoint.h), 0: none
  // Of the run that wrote it. With others, the following steps have other bits.
  int64_t tensor_parts, data_parts, slices; // slices 0: not known
  char attention[BL_RESUME_ATTENTION];      // "": not known
  char changes[BL_RESUME_CHANGES];          // keys of data, train and model that its job had otherwise; "": none
} bl_resume_t;

// If the folder of model.init is gone, names the newest checkpoint there: it has the weights, the description of the
// model and its other files. Call this before the job is resolved. Returns whether it did, with `given`: what the job
// named; otherwise both are as before.
bool bl_resume_replace_init(bl_job_t *job, char given[PATH_MAX]);
// The same with the checkpoint that the caller resumes from.
bool bl_resume_init_from(bl_job_t *job, const char *checkpoint);
// As bl_job_dump, with the folder `given` (NULL or "": the job's) as model.init: the text of a job, by which stages know
// it again, does not depend on which checkpoint is the newest, and names none that will be deleted.
BL_MUST_USE bl_status_t bl_resume_dump_job(const bl_job_t *job, char *given, char **text, size_t *text_bytes);

// Finds the newest checkpoint and checks what can be checked from its headers: format, sizes, the seed, and that it is
// one of `model` (bl_checkpoint_check). With `thorough` also every checksum, for which it reads
// everything. BL_NOT_FOUND: there is none; BL_INVALID: no checkpoint.folder, another model or seed; otherwise as
// bl_checkpoint_open.
BL_MUST_USE bl_status_t bl_resume_find(bl_resume_t *resume, const bl_job_t *job, const bl_model_t *model, bool thorough,
                                       bl_error_t *err);

#define BL_RESUME_WARNING 1280
// Returns whether the following steps will not have the bits of a run that never stopped. Then `text` has the reason.
bool bl_resume_warning(const bl_resume_t *resume, const bl_job_t *job, char text[BL_RESUME_WARNING]);
// The same for what the job itself says: data, numbers of training, model.
bool bl_resume_changes_warning(const bl_resume_t *resume, char text[BL_RESUME_WARNING]);

#endif
