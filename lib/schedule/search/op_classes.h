// SPDX-License-Identifier: Apache-2.0
// Private to lib/schedule: what the operations of one type on one virtual stage (a class) cost, what they wait for and
// what waits for them, computed once for all micro-batches.
//
//   bl__op_class_t *classes;
//   status = bl__op_classes_create(schedule, costs, recompute, &classes);
//   const bl__op_class_t *op_class = bl__op_class_of(classes, op);
//   free(classes);
#ifndef BALLAST_SCHEDULE_OP_CLASSES_H
#define BALLAST_SCHEDULE_OP_CLASSES_H

#include "schedule/search/dispatch.h"

#define BL__OP_CLASS_TYPES 4 // F, B, I, W
#define BL__NO_OP_CLASS    UINT32_MAX

typedef struct bl__op_class {
  double cost;
  double latency;   // from the end of the operation that it needs to its start
  double recompute; // cost of the R before it, unless its F stands directly before; 0: none
  uint32_t needs;   // virtual stage whose F (for an F) or backward it needs, or BL__NO_OP_CLASS
  uint32_t feeds;   // virtual stage whose F or backward needs it, or BL__NO_OP_CLASS
  bool takes_slot;
} bl__op_class_t;

// *classes [virtual stages * BL__OP_CLASS_TYPES] is on the heap. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__op_classes_create(const bl_schedule_t *schedule, const bl_costs_t *costs,
                                              bl__recompute_options_t recompute, bl__op_class_t **classes);

static inline const bl__op_class_t *bl__op_class_of(const bl__op_class_t *classes, bl_op_t op) {
  return &classes[(size_t)op.virtual_stage * BL__OP_CLASS_TYPES + op.type];
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
static inline uint32_t bl__end_needed(const bl_schedule_t *schedule, const bl__op_class_t *op_class, bl_op_t op) {
  return op_class->needs == BL__NO_OP_CLASS ? BL__END_ZERO
                                            : bl__end_index(schedule, op, op_class->needs, op.type != BL_OP_F);
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
