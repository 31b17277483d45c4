// SPDX-License-Identifier: Apache-2.0
// Private to lib/plan: what a plan reports in addition to its candidates.
#ifndef BALLAST_PLAN_REPORT_H
#define BALLAST_PLAN_REPORT_H

#include "plan/search/planner.h"

// Sets plan->why of a ranked plan in which a candidate fits, in plain sentences with numbers: where its step goes, what
// the best of other schedules loses against it, and what limits it.
void bl__plan_tell_why(const bl_plan_request_t *request, bl_plan_t *plan);
// Sets plan->rejections once all candidates exist: parts of a request with which no candidate was evaluated, and why.
// BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__rejections_find(const bl_plan_request_t *request, bl_plan_t *plan);

#endif
