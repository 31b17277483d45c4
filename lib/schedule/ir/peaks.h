// SPDX-License-Identifier: Apache-2.0
// How many blocks a stage holds: the peaks of `reference` definition "peak_release_at_W".
// Thread: pure functions, any thread.
#ifndef BALLAST_SCHEDULE_PEAKS_H
#define BALLAST_SCHEDULE_PEAKS_H

#include "schedule/ir/schedule.h"

// The most slots in use at once on each stage: an F takes one (a recomputed F none, its R does), W or fused B gives it
// back when it ends; E gives back and L takes as the schedule's transfer mode says. Slots count blocks; in
// device-micro-batches a block weighs bl_schedule_block_weight. `peak_slots` has room for [stages].
// Precondition: the schedule is valid. BL_EXHAUSTED without memory.
BL_MUST_USE bl_status_t bl_schedule_peak_slots(const bl_schedule_t *schedule, uint32_t *peak_slots);

// The same as if no block were recomputed: from F to W or fused B. What kept inputs take room for.
void bl_schedule_peak_blocks(const bl_schedule_t *schedule, uint32_t *peak_blocks);

#endif
