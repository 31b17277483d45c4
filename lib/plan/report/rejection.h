// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/plan: what of a request no way was tried with, and why.
#ifndef BALLAST_PLAN_REJECTION_H
#define BALLAST_PLAN_REJECTION_H

#include "plan/search/planner.h"

// Fills plan->rejections, after all candidates are there. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__rejections_find(const bl_plan_request_t *request, bl_plan_t *plan);

#endif
