// SPDX-License-Identifier: Apache-2.0
// Giving blocks up instead of parking them: a pass over any schedule that makes some blocks again, from their kept input,
// so that no stage holds more than its own slots. Which ones is Belady's choice, as in balance.h (fewest): the resident
// block whose backward is farthest goes when a slot is needed. As nothing is gained by keeping it until then, it goes when
// its F ends; an R directly before its backward brings it back.
//
//   1f1b, stage 0 of 3, two slots:   0F0 0F1 0F2 0B0 ...   becomes   0F0 0F1 0F2 0B0 ... 0R2 0B2
//
// Unlike recompute.h, which makes every block again, F writes a slot while it runs (schedule->forward_slots): no workspace
// is planned for it.
//
// Thread: pure functions, any thread.
#ifndef BALLAST_SCHEDULE_DROP_H
#define BALLAST_SCHEDULE_DROP_H

#include "schedule/ir/schedule.h"

// A new schedule, which the caller destroys; `dropped` [stages], or NULL, counts the blocks that are made again. `slots`: of
// every stage; UINT32_MAX: as many as each needs. BL_EXHAUSTED: names stage, operation and the fewest slots that work.
// BL_INVALID: the schedule evicts or recomputes already.
BL_MUST_USE bl_status_t bl_schedule_drop(const bl_schedule_t *schedule, uint32_t slots, bl_schedule_t **made,
                                         uint32_t *dropped, bl_error_t *err);

#endif
