// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/schedule: a repeated building block of a V (building_block.h) whose beginning and end are laid out
// anew. The repetition as it is begins as if it had gone on for ever: the first micro-batch waits at every stage for the place
// that its successors will need, and the last one likewise. What no order can avoid (bound.h) is less: the first micro-batch
// goes straight to the last stage and back, while every stage fills its memory with forwards behind it, and after the last
// forward the last micro-batch goes straight home.
//
// Beginning, of stage s of p, as Qi et al., NeurIPS 2024, draw it: forwards of the first chunk until the first micro-batch is
// back, both chunks in turn, then per micro-batch that turned I, W and one forward, up to the first I of the first chunk. End:
// the I's of either chunk reach a stage every second cell, at the cells that the way of the last micro-batch leaves; W's lie
// between them.
#ifndef BALLAST_SCHEDULE_BLOCK_RAMPS_H
#define BALLAST_SCHEDULE_BLOCK_RAMPS_H

#include "schedule/generate/building_block.h"

// Fills the lists of `base` (V-shaped, two chunks), meant to hold up to `held` blocks a stage. Not every block allows it:
// the order may be one that cannot run. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__block_ramps(const bl__block_row_t *rows, uint32_t held, bl_schedule_t *base);

#endif
