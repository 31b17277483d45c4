// SPDX-License-Identifier: Apache-2.0
// What the driver sends with a plan in addition to its operations: the history of policies. The stage does not
// interpret it. It keeps it with the plan and passes it to the next driver, so that no policy is lost with a driver.
//
// Thread: the loop's.
#ifndef BALLAST_STAGE_SERVICE_PLAN_NOTES_WIRE_H
#define BALLAST_STAGE_SERVICE_PLAN_NOTES_WIRE_H

#include "step/stage_step.h"

#include "ballast/v1/stage.pb-c.h"

// A zeroed one is empty.
typedef struct bl_plan_notes {
  Ballast__V1__PreparedPlan *kept[BL_STAGE_PLANS];   // NULL: free entry
  Ballast__V1__PreparedPlan *offered;                // of the plan that is being prepared, or NULL
  Ballast__V1__PreparedPlan *listed[BL_STAGE_PLANS]; // borrowed from `kept`
} bl_plan_notes_t;
void bl_plan_notes_cleanup(bl_plan_notes_t *notes);

// Returns the version of the policy that the plan carries out, 0: none.
uint64_t bl_plan_policy(const Ballast__V1__PreparePlanRequest *request);

// Records the notes of a plan that is to be prepared. Without memory the notes are lost; a later driver then takes the
// policy of the plan for unknown.
void bl_plan_notes_offer(bl_plan_notes_t *notes, const Ballast__V1__PreparePlanRequest *request);
// Keeps the recorded notes once `step` keeps the plan, if it is a plan for training, in the place of earlier ones of this
// version. Forgets notes of plans that `step` no longer keeps.
void bl_plan_notes_keep(bl_plan_notes_t *notes, const bl_stage_step_t *step);
// Returns the notes of the training plans that `step` keeps, for StageState.plans. Valid until the next keep.
Ballast__V1__PreparedPlan **bl_plan_notes_list(bl_plan_notes_t *notes, const bl_stage_step_t *step, size_t *count);

#endif
