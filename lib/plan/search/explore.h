// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/plan: the candidates that a planner tries, family by family.
//
// What certainly is no faster than the best of its schedule, micro-batch, attention, shape and so on is not tried
// (bound.h), unless `all` of them are asked for.
#ifndef BALLAST_PLAN_EXPLORE_H
#define BALLAST_PLAN_EXPLORE_H

#include "plan/candidate/evaluate.h"

typedef struct bl__exploration {
  const bl_plan_request_t *request;
  bl_plan_t *plan;
  uint32_t capacity;
  bl_status_t status;      // of memory
  bl__order_cache_t cache; // while exploring
  bl__order_cache_t exact_cache;
  bool exact; // attempts are for just their costs, with all effort
  bool all;
} bl__exploration_t;

// All shapes, schedules, micro-batches and so on of the request. Candidates follow in the order of trying.
void bl__explore(bl__exploration_t *e);
// One more candidate; whether it fits.
bool bl__explore_candidate(bl__exploration_t *e, bl_plan_candidate_t choice);
// The choice under all recomputations that it has not been tried with: what is kept where nothing would have to be made
// again.
void bl__explore_recomputations(bl__exploration_t *e, bl_plan_candidate_t choice);
// As the leaders are made, into `candidate`, which is not kept.
BL_MUST_USE bl_status_t bl__explore_exactly(bl__exploration_t *e, bl_plan_candidate_t *candidate);
// Makes a candidate of the plan again, as leaders are. One that does not fit any more, as this order keeps more, is
// followed by those that make do with less.
void bl__explore_settle(bl__exploration_t *e, uint32_t index);
// For just its costs, with more effort than most and less than the leaders get.
BL_MUST_USE bl_status_t bl__explore_further(bl__exploration_t *e, bl_plan_candidate_t *candidate);
// Takes a candidate over. False: no memory; then it stays the caller's.
bool bl__explore_keep(bl__exploration_t *e, const bl_plan_candidate_t *candidate);
// Nodes hold several stages: then it matters in which order.
bool bl__explore_order_matters(const bl__exploration_t *e, const bl_plan_candidate_t *candidate);
void bl__explore_cleanup(bl__exploration_t *e); // the plan stays

#endif
