// SPDX-License-Identifier: Apache-2.0
// Whether this machine is one for a job's `pipeline.threads`. Asked where stages compute, not where a job is only
// looked at.
//
// Thread: any; it is about the processors that the calling thread may use.
#ifndef BALLAST_JOB_THREADS_H
#define BALLAST_JOB_THREADS_H

#include "config/job.h"

#define BL_THREADS_WARNING 256

// True: a stage would have more than four threads for every processor; `text` says so and what to do.
bool bl_threads_warning(const bl_job_t *job, char text[BL_THREADS_WARNING]);

#endif
