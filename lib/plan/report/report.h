// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/plan: what a plan says of itself beside its candidates.
#ifndef BALLAST_PLAN_REPORT_H
#define BALLAST_PLAN_REPORT_H

#include "plan/search/planner.h"

// Fills plan->why of a ranked plan with a candidate that fits, in plain sentences with numbers: where its step goes,
// what the best of another schedule loses against it, and what limits it.
void bl__plan_tell_why(const bl_plan_request_t *request, bl_plan_t *plan);
// Fills plan->rejections, after all candidates are there: what of a request no candidate was tried with, and why.
// BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__rejections_find(const bl_plan_request_t *request, bl_plan_t *plan);

#endif
