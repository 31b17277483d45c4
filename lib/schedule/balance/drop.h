// SPDX-License-Identifier: Apache-2.0
// Dropping blocks instead of parking them: a pass over any schedule that recomputes some blocks from their kept input,
// so that no stage holds more than its own slots. Belady's rule chooses them, as in balance.h (fewest): when a slot is
// needed, it takes the resident block whose backward is farthest. Keeping that block until then gains nothing, so it is
// dropped when its F ends. An R directly before its backward recomputes it.
//
//   1f1b, stage 0 of 3, two slots:   0F0 0F1 0F2 0B0 ...   becomes   0F0 0F1 0F2 0B0 ... 0R2 0B2
//
// Unlike in recompute.h, which recomputes every block, F writes a slot while it runs (schedule->forward_slots): no
// workspace is planned for it.
//
// Thread: pure functions, any thread.
#ifndef BALLAST_SCHEDULE_DROP_H
#define BALLAST_SCHEDULE_DROP_H

#include "schedule/ir/schedule.h"

// Makes a new schedule, which the caller destroys. `slots`: of every stage; UINT32_MAX: as many as each needs.
// `dropped` [stages], or NULL, counts the blocks that are recomputed. BL_EXHAUSTED: names the stage, the operation and
// the minimum of slots that works, or no memory. BL_INVALID: the schedule already evicts or recomputes.
BL_MUST_USE bl_status_t bl_schedule_drop(const bl_schedule_t *schedule, uint32_t slots, bl_schedule_t **made,
                                         uint32_t *dropped, bl_error_t *err);

#endif
