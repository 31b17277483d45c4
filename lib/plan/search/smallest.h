// SPDX-License-Identifier: Apache-2.0
// Private to lib/plan: the smallest memory limit that works for a request.
#ifndef BALLAST_PLAN_SMALLEST_H
#define BALLAST_PLAN_SMALLEST_H

#include "plan/search/planner.h"

#define BL__SMALLEST_NAME 200

typedef struct bl__smallest {
  double bytes; // an integer; 0: no limit was found
  char name[BL__SMALLEST_NAME];
} bl__smallest_t;

// `failed`: result of a search of the request in which nothing fits. The found limit is checked: a search of the
// request with it, for exact orders, finds a candidate (bl_plan_search does so), which `name` describes. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__smallest_find(const bl_plan_request_t *request, const bl_plan_t *failed,
                                          bl__smallest_t *smallest);
// Writes a description of a candidate.
void bl__smallest_name(const bl_plan_candidate_t *candidate, char name[BL__SMALLEST_NAME]);
// Returns the candidate with the least memory, of all or of those that fit; NULL: none has a size.
const bl_plan_candidate_t *bl__smallest_of(const bl_plan_t *plan, bool fitting);

#endif
