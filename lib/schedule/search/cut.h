// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/schedule: an order of fewer chunks a stage as one of more with its backward split: each operation
// is cut into as many, one behind the other. It takes no more time and no more memory than before.
#ifndef BALLAST_SCHEDULE_CUT_H
#define BALLAST_SCHEDULE_CUT_H

#include "schedule/ir/costs.h"
#include "schedule/ir/schedule.h"

// Puts `whole` into `cut`, of which one chunk, or of one that has as many chunks each chunk, becomes
// cut->chunks / whole->chunks that lie side by side. A fused backward is split, an R makes all chunks again. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__cut_order(const bl_schedule_t *whole, bl_schedule_t *cut);
// What `v` chunks side by side cost as one: [stages]; the caller frees it. NULL without memory.
bl_chunk_costs_t *bl__cut_costs(const bl_costs_t *costs, uint32_t stages, uint32_t v);

#endif
