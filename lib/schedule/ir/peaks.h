// SPDX-License-Identifier: Apache-2.0
// The peak numbers of slots and of blocks that each stage holds.
// Thread: pure functions, any thread.
#ifndef BALLAST_SCHEDULE_PEAKS_H
#define BALLAST_SCHEDULE_PEAKS_H

#include "schedule/ir/schedule.h"

// Sets peak_slots[stages] to the maximum number of slots in use at once on each stage, as slot_walk.h counts them: an F
// takes a slot, and W or fused B frees it at its end. Of a recomputed block R takes the slot (with forward_slots its F
// takes one as well, while it runs). When E frees and L takes a slot depends on the schedule's transfer mode. Slots
// count blocks; a block weighs bl_schedule_block_weight in device-micro-batches. Precondition: the schedule is valid.
// BL_EXHAUSTED without memory.
BL_MUST_USE bl_status_t bl_schedule_peak_slots(const bl_schedule_t *schedule, uint32_t *peak_slots);

// Sets peak_blocks[stages] to the maximum number of blocks between F and W or fused B, as if no block were recomputed.
// Kept inputs need that many buffers.
void bl_schedule_peak_blocks(const bl_schedule_t *schedule, uint32_t *peak_blocks);

#endif
