// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/schedule: orders of a schedule that recomputes, whose blocks take slots from R, that is from
// their I, to the end of their W.
#ifndef BALLAST_SCHEDULE_DRAIN_H
#define BALLAST_SCHEDULE_DRAIN_H

#include "schedule/search/dispatch.h"

// Most blocks of a stage between I, or F of a chunk that keeps its own, and the end of W at once, of lists without R.
uint32_t bl__filled_most(const bl_schedule_t *schedule, bl__recompute_options_t recompute);
// Fills `made`, of the same shape, with the order of `base` where no stage has more than `slots` (at least 1) such
// blocks: a W runs before the I that would be one too many. BL_EXHAUSTED without memory.
BL_MUST_USE bl_status_t bl__drain(const bl_schedule_t *base, uint32_t slots, bl_schedule_t *made);

#endif
