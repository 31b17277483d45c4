// SPDX-License-Identifier: Apache-2.0
// Private to lib/schedule: the squeeze of Qi et al. (NeurIPS 2024). A repeated building block leaves cells free at the
// beginning and the end of a step. Passes move there to earlier cells: backwards as far as their dependencies allow,
// forwards as long as the stage holds no more blocks than the fullest stage did before.
#ifndef BALLAST_SCHEDULE_SQUEEZE_H
#define BALLAST_SCHEDULE_SQUEEZE_H

#include "schedule/generate/timetable.h"

// Replaces the lists of `schedule` by the squeezed passes for all micro-batches. `passes` is [stages][count]. Each pass
// repeats every `period` cells. A fused backward takes two cells, every other pass one. Preconditions: passes of a
// stage do not collide modulo the period, each starts with micro-batch 0, and every pass of the timetable starts after
// what it needs. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__squeeze(bl_schedule_t *schedule, const bl__timetable_entry_t *passes, uint32_t count,
                                    uint32_t period);

#endif
