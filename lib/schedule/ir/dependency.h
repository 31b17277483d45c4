// SPDX-License-Identifier: Apache-2.0
// Private to lib/schedule and lib/simulate: what an operation needs from another virtual stage.
#ifndef BALLAST_SCHEDULE_DEPENDENCY_H
#define BALLAST_SCHEDULE_DEPENDENCY_H

#include "schedule/ir/schedule.h"

// Sets *needed to the operation of the neighbouring virtual stage that must have ended before `op` starts: F of virtual
// stage - 1 for F, the backward (type I stands for I or B) of virtual stage + 1 for I and B. Returns false if `op`
// needs none. What `op` needs from its own virtual stage stands earlier in the same list; validation checks that.
static inline bool bl__op_dependency(const bl_schedule_t *schedule, bl_op_t op, bl_op_t *needed) {
  *needed = op;
  if (op.type == BL_OP_F && !bl_schedule_is_first(schedule, op.virtual_stage)) {
    needed->virtual_stage--;
    return true;
  }
  if (bl_op_type_starts_backward((bl_op_type_t)op.type) && !bl_schedule_is_last(schedule, op.virtual_stage)) {
    needed->virtual_stage++;
    needed->type = BL_OP_I;
    return true;
  }
  return false;
}

// Returns whether the result of an F (`forward`), or of an I or B, of a virtual stage is sent to another stage. If so,
// *to is the virtual stage that receives it.
static inline bool bl__op_passes_on(const bl_schedule_t *schedule, bool forward, uint32_t virtual_stage, uint32_t *to) {
  bool ends = forward ? bl_schedule_is_last(schedule, virtual_stage) : bl_schedule_is_first(schedule, virtual_stage);
  *to = forward ? virtual_stage + 1 : virtual_stage - 1;
  return !ends && schedule->stage_of[*to] != schedule->stage_of[virtual_stage];
}

#endif
