// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/schedule: orders from timetables. A timetable says at which cell of unit time every pass of
// the first micro-batches runs on a stage; every `period` cells each pass runs again, `step` micro-batches later.
#ifndef BALLAST_SCHEDULE_TIMETABLE_H
#define BALLAST_SCHEDULE_TIMETABLE_H

#include "schedule/ir/schedule.h"

typedef struct bl__pass {
  bl_verb_t verb;
  uint32_t virtual_stage;
  uint32_t at;    // cell of its first micro-batch
  uint32_t first; // that micro-batch
} bl__timetable_entry_t;

// Replaces the list of `stage` by its passes for all micro-batches in order of time; of equal cells the earlier entry
// of `passes` goes first.
BL_MUST_USE bl_status_t bl__timetable_fill(bl_schedule_t *schedule, uint32_t stage, const bl__timetable_entry_t *passes,
                                           uint32_t pass_count, uint32_t period, uint32_t step);

#endif
