// SPDX-License-Identifier: Apache-2.0
// Is this a schedule of one step? Every micro-batch passes every virtual stage once, each operation after those it
// needs, on the stage that holds the chunk, and all lists together can run (no cycle).
// Thread: pure functions, any thread.
#ifndef BALLAST_SCHEDULE_VALIDATE_H
#define BALLAST_SCHEDULE_VALIDATE_H

#include "schedule/ir/schedule.h"

// What validation learns by the way.
typedef struct bl_schedule_facts {
  bool ascending;        // W and fused B of every chunk ascend in micro-batch: losses are bitwise equal to 1F1B's
  bool splits_backward;  // some I and W
  bool recomputes;       // some R
  bool transfers;        // some E and L
  bl_op_t not_ascending; // the first operation out of order, where `ascending` is false
} bl_schedule_facts_t;

// BL_INVALID names stage, place in the list and operation: a missing, double or misplaced operation, an E that is not
// between its F and its I or B or names no other device's store, an L from where the block is not, a block used while it
// is away, a cycle (its operations; of a long one the first and last, and how many more). `facts` may be NULL.
// An order that does not ascend is no error here: it gives sums that are equal within rounding (EXECUTION.md 7).
BL_MUST_USE bl_status_t bl_schedule_validate(const bl_schedule_t *schedule, bl_schedule_facts_t *facts,
                                             bl_error_t *err);

// One order of all operations in which each comes after those it needs and after its predecessor on its stage:
// what simulator and bounded-buffer proof walk along. `order` has room for bl_schedule_op_count entries.
typedef struct bl_op_ref {
  uint32_t stage, index; // schedule->lists[stage].ops[index]
} bl_op_ref_t;
BL_MUST_USE bl_status_t bl_schedule_topological_order(const bl_schedule_t *schedule, bl_op_ref_t *order,
                                                      bl_error_t *err);

#endif
