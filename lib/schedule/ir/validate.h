// SPDX-License-Identifier: Apache-2.0
// Checks whether the lists are a schedule of one step. Every micro-batch passes every virtual stage of one pipe once,
// each operation stands on the stage that holds its chunk and after those that it needs, and all lists together can run
// (no cycle).
// Thread: pure functions, any thread.
#ifndef BALLAST_SCHEDULE_VALIDATE_H
#define BALLAST_SCHEDULE_VALIDATE_H

#include "schedule/ir/schedule.h"

// Properties of the schedule that validation finds out.
typedef struct bl_schedule_facts {
  bool ascending;        // W and fused B of every chunk ascend in micro-batch: losses are bitwise equal to 1F1B's
  bool splits_backward;  // some I and W
  bool recomputes;       // some R
  bool transfers;        // some E and L
  bl_op_t not_ascending; // the first operation out of order, if `ascending` is false
} bl_schedule_facts_t;

// BL_INVALID names stage, index in the list and operation of the first mistake: an operation that is missing, doubled
// or misplaced; an E that is not between its F and its I or B, or that names a store other than another device's or a
// host's; an L from a store that does not have the block; a backward of a block that is evicted; a cycle (its
// operations; of a long one the first and last, and how many more). `facts` may be NULL. An order that does not ascend
// is not an error here: its sums are equal within rounding (EXECUTION.md 7).
BL_MUST_USE bl_status_t bl_schedule_validate(const bl_schedule_t *schedule, bl_schedule_facts_t *facts,
                                             bl_error_t *err);

// Writes one order of all operations in which each comes after those that it needs and after its predecessor on its
// stage. Simulator and timing pass follow it. `order` is [bl_schedule_op_count].
typedef struct bl_op_ref {
  uint32_t stage, index; // schedule->lists[stage].ops[index]
} bl_op_ref_t;
BL_MUST_USE bl_status_t bl_schedule_topological_order(const bl_schedule_t *schedule, bl_op_ref_t *order,
                                                      bl_error_t *err);

#endif
