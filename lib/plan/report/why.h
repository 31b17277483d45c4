// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/plan: why the best way is the best, in plain sentences with numbers.
#ifndef BALLAST_PLAN_WHY_H
#define BALLAST_PLAN_WHY_H

#include "plan/search/planner.h"

// Fills plan->why of a ranked plan with a way that fits: where its step goes, what the best of another schedule loses
// against it, and what limits it.
void bl__plan_tell_why(const bl_plan_request_t *request, bl_plan_t *plan);

#endif
