// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/plan: one way of running a model, from its choice to its time and memory.
#ifndef BALLAST_PLAN_EVALUATE_H
#define BALLAST_PLAN_EVALUATE_H

#include "plan/candidate/order.h"
#include "plan/search/planner.h"

// Whether a job file can ask for the candidate: then a run makes its order, with all effort, and so do we.
bool bl__runs_as_job(const bl_plan_request_t *request, const bl_plan_candidate_t *candidate);

// Fills in what follows from the choice (schedule to order and effort are set): partition, cap, time, memory, fits,
// why. `effort` of searched schedules, 0: all of it. BL_OK also when it does not fit; BL_INVALID: no such candidate
// (more chunks than layers, a shape the schedule does not have), and why; BL_EXHAUSTED. Under the policy auto the
// candidate is a mix of parking and giving up, and does not fit where none is one. With an exact cache the order is the
// one for these costs, and kept as candidate->operations. bl__candidate_cleanup is the caller's, after errors too.
BL_MUST_USE bl_status_t bl__evaluate(const bl_plan_request_t *request, double effort, bl__order_cache_t *cache,
                                     bl_plan_candidate_t *candidate);
// What the candidate takes at least, whatever its order and memory (bound.h). BL_INVALID: no such candidate;
// BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__evaluate_bound(const bl_plan_request_t *request, const bl_plan_candidate_t *choice,
                                           double *bound);
bl_plan_candidate_t bl__candidate_choice(const bl_plan_candidate_t *candidate); // the choice alone, to attempt it again
void bl__candidate_cleanup(bl_plan_candidate_t *candidate);                     // of what it owns

#endif
