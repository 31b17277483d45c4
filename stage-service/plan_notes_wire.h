// SPDX-License-Identifier: Apache-2.0
// What the driver says about a plan besides what the stage does: the history of policies. The stage understands none of
// it; it keeps it with the plan and gives it to the next driver, so that a driver that dies takes no policy with it.
//
// Thread: the loop's.
#ifndef BALLAST_STAGE_SERVICE_PLAN_NOTES_WIRE_H
#define BALLAST_STAGE_SERVICE_PLAN_NOTES_WIRE_H

#include "step/stage_step.h"

#include "ballast/v1/stage.pb-c.h"

// A zeroed one is empty.
typedef struct bl_plan_notes {
  Ballast__V1__PreparedPlan *kept[BL_STAGE_PLANS];   // NULL: a free place
  Ballast__V1__PreparedPlan *offered;                // of the plan that is being prepared, or NULL
  Ballast__V1__PreparedPlan *listed[BL_STAGE_PLANS]; // borrowed from `kept`
} bl_plan_notes_t;
void bl_plan_notes_cleanup(bl_plan_notes_t *notes);

// The version of the policy that the plan carries out, 0: none.
uint64_t bl_plan_policy(const Ballast__V1__PreparePlanRequest *request);

// Takes note of what is said of a plan that is to be prepared. Without memory the note is lost: a next driver then takes
// the plan for one of no known policy.
void bl_plan_notes_offer(bl_plan_notes_t *notes, const Ballast__V1__PreparePlanRequest *request);
// Keeps it once `step` keeps the plan, if that is one for training; forgets what `step` no longer keeps.
void bl_plan_notes_keep(bl_plan_notes_t *notes, const bl_stage_step_t *step);
// The notes of the training plans that `step` keeps, for StageState.plans; valid until the next keep.
Ballast__V1__PreparedPlan **bl_plan_notes_list(bl_plan_notes_t *notes, const bl_stage_step_t *step, size_t *count);

#endif
