// SPDX-License-Identifier: Apache-2.0
// Private to lib/plan: how many chunks a stage may have.
#ifndef BALLAST_PLAN_CHUNKS_H
#define BALLAST_PLAN_CHUNKS_H

#include "plan/search/planner.h"
#include "schedule/generate.h"

// Without a list, all numbers up to the first limit are tried. Up to the second one, those that divide the layers
// evenly are tried: otherwise some stage has much more than others, which costs more than the smaller bubble gains.
#define BL__CHUNKS_USUAL 4
#define BL__CHUNKS_MOST  8

// Returns whether a run can use the schedule with `chunks` per stage.
bool bl__chunks_possible(const bl_schedule_info_t *info, uint32_t chunks);
// Returns the next number above `chunks` (0: the first) to try with a schedule on `stages`; 0: there are no more.
uint32_t bl__chunks_next(const bl_plan_request_t *request, const bl_schedule_info_t *info, uint32_t stages,
                         uint32_t chunks);

#endif
