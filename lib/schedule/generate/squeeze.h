// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/schedule: the squeeze of Qi et al. (NeurIPS 2024). A building block that is repeated leaves
// cells free at the beginning and the end of a step. There passes move to earlier cells: backwards as far as what they
// need allows, forwards as long as the stage holds no more than the fullest one did before.
#ifndef BALLAST_SCHEDULE_SQUEEZE_H
#define BALLAST_SCHEDULE_SQUEEZE_H

#include "schedule/generate/timetable.h"

// Replaces the lists of `schedule` by the passes, `count` of each stage behind those of the one before it, for all
// micro-batches: each runs again every `period` cells, squeezed. A fused backward takes two cells, all else one.
// Preconditions: passes of a stage do not collide modulo the period, each starts with micro-batch 0, and every pass of
// the timetable starts after what it needs. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__squeeze(bl_schedule_t *schedule, const bl__timetable_entry_t *passes, uint32_t count,
                                    uint32_t period);

#endif
