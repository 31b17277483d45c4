// SPDX-License-Identifier: Apache-2.0
// Compares a run with its prediction: records a profile from traced steps, and compares the predicted values of every
// stage with the measured ones. Leaves out the first step, because the optimizer's state and warm caches exist from the
// second on. When the run changes to another policy, all of this starts over, so the result describes the plan that ran
// last.
//
// Thread: belongs to its caller.
#ifndef BALLAST_BALLASTCTL_PROFILING_H
#define BALLAST_BALLASTCTL_PROFILING_H

#include "ballastctl/inspect/events.h"
#include "ballastctl/plan/prediction.h"

#include <stdio.h>

typedef struct bl_ctl_profiling bl_ctl_profiling_t;

// `record` (a file to write) or `predict` (a profile to read) may be NULL; all arguments are borrowed. `training`: the
// resolved job. `local`: all stages run on this machine and share its cores. Reads `predict` and times the job, so that
// errors in them are found before the run.
BL_MUST_USE bl_status_t bl_ctl_profiling_create(const bl_job_t *job, const bl_training_t *training, const char *record,
                                                const char *predict, bool local, bl_ctl_profiling_t **profiling,
                                                bl_error_t *err);
void bl_ctl_profiling_destroy(bl_ctl_profiling_t *profiling); // NULL is fine

void bl_ctl_profiling_plan(bl_ctl_profiling_t *profiling, const bl_ctl_plan_t *plan);
void bl_ctl_profiling_step(bl_ctl_profiling_t *profiling, const bl_ctl_step_t *step);

// Returns whether another traced step is wanted, for a profile and for the waits of stages. If so, request a trace,
// pass its events, and report when it is complete.
bool bl_ctl_profiling_wants_trace(const bl_ctl_profiling_t *profiling);
void bl_ctl_profiling_event(bl_ctl_profiling_t *profiling, const bl_ctl_trace_event_t *event);
void bl_ctl_profiling_trace_end(bl_ctl_profiling_t *profiling, bool complete);

// Called after the last step. Writes the profile; without `predict`, predicts from it. BL_PRECONDITION: no complete
// step was traced.
BL_MUST_USE bl_status_t bl_ctl_profiling_finish(bl_ctl_profiling_t *profiling, bl_error_t *err);
// Print predicted and measured values per stage: for people, and as one line of a report.
void bl_ctl_profiling_print(const bl_ctl_profiling_t *profiling, FILE *stream);
// Returns {"event":"prediction","step":N,...} without a line end; malloc'd. NULL: no memory.
char *bl_ctl_profiling_line(const bl_ctl_profiling_t *profiling);

#endif
