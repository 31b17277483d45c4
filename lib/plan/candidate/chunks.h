// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/plan: how many chunks a stage may have.
#ifndef BALLAST_PLAN_CHUNKS_H
#define BALLAST_PLAN_CHUNKS_H

#include "plan/search/planner.h"
#include "schedule/generate.h"

// Without a list all up to the first number, and up to the second those that divide the layers evenly: where they do not,
// some stage has much more than others, and what the bubble gains is less.
#define BL__CHUNKS_USUAL 4
#define BL__CHUNKS_MOST  8

// Whether the schedule has `chunks` a stage, in a run.
bool bl__chunks_possible(const bl_schedule_info_t *info, uint32_t chunks);
// The next number above `chunks` (0: the first) to try with a schedule on `stages`; 0: there are no more.
uint32_t bl__chunks_next(const bl_plan_request_t *request, const bl_schedule_info_t *info, uint32_t stages,
                         uint32_t chunks);

#endif
