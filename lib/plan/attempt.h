// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/plan: one way of running a model, from its choice to its time and memory.
#ifndef BALLAST_PLAN_ATTEMPT_H
#define BALLAST_PLAN_ATTEMPT_H

#include "plan/planner.h"

// The last order that was made: ways that differ in what is kept, where it is parked or how attention computes share it.
typedef struct bl__order_cache {
  bl_schedule_t *schedule; // NULL: none yet
  const char *name;
  uint32_t tensor;
  bool recompute; // the order has its R's
} bl__order_cache_t;

void bl__order_cache_cleanup(bl__order_cache_t *cache);

// Whether a job file can ask for the way: then a run makes its order, with all effort and no costs, and so do we.
bool bl__runs_as_job(const bl_plan_request_t *request, const bl_plan_candidate_t *candidate);

// Fills in what follows from the choice (schedule to order and effort are set): partition, cap, time, memory, fits, why.
// `effort` of searched schedules, 0: all of it. BL_OK also when it does not fit; BL_INVALID: no such way (more chunks
// than layers, a shape the schedule does not have); BL_EXHAUSTED. Under the policy auto the way is a mix of parking and
// giving up, and does not fit where none is one. candidate->layers is the caller's. `cache` may be NULL:
// then the order is made for exactly these costs.
BL_MUST_USE bl_status_t bl__attempt(const bl_plan_request_t *request, double effort, bl__order_cache_t *cache,
                                    bl_plan_candidate_t *candidate);

#endif
