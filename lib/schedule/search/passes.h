// SPDX-License-Identifier: Apache-2.0
// Private to lib/schedule: what the operations of a pass (those of one type on one virtual stage) cost, what they wait
// for and what waits for them, computed once for all micro-batches.
//
//   bl__pass_t *passes;
//   status = bl__passes_create(schedule, costs, recompute, &passes);
//   const bl__pass_t *pass = bl__pass_of(passes, op);
//   free(passes);
#ifndef BALLAST_SCHEDULE_PASSES_H
#define BALLAST_SCHEDULE_PASSES_H

#include "schedule/search/dispatch.h"

#define BL__PASS_TYPES 4 // F, B, I, W
#define BL__PASS_NONE  UINT32_MAX

typedef struct bl__pass {
  double cost;
  double latency;   // from the end of the operation that it needs to its start
  double recompute; // cost of the R before it, unless its F stands directly before; 0: none
  uint32_t needs;   // virtual stage whose F (for an F) or backward it needs, or BL__PASS_NONE
  uint32_t feeds;   // virtual stage whose F or backward needs it, or BL__PASS_NONE
  bool fills;       // takes a slot
} bl__pass_t;

// *passes [virtual stages * BL__PASS_TYPES] is on the heap. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__passes_create(const bl_schedule_t *schedule, const bl_costs_t *costs,
                                          bl__recompute_options_t recompute, bl__pass_t **passes);

static inline const bl__pass_t *bl__pass_of(const bl__pass_t *passes, bl_op_t op) {
  return &passes[(size_t)op.virtual_stage * BL__PASS_TYPES + op.type];
}

// Indices into an array of ends: two entries without an operation, then for every block the ends of its F and of its
// backward.
enum {
  BL__END_ZERO,  // needed by operations that need nothing: always 0
  BL__END_OTHER, // of all W's, which nothing needs
  BL__ENDS_FIRST
};

static inline uint32_t bl__end_index(const bl_schedule_t *schedule, bl_op_t op, uint32_t virtual_stage, bool backward) {
  op.virtual_stage = (uint16_t)virtual_stage;
  return (uint32_t)(BL__ENDS_FIRST + 2 * bl_schedule_block(schedule, op) + backward);
}

// Returns the index of the end of the operation itself.
static inline uint32_t bl__end_of(const bl_schedule_t *schedule, bl_op_t op) {
  return op.type == BL_OP_W ? BL__END_OTHER : bl__end_index(schedule, op, op.virtual_stage, op.type != BL_OP_F);
}

// Returns the index of the end that it needs from a neighbouring virtual stage.
static inline uint32_t bl__end_needed(const bl_schedule_t *schedule, const bl__pass_t *pass, bl_op_t op) {
  return pass->needs == BL__PASS_NONE ? BL__END_ZERO : bl__end_index(schedule, op, pass->needs, op.type != BL_OP_F);
}

// Returns the index of the end that it needs of its own block.
static inline uint32_t bl__end_own(const bl_schedule_t *schedule, bl_op_t op) {
  return op.type == BL_OP_F ? BL__END_ZERO : bl__end_index(schedule, op, op.virtual_stage, op.type == BL_OP_W);
}

// Returns an array of ends on the heap, all unknown (infinite) except BL__END_ZERO. NULL without memory.
double *bl__ends_create(const bl_schedule_t *schedule);
// Sets all ends to unknown except BL__END_ZERO.
void bl__ends_forget(const bl_schedule_t *schedule, double *ends);

#endif
