// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/schedule: which blocks one stage evicts, and when.
#ifndef BALLAST_SCHEDULE_EVICTION_H
#define BALLAST_SCHEDULE_EVICTION_H

#include "schedule/balance/mix.h"

// One E or L of a stage: it stands before operation `before` of the unbalanced list and moves the block of `op`.
typedef struct bl__transfer {
  uint32_t before;
  bl_op_t op; // verb E or L, store not chosen
} bl__transfer_t;

typedef struct bl__evictions {
  bl__transfer_t *transfers; // in list order
  size_t count, capacity;
  uint32_t evicted;     // E's among them
  uint32_t late;        // L's directly before their backward, in mode overlap
  uint32_t given_up;    // blocks
  uint32_t parked_peak; // most blocks away at once, when transfers run in list order
} bl__evictions_t;

// BL_EXHAUSTED: *failed_at is the operation that finds no slot and nothing to evict; BL_OK otherwise.
// BL_UNAVAILABLE stands for "out of memory" here, so that the two can be told apart.
// With a mix, begun for this stage and NULL otherwise, blocks are parked only if their copies hide and not too many are
// away; others are given up when their F ends (mix->given_up) and take a slot again before their backward, for an R. No load
// is late then.
BL_MUST_USE bl_status_t bl__evictions_plan(const bl_schedule_t *schedule, uint32_t stage, uint32_t own,
                                           bl_balance_mode_t mode, bl__mix_t *mix, bl__evictions_t *evictions,
                                           uint32_t *failed_at);
// The same of all stages, in the order of time: their mixes share links. `own`, `mixes` and `evictions` are [stages].
BL_MUST_USE bl_status_t bl__evictions_plan_together(const bl_schedule_t *schedule, const uint32_t *own,
                                                    bl_balance_mode_t mode, bl__mix_t *mixes,
                                                    bl__evictions_t *evictions, uint32_t *failed_stage,
                                                    uint32_t *failed_at);
void bl__evictions_cleanup(bl__evictions_t *evictions);

#endif
