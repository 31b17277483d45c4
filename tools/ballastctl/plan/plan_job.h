// SPDX-License-Identifier: Apache-2.0
// The job file of a plan: the job that was read, with the planned settings on top.
#ifndef BALLAST_BALLASTCTL_PLAN_JOB_H
#define BALLAST_BALLASTCTL_PLAN_JOB_H

#include "ballastctl/plan/plan_request.h"

// Writes flags->write from the job at `path`. `best` of the plan of `request` must be exact (plan/search/planner.h):
// with its costs as pipeline.costs a run finds the order that was planned. BL_PRECONDITION: a job file cannot express
// the candidate; nothing is written.
BL_MUST_USE bl_status_t bl_ctl_plan_job_write(const bl_ctl_plan_flags_t *flags, const char *path,
                                              const bl_plan_request_t *request, const bl_plan_candidate_t *best,
                                              bl_error_t *err);

#endif
