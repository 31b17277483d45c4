// SPDX-License-Identifier: Apache-2.0
// Private to lib/schedule: which blocks a stage evicts or drops, and when.
#ifndef BALLAST_SCHEDULE_EVICTION_H
#define BALLAST_SCHEDULE_EVICTION_H

#include "schedule/balance/mix.h"

// One E or L of a stage.
typedef struct bl__transfer {
  uint32_t before; // index of the operation of the unbalanced list before which it stands
  bl_op_t op;      // type E or L, the block that it moves; store not chosen
} bl__transfer_t;

typedef struct bl__evictions {
  bl__transfer_t *transfers; // in list order
  size_t count, capacity;
  uint32_t evicted;     // E's among them
  uint32_t late;        // L's directly before their backward, in mode overlap
  uint32_t given_up;    // blocks that are dropped
  uint32_t parked_peak; // maximum of blocks evicted at once, when transfers run in list order
} bl__evictions_t;

// Plans the evictions of one stage with `own` slots. `mix`: begun for this stage (mix.h); NULL: all blocks that leave
// are parked. With a mix, a block is parked only if its copies hide and the limits of the mix allow one more. Otherwise
// it is dropped when its F ends (mix->given_up) and takes a slot before its backward, for an R; no load is late.
// BL_EXHAUSTED: operation *failed_at finds no free slot and no block to evict or drop. BL_UNAVAILABLE: no memory, so
// that the caller can distinguish the two.
BL_MUST_USE bl_status_t bl__evictions_plan(const bl_schedule_t *schedule, uint32_t stage, uint32_t own,
                                           bl_balance_mode_t mode, bl__mix_t *mix, bl__evictions_t *evictions,
                                           uint32_t *failed_at);
// The same for all stages, in order of time, because their mixes share links. `own`, `mixes`, `evictions`: [stages].
BL_MUST_USE bl_status_t bl__evictions_plan_together(const bl_schedule_t *schedule, const uint32_t *own,
                                                    bl_balance_mode_t mode, bl__mix_t *mixes,
                                                    bl__evictions_t *evictions, uint32_t *failed_stage,
                                                    uint32_t *failed_at);
void bl__evictions_cleanup(bl__evictions_t *evictions);

#endif
