// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/plan: what a candidate cannot be faster than, whatever its order, and which candidates that
// rules out.
#ifndef BALLAST_PLAN_BOUND_H
#define BALLAST_PLAN_BOUND_H

#include "plan/candidate/evaluation.h"

// Seconds: the work of the busiest stage after the first of its forwards could start, or until the stages before it
// have had the last gradient, for a->costs. It knows nothing of memory, transfers and boundaries. Where layers may move
// to other stages it is lowered by what that may change.
double bl__bound_step(const bl__evaluation_t *a);

// Whether a candidate that takes at least `bound` seconds changes nothing that is shown: enough others are faster,
// among them the best of its schedule, micro-batch, attention and shape, and of every recomputation, policy and order
// of nodes there is.
bool bl__bound_rules_out(const bl_plan_t *plan, const bl_plan_candidate_t *choice, double bound);

#endif
