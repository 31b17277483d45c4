// SPDX-License-Identifier: Apache-2.0
// The model that a job trains, from the job file alone or from a Hugging Face config.json.
//
// With `model.config`, that file describes the model; with `model.init` alone, the config.json in that folder does.
// Then `model.seq` overrides, and any other model key that the job gives must agree with the file.
// Reads files. Thread: any.
#ifndef BALLAST_JOB_ARCHITECTURE_H
#define BALLAST_JOB_ARCHITECTURE_H

#include "config/job.h"
#include "model/model.h"

// Sets *model, checked by bl_model_check. BL_INVALID and BL_UNIMPLEMENTED name the key of the job, or the file and its
// key; BL_NOT_FOUND and BL_IO name the file.
BL_MUST_USE bl_status_t bl_architecture_read(const bl_job_t *job, bl_model_t *model, bl_error_t *err);

#endif
