// SPDX-License-Identifier: Apache-2.0
// Full recomputation as a pass over any schedule. The pass puts an R before every backward (I or B); R recomputes the
// block from its input edge. The block's F then takes no slot: R takes one, which W (or fused B) releases.
//
//   1f1b, stage 0 of 2:   0F0 0F1 0B0 0F2 0B1 ...   becomes   0F0 0F1 0R0 0B0 0F2 0R1 0B1 ...
//
// R stands directly before its backward: earlier it would hold a slot for longer. It needs nothing from other stages,
// so it can run while the gradient that the backward waits for is still in flight. If a block's F already stands
// directly before its backward (the last stage of 1f1b), there is no R: F keeps the block, in the same slot at the same
// time, and nothing is computed twice.
//
// Thread: pure functions, any thread.
#ifndef BALLAST_SCHEDULE_RECOMPUTE_H
#define BALLAST_SCHEDULE_RECOMPUTE_H

#include "schedule/ir/schedule.h"

// Adds the R's to a valid schedule; a forward-only schedule stays as it is. BL_INVALID: the schedule already
// recomputes, evicts or loads. BL_EXHAUSTED: no memory. On failure the schedule is unchanged.
BL_MUST_USE bl_status_t bl_schedule_recompute(bl_schedule_t *schedule, bl_error_t *err);

// The same, but only for the first `chunks` chunks of every stage along the model; the other chunks keep their blocks
// from F on. 0: all chunks. BL_INVALID also if `chunks` is above the schedule's chunks.
BL_MUST_USE bl_status_t bl_schedule_recompute_chunks(bl_schedule_t *schedule, uint32_t chunks, bl_error_t *err);
// BL_INVALID names the first operation that recomputes, evicts or loads.
BL_MUST_USE bl_status_t bl_schedule_check_plain(const bl_schedule_t *schedule, bl_error_t *err);

#endif
