// SPDX-License-Identifier: Apache-2.0
// Private to lib/plan: the candidates that a planner evaluates, family by family.
//
// A candidate that is certainly no faster than the best of its schedule, micro-batch, attention, shape and so on is not
// evaluated (bound.h), unless `all` are requested.
#ifndef BALLAST_PLAN_EXPLORE_H
#define BALLAST_PLAN_EXPLORE_H

#include "plan/candidate/evaluate.h"

typedef struct bl__exploration {
  const bl_plan_request_t *request;
  bl_plan_t *plan;
  uint32_t capacity;
  bl_status_t status;      // BL_EXHAUSTED once memory ran out
  bl__order_cache_t cache; // while exploring
  bl__order_cache_t exact_cache;
  bool exact; // candidates are evaluated for exactly their costs, with the full search budget
  bool all;
} bl__exploration_t;

// Explores all shapes, schedules, micro-batches and so on of the request. Adds candidates in the order of evaluation.
void bl__explore(bl__exploration_t *e);
// Adds one candidate; returns whether it fits.
bool bl__explore_candidate(bl__exploration_t *e, bl_plan_candidate_t choice);
// Adds the choice under all recomputations with which it was not evaluated yet, for when nothing needs to be
// recomputed.
void bl__explore_recomputations(bl__exploration_t *e, bl_plan_candidate_t choice);
// Evaluates `candidate` as the leaders are evaluated; the plan does not keep it.
BL_MUST_USE bl_status_t bl__explore_exactly(bl__exploration_t *e, bl_plan_candidate_t *candidate);
// Evaluates a candidate of the plan once more, as leaders are. If it no longer fits, or only with other layers, because
// this order keeps more, adds candidates that need less memory.
void bl__explore_leader(bl__exploration_t *e, uint32_t index);
// Evaluates for exactly its costs, with a search budget between the usual one and that of leaders.
BL_MUST_USE bl_status_t bl__explore_further(bl__exploration_t *e, bl_plan_candidate_t *candidate);
// Transfers a candidate to the plan. False: no memory; it stays the caller's.
bool bl__explore_keep(bl__exploration_t *e, const bl_plan_candidate_t *candidate);
// Returns whether the order of stages on nodes matters: nodes hold several stages.
bool bl__explore_order_matters(const bl__exploration_t *e, const bl_plan_candidate_t *candidate);
void bl__explore_cleanup(bl__exploration_t *e); // the plan is kept

#endif
