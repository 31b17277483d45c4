// SPDX-License-Identifier: Apache-2.0
// Private to lib/plan: into how many slices sequences may be cut.
#ifndef BALLAST_PLAN_SLICES_H
#define BALLAST_PLAN_SLICES_H

#include "plan/search/planner.h"
#include "schedule/generate.h"

// Returns whether a run can cut sequences into candidate->slices, given its micro-batch and parallelism: they divide
// the sequence, and tensor ranks divide the tokens of a slice. *why (may be NULL) is set if not.
bool bl__slices_possible(const bl_model_t *model, const bl_plan_candidate_t *candidate, char why[BL_PLAN_WHY]);
// Returns whether the schedule is tried in `slices`. seq1f1b is 1f1b over slices, so it is not tried in whole
// sequences, and 1f1b is tried in slices only if the request leaves seq1f1b out.
bool bl__slices_apply(const bl_plan_request_t *request, const bl_schedule_info_t *info, uint32_t slices);

#endif
