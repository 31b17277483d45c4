// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/schedule: building blocks of V-shaped schedules whose passes take as long as they do. Those of
// building_block.h count cells of unit time and go from stage to stage in even steps; where F, I and W differ or boundaries
// take time, that fits into little less than the memory of 1F1B. Here each stage may put its six passes in an order of
// its own. Of all those orders the ones are chosen that let a micro-batch wait the least on its way: what it waits is memory.
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

// Blocks of two chunks a stage, `stages` of at least 2, that hold no more than `limits` [stages], which is borrowed. Of costs
// that differ between chunks the mean is taken. `budget`: pairs of patterns of stages that may be looked at. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__timed_blocks_create(uint32_t stages, const bl_costs_t *costs, const uint32_t *limits,
                                                uint64_t budget, bl__timed_blocks_t **blocks);
void bl__timed_blocks_destroy(bl__timed_blocks_t *blocks); // NULL is fine
// Goes on to the next block. False: there is none.
bool bl__timed_blocks_next(bl__timed_blocks_t *blocks);
// After how long the next micro-batch follows in the present block, in times of what a mean stage does for one.
double bl__timed_blocks_interval(const bl__timed_blocks_t *blocks);
// Fills the lists of `base` (V-shaped, two chunks) with the present block, repeated. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__timed_blocks_repeat(const bl__timed_blocks_t *blocks, bl_schedule_t *base);

#endif
