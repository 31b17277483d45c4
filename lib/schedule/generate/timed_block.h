// SPDX-License-Identifier: Apache-2.0
// Building blocks of V-shaped schedules (Qi et al., NeurIPS 2024) with real operation times. Private to lib/schedule.
//
// The blocks of building_block.h count cells of unit time and move from stage to stage in even steps. If F, I and W
// differ or boundaries take time, they save hardly any memory compared with 1F1B. Here each stage may have an order of
// its own for its six operations. The orders are chosen so that a micro-batch waits as little as possible on its path,
// since waiting takes memory.
//
//   bl__timed_blocks_t *blocks;
//   status = bl__timed_blocks_create(stages, costs, limits, BL__TIMED_BLOCKS_BUDGET, &blocks);
//   while (status == BL_OK && bl__timed_blocks_next(blocks)) {  // the shortest interval first
//     status = bl__timed_blocks_repeat(blocks, base);
//     ...
//   }
//   bl__timed_blocks_destroy(blocks);
#ifndef BALLAST_SCHEDULE_TIMED_BLOCK_H
#define BALLAST_SCHEDULE_TIMED_BLOCK_H

#include "schedule/ir/costs.h"
#include "schedule/ir/schedule.h"

typedef struct bl__timed_blocks bl__timed_blocks_t;

#define BL__TIMED_BLOCKS_BUDGET 2400000000 // about a second

// Prepares the enumeration of blocks of two chunks a stage that hold no more than limits[stages], which is borrowed.
// `stages` is at least 2. If costs differ between chunks, their mean is used. `budget`: pairs of stage patterns that
// may be tried. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__timed_blocks_create(uint32_t stages, const bl_costs_t *costs, const uint32_t *limits,
                                                uint64_t budget, bl__timed_blocks_t **blocks);
void bl__timed_blocks_destroy(bl__timed_blocks_t *blocks); // NULL is fine
// Advances to the next block. Returns false if there are no more.
bool bl__timed_blocks_next(bl__timed_blocks_t *blocks);
// Returns the interval between micro-batches in the current block, in units of a mean stage's work for one micro-batch.
double bl__timed_blocks_interval(const bl__timed_blocks_t *blocks);
// Fills the lists of `base` (V-shaped, two chunks) with the current block, repeated. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__timed_blocks_repeat(const bl__timed_blocks_t *blocks, bl_schedule_t *base);

#endif
