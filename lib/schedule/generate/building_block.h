// SPDX-License-Identifier: Apache-2.0
// Private to lib/schedule: building blocks of V-shaped schedules (Qi et al., "Pipeline Parallelism with Controllable
// Memory", NeurIPS 2024). A building block gives the cells of unit time in which one micro-batch passes every stage.
// The schedule is the block repeated every 6 cells: two chunks, each with F, I and W.
#ifndef BALLAST_SCHEDULE_BUILDING_BLOCK_H
#define BALLAST_SCHEDULE_BUILDING_BLOCK_H

#include "schedule/ir/schedule.h"

#define BL__BLOCK_PERIOD 6

// The family of the paper's adaptive search. The path down (F of the first chunk, I of the second) takes `down` cells
// from stage to stage, the path up (F of the second, I of the first) `up` cells. The path down may change once, as in
// the paper: its first steps take `bend` cells. Where it reverses it takes `reversal` cells: at the last stage between
// the F's, at stage 0 from F to I, at the last stage between the I's.
typedef struct bl__block_shape {
  uint32_t down, up;
  uint32_t reversal[3];
  uint32_t first, bend; // the first `first` steps down from stage 0 take `bend` cells instead of `down`
} bl__block_shape_t;

// Cells of one stage, in the order F0, F1, I1, I0, W1, W0.
typedef struct bl__block_row {
  uint32_t at[6];
} bl__block_row_t;

// Fills rows[stages]; each W takes the first free cell after its I. Returns false if two passes collide modulo the
// period.
bool bl__block_rows(const bl__block_shape_t *shape, uint32_t stages, bl__block_row_t *rows);
// Returns the maximum number of blocks that a stage holds in the repeated order.
uint32_t bl__block_peak(const bl__block_row_t *row);
// Fills the lists of `base` (V-shaped, two chunks) with the repeated block.
BL_MUST_USE bl_status_t bl__block_repeat(const bl__block_row_t *rows, bl_schedule_t *base);

#endif
