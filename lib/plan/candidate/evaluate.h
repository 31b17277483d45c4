// SPDX-License-Identifier: Apache-2.0
// Private to lib/plan: the evaluation of one candidate, from its choice to its time and memory.
#ifndef BALLAST_PLAN_EVALUATE_H
#define BALLAST_PLAN_EVALUATE_H

#include "plan/candidate/order.h"
#include "plan/search/planner.h"

// Returns whether a job file can express this candidate. If so, a run searches its order with the full budget, and the
// planner must do the same.
bool bl__runs_as_job(const bl_plan_request_t *request, const bl_plan_candidate_t *candidate);
// Returns the blocks of one micro-batch on a stage.
uint32_t bl__candidate_blocks(const bl_plan_candidate_t *candidate);

// Evaluates a choice (schedule to order are set): sets partition, cap, time, memory, fits and why. `effort`: search
// budget of schedules that are searched; 0: all of it. BL_OK also if the candidate does not fit. BL_INVALID: the
// candidate is impossible (more chunks than layers, a shape that the schedule does not have); `why` says why.
// BL_EXHAUSTED. With policy auto the candidate is evaluated as a mix of parked and dropped blocks, and does not fit if
// no such mix exists. With an exact cache the order is the one for exactly these costs, and is kept as
// candidate->operations. The caller calls bl__candidate_cleanup, after errors too.
BL_MUST_USE bl_status_t bl__evaluate(const bl_plan_request_t *request, double effort, bl__order_cache_t *cache,
                                     bl_plan_candidate_t *candidate);
// Computes a lower bound on the candidate's step time, for any order and any memory limit (bound.h). BL_INVALID: the
// candidate is impossible; BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__evaluate_bound(const bl_plan_request_t *request, const bl_plan_candidate_t *choice,
                                           double *bound);
// The choice alone, for another evaluation.
bl_plan_candidate_t bl__candidate_choice(const bl_plan_candidate_t *candidate);
void bl__candidate_cleanup(bl_plan_candidate_t *candidate); // frees what it owns

#endif
