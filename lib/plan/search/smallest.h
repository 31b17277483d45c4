// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/plan: the smallest limit of memory that a request works with.
#ifndef BALLAST_PLAN_SMALLEST_H
#define BALLAST_PLAN_SMALLEST_H

#include "plan/search/planner.h"

#define BL__SMALLEST_NAME 200

typedef struct bl__smallest {
  double bytes; // whole ones; 0: none was found
  char name[BL__SMALLEST_NAME];
} bl__smallest_t;

// `failed`: what a search of the request made, of which nothing fits. The limit is checked: a search of the request
// with it, for exact orders, finds something (bl_plan_search does), the candidate that `name` says. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__smallest_find(const bl_plan_request_t *request, const bl_plan_t *failed,
                                          bl__smallest_t *smallest);
// A candidate in words.
void bl__smallest_name(const bl_plan_candidate_t *candidate, char name[BL__SMALLEST_NAME]);
// The candidate that needs least of all, or of those that fit; NULL: none has a size.
const bl_plan_candidate_t *bl__smallest_of(const bl_plan_t *plan, bool fitting);

#endif
