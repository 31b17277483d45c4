// SPDX-License-Identifier: Apache-2.0
// The job file of a plan: the job that was read, with the planned settings on top.
#ifndef BALLAST_BALLASTCTL_PLAN_JOB_H
#define BALLAST_BALLASTCTL_PLAN_JOB_H

#include "ballastctl/plan/plan_request.h"

// Makes the job from the one at `path`. `best` of the plan of `request` must be exact (plan/search/planner.h): with its
// costs as pipeline.costs a run finds the order that was planned. BL_INVALID: a job file cannot express the candidate.
// On success the caller cleans the job up.
BL_MUST_USE bl_status_t bl_ctl_plan_job_make(const bl_ctl_plan_flags_t *flags, const char *path,
                                             const bl_plan_request_t *request, const bl_plan_candidate_t *best,
                                             bl_job_t *job, bl_error_t *err);
// Writes the job to flags->write.
BL_MUST_USE bl_status_t bl_ctl_plan_job_write(const bl_ctl_plan_flags_t *flags, const bl_job_t *job, bl_error_t *err);

#endif
