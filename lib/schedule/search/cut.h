// SPDX-License-Identifier: Apache-2.0
// Private to lib/schedule: turns an order with fewer chunks a stage into one with more and with split backward. Each
// operation is cut into one per new chunk, one after the other. The result takes no more time and no more memory.
#ifndef BALLAST_SCHEDULE_CUT_H
#define BALLAST_SCHEDULE_CUT_H

#include "schedule/ir/costs.h"
#include "schedule/ir/schedule.h"

// Fills `cut` from `whole`: each chunk of `whole` becomes cut->chunks / whole->chunks adjacent chunks. A fused backward
// is split; an R becomes one R for each new chunk. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__cut_order(const bl_schedule_t *whole, bl_schedule_t *cut);
// Returns what `v` adjacent chunks cost as one: [stages], which the caller frees. NULL without memory.
bl_chunk_costs_t *bl__cut_costs(const bl_costs_t *costs, uint32_t stages, uint32_t v);

#endif
