// SPDX-License-Identifier: Apache-2.0
// Slots that a stage holds while its list runs: an F takes one (a recomputed F none, or one that it gives back when it ends,
// with forward_slots), R and L take one; W or fused B give theirs back when they end, an E at its end or, with transfers
// that overlap, at the end of the computing operation behind it.
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
  uint32_t during;           // held while the last operation ran
  uint32_t held;             // after it
  uint32_t leaving;          // of these, by evictions that overlap
} bl_slot_walk_t;

// Marks the blocks that are made again, recomputed[blocks], which is zero before.
void bl_schedule_mark_recomputed(const bl_schedule_t *schedule, uint8_t *recomputed);

static inline void bl_slot_walk_next(bl_slot_walk_t *walk, bl_op_t op) {
  const bl_schedule_t *schedule = walk->schedule;
  bool passes = op.verb == BL_VERB_F && walk->recomputed[bl_schedule_block(schedule, op)] != 0;
  bool takes =
      op.verb == BL_VERB_L || op.verb == BL_VERB_R || (op.verb == BL_VERB_F && (!passes || schedule->forward_slots));
  walk->held += takes;
  walk->during = walk->held;
  if (op.verb == BL_VERB_E && schedule->transfers == BL_TRANSFER_OVERLAP) {
    walk->leaving++;
    return;
  }
  if (bl_verb_ends_block((bl_verb_t)op.verb) || op.verb == BL_VERB_E ||
      (op.verb == BL_VERB_F && schedule->forward_only) || (passes && takes)) {
    walk->held--;
  }
  if (bl_verb_computes((bl_verb_t)op.verb)) {
    walk->held -= walk->leaving;
    walk->leaving = 0;
  }
}

#endif
