// SPDX-License-Identifier: Apache-2.0
// Private to lib/config: checks of a job that need only the job.
#ifndef BALLAST_CONFIG_JOB_CHECK_H
#define BALLAST_CONFIG_JOB_CHECK_H

#include "config/job.h"

// Call after derived defaults are filled in. BL_INVALID: `err` names the key, its place and what would be right.
BL_MUST_USE bl_status_t bl__job_check(const bl_job_t *job, bl_error_t *err);

#endif
