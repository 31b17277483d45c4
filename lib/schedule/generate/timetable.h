// SPDX-License-Identifier: Apache-2.0
// Private to lib/schedule: orders from timetables. A timetable gives the cell of unit time in which every pass of the
// first micro-batches runs on a stage. Each pass repeats every `period` cells, `step` micro-batches later.
#ifndef BALLAST_SCHEDULE_TIMETABLE_H
#define BALLAST_SCHEDULE_TIMETABLE_H

#include "schedule/ir/schedule.h"

typedef struct bl__timetable_entry {
  bl_op_type_t type;
  uint32_t virtual_stage;
  uint32_t at;    // cell of its first micro-batch
  uint32_t first; // that micro-batch
} bl__timetable_entry_t;

// Replaces the list of `stage` by its passes for all micro-batches in order of time. If cells are equal, the earlier
// entry of `passes` comes first.
BL_MUST_USE bl_status_t bl__timetable_fill(bl_schedule_t *schedule, uint32_t stage, const bl__timetable_entry_t *passes,
                                           uint32_t pass_count, uint32_t period, uint32_t step);

#endif
