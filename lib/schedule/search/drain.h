// SPDX-License-Identifier: Apache-2.0
// Private to lib/schedule: orders of a schedule that recomputes. Its blocks take slots from their R, which in lists
// without R is their I, to the end of their W.
#ifndef BALLAST_SCHEDULE_DRAIN_H
#define BALLAST_SCHEDULE_DRAIN_H

#include "schedule/search/dispatch.h"

// Returns the maximum, over all stages, of blocks that fill slots at once, for lists without R. A block fills one from
// its I, or from its F if its chunk keeps its blocks, to the end of its W.
uint32_t bl__filled_most(const bl_schedule_t *schedule, bl__recompute_options_t recompute);
// Fills `made`, of the same shape, with the order of `base`, changed so that no stage has more than `slots` (at least
// 1) blocks between I and the end of W: a W runs before the I that would exceed them. BL_EXHAUSTED without memory.
BL_MUST_USE bl_status_t bl__drain(const bl_schedule_t *base, uint32_t slots, bl_schedule_t *made);

#endif
