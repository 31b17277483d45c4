// SPDX-License-Identifier: Apache-2.0
// Private to lib/job: refuses what this version does not support. Thread: any.
#ifndef BALLAST_JOB_REFUSE_H
#define BALLAST_JOB_REFUSE_H

#include "config/job.h"

// Checks every setting. BL_UNIMPLEMENTED names the first that asks for something this version does not support.
// BL_INVALID: a policy that would evict under full recomputation, which no version supports.
BL_MUST_USE bl_status_t bl__job_check_supported(const bl_job_t *job, bl_error_t *err);

#endif
