// SPDX-License-Identifier: Apache-2.0
// Private to lib/schedule: replaces the beginning and end of a repeated building block of a V (building_block.h). The
// repetition alone begins as if it were in its steady state: the first micro-batch waits at every stage for the cell
// that its successors will need, and the last one likewise. A step can be shorter (bound.h): the first micro-batch goes
// straight to the last stage and back, while every stage fills its memory with forwards after it; after the last
// forward the last micro-batch goes straight back.
//
// Beginning, of stage s of p, as Qi et al., NeurIPS 2024, draw it: forwards of the first chunk until the first
// micro-batch is back; then forwards of both chunks in turn; then an I, a W and a forward for each micro-batch that has
// passed the last stage, up to the first I of the first chunk. End: the I's of each chunk reach a stage every second
// cell, at the cells that the path of the last micro-batch gives; W's lie between them.
#ifndef BALLAST_SCHEDULE_BLOCK_RAMPS_H
#define BALLAST_SCHEDULE_BLOCK_RAMPS_H

#include "schedule/generate/building_block.h"

// Fills the lists of `base` (V-shaped, two chunks) for up to `held` blocks a stage. The order may be one that cannot
// run: not every building block allows this. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__block_ramps(const bl__block_row_t *rows, uint32_t held, bl_schedule_t *base);

#endif
