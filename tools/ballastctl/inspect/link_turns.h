// SPDX-License-Identifier: Apache-2.0
// Transfers between stages and memory of the host, link by link. A link moves one block at a time, in the order of
// requests, so a transfer has its turn when it has asked and the transfer before it is over. Stages record only requests
// and ends; from these, of all stages of a machine, the turns follow.
//
//   bl_ctl_link_turns_t turns = {0};
//   status = bl_ctl_link_turns_add(&turns, &event);   ... for every event
//   bl_ctl_link_turns_sort(&turns);
//   turns.of[0].asked_ns, turns.of[0].turn_ns, turns.of[0].end_ns
//   bl_ctl_link_turns_cleanup(&turns);
//
// Pure but for memory. Thread: belongs to its caller.
#ifndef BALLAST_BALLASTCTL_LINK_TURNS_H
#define BALLAST_BALLASTCTL_LINK_TURNS_H

#include "ballastctl/inspect/events.h"

#include "base/status.h"
#include "schedule/ir/op.h"

typedef struct bl_ctl_link_turn {
  uint32_t host, link; // number of the host store, and of its link
  uint32_t stage;      // number of the rank
  bl_op_t op;          // E: out to the host; L: back
  uint64_t bytes;      // 0: not known
  uint64_t asked_ns, turn_ns, end_ns;
} bl_ctl_link_turn_t;

typedef struct bl_ctl_link_turns {
  bl_ctl_link_turn_t *of; // [count]
  size_t count, capacity;
  bool sliced; // operations are of slices
} bl_ctl_link_turns_t;

// Returns whether an operation of a run on this grid moves a block to or from a host store.
static inline bool bl_ctl_op_is_at_host(const bl_grid_t *grid, bl_op_t op) {
  return grid->stages > 0 && !bl_op_type_computes((bl_op_type_t)op.type) && op.store != BL_STORE_NONE &&
         op.store >= grid->stages;
}

// Adds a transfer to or from a host store. Leaves out all other events. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_ctl_link_turns_add(bl_ctl_link_turns_t *turns, const bl_ctl_trace_event_t *event);
// Sorts by host, link and time, and sets the turns that are not known.
void bl_ctl_link_turns_sort(bl_ctl_link_turns_t *turns);
void bl_ctl_link_turns_cleanup(bl_ctl_link_turns_t *turns);
static inline bool bl_ctl_link_turns_same_link(const bl_ctl_link_turn_t *a, const bl_ctl_link_turn_t *b) {
  return a->host == b->host && a->link == b->link;
}

#endif
