// SPDX-License-Identifier: Apache-2.0
// Private to lib/plan: a lower bound on a candidate's step for any order, and which candidates it rules out.
#ifndef BALLAST_PLAN_BOUND_H
#define BALLAST_PLAN_BOUND_H

#include "plan/candidate/evaluation.h"

// Returns seconds, for a->costs: the work of the busiest stage, plus the time before its first forward can start, or
// until the stages before it have the last gradient. Ignores memory, transfers and boundaries. If layers may move to
// other stages, the bound is lowered by what that may change.
double bl__bound_step(const bl__evaluation_t *a);

// Returns whether a candidate that takes at least `bound` seconds cannot change anything that is shown. Then enough
// others are faster, among them the best of its schedule, micro-batch, slices, attention and shape, and of every
// existing recomputation, policy and node order.
bool bl__bound_rules_out(const bl_plan_t *plan, const bl_plan_candidate_t *choice, double bound);

#endif
