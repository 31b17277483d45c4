// SPDX-License-Identifier: Apache-2.0
// A run beside its prediction: records a profile from traced steps, and compares what was predicted of every stage with
// what was measured. The first step is left out: the optimizer's state and warm caches exist from the second on. When the
// run goes over to another policy, all of this begins again: what is told in the end is about the plan that ran last.
//
// Thread: belongs to its caller.
#ifndef BALLAST_BALLASTCTL_PROFILING_H
#define BALLAST_BALLASTCTL_PROFILING_H

#include "ballastctl/inspect/events.h"
#include "ballastctl/plan/prediction.h"

#include <stdio.h>

typedef struct bl_ctl_profiling bl_ctl_profiling_t;

// `record` (a file to write) or `predict` (a profile to read) may be NULL; all is borrowed. `training`: what the job means.
// `local`: all stages run on this machine and share its cores. Reads `predict` and times the job; what is wrong with them
// is found here, before the run.
BL_MUST_USE bl_status_t bl_ctl_profiling_create(const bl_job_t *job, const bl_training_t *training, const char *record,
                                                const char *predict, bool local, bl_ctl_profiling_t **profiling,
                                                bl_error_t *err);
void bl_ctl_profiling_destroy(bl_ctl_profiling_t *profiling); // NULL is fine

void bl_ctl_profiling_plan(bl_ctl_profiling_t *profiling, const bl_ctl_plan_t *plan);
void bl_ctl_profiling_step(bl_ctl_profiling_t *profiling, const bl_ctl_step_t *step);

// Whether another traced step is wanted, for a profile and for what stages wait for; then ask for one, pass its events,
// and say when it is complete.
bool bl_ctl_profiling_wants_trace(const bl_ctl_profiling_t *profiling);
void bl_ctl_profiling_event(bl_ctl_profiling_t *profiling, const bl_ctl_trace_event_t *event);
void bl_ctl_profiling_trace_end(bl_ctl_profiling_t *profiling, bool complete);

// After the last step: writes the profile, and with no other to predict from, predicts from it. BL_PRECONDITION: no whole
// step was traced.
BL_MUST_USE bl_status_t bl_ctl_profiling_finish(bl_ctl_profiling_t *profiling, bl_error_t *err);
// Predicted beside measured, per stage; for people, and as one line of a report.
void bl_ctl_profiling_print(const bl_ctl_profiling_t *profiling, FILE *stream);
// {"event":"prediction","step":N,...} without a line end; malloc'd, NULL without memory.
char *bl_ctl_profiling_line(const bl_ctl_profiling_t *profiling);

#endif
