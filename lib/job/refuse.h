// SPDX-License-Identifier: Apache-2.0
// Shared inside lib/job: refusing what this version does not do. Thread: any.
#ifndef BALLAST_JOB_REFUSE_H
#define BALLAST_JOB_REFUSE_H

#include "config/job.h"

// As bl_job_fail, with BL_UNIMPLEMENTED: the value is a known one, and nothing is ever trained as if it had not been
// given.
BL_MUST_USE bl_status_t bl__job_refuse(const bl_job_t *job, bl_error_t *err, const char *key, const char *text);

// Looks at every setting that asks for something this version does not do: BL_UNIMPLEMENTED names the first. BL_INVALID:
// a policy that would evict under full recomputation, in any version.
BL_MUST_USE bl_status_t bl__job_check_supported(const bl_job_t *job, bl_error_t *err);

#endif
