// SPDX-License-Identifier: Apache-2.0
// Counts the slots that a stage holds while its list runs. F, R and L take one. The F of a recomputed block takes none,
// or with forward_slots one that it frees at its end. W and fused B free theirs at their end. E frees its slot at its
// end or, with transfers that overlap, at the end of the next computing operation.
//
//   bl_slot_walk_t walk = {.schedule = schedule, .recomputed = recomputed};   // of bl_schedule_mark_recomputed
//   for (...) bl_slot_walk_next(&walk, ops[i]);                               // in list order: walk.during, walk.held
//
// Thread: pure functions, any thread.
#ifndef BALLAST_SCHEDULE_SLOT_WALK_H
#define BALLAST_SCHEDULE_SLOT_WALK_H

#include "schedule/ir/schedule.h"

typedef struct bl_slot_walk {
  const bl_schedule_t *schedule;
  const uint8_t *recomputed; // [blocks]
  uint32_t during;           // slots held while the last operation ran
  uint32_t held;             // slots held after it
  uint32_t leaving;          // of these, those that overlapping evictions will free
} bl_slot_walk_t;

// Sets recomputed[blocks] to 1 for every block with an R. Precondition: the array is zero.
void bl_schedule_mark_recomputed(const bl_schedule_t *schedule, uint8_t *recomputed);

static inline void bl_slot_walk_next(bl_slot_walk_t *walk, bl_op_t op) {
  const bl_schedule_t *schedule = walk->schedule;
  bool passes = op.type == BL_OP_F && walk->recomputed[bl_schedule_block(schedule, op)] != 0;
  bool takes = op.type == BL_OP_L || op.type == BL_OP_R || (op.type == BL_OP_F && (!passes || schedule->forward_slots));
  walk->held += takes;
  walk->during = walk->held;
  if (op.type == BL_OP_E && schedule->transfers == BL_TRANSFER_OVERLAP) {
    walk->leaving++;
    return;
  }
  if (bl_op_type_ends_block((bl_op_type_t)op.type) || op.type == BL_OP_E ||
      (op.type == BL_OP_F && schedule->forward_only) || (passes && takes)) {
    walk->held--;
  }
  if (bl_op_type_computes((bl_op_type_t)op.type)) {
    walk->held -= walk->leaving;
    walk->leaving = 0;
  }
}

#endif
