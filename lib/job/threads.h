// SPDX-License-Identifier: Apache-2.0
// Checks whether this machine suits a job's `pipeline.threads`. Call it where stages compute, not where a job is only
// inspected.
//
// Thread: any; it is about the processors that the calling thread may use.
#ifndef BALLAST_JOB_THREADS_H
#define BALLAST_JOB_THREADS_H

#include "config/job.h"

#define BL_THREADS_WARNING 256

// Returns true if a stage would have more than four threads per processor. Then `text` has a warning and advice.
bool bl_threads_warning(const bl_job_t *job, char text[BL_THREADS_WARNING]);

#endif
