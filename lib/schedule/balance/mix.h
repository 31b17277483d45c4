// SPDX-License-Identifier: Apache-2.0
// Private to lib/schedule: parking and dropping in one plan. A block that leaves its stage is parked if its copies hide
// behind computation. If they would delay the stage for longer than a recomputation, or if the stores have no slot for
// it, the block is dropped when its F ends, and an R stands before its backward (drop.h).
//
// The times of operations are those of the order at equal costs (timing.h); a copy takes `copy` forwards. This number
// is the only measurement that a plan depends on, so every process that has it makes the same plan.
//
// Stages whose only store is a host's share the link to it: their copies run one after the other. All stages are then
// walked together, in order of time, each with its own copy of one mix (bl__mix_t.link).
//
//   bl__mix_begin(&mix, stage, most);
//   for every operation of the stage: bl__mix_hides(), bl__mix_move() for what stands before it, then bl__mix_run()
#ifndef BALLAST_SCHEDULE_MIX_H
#define BALLAST_SCHEDULE_MIX_H

#include "schedule/balance/balance.h"
#include "schedule/ir/timing.h"

typedef struct bl__mix {
  const bl_schedule_t *schedule;
  bl_balance_mode_t mode;
  double copy; // time of one copy, in forwards
  bl__timing_t timing;
  uint8_t *given_up; // [blocks] not 0: dropped
  uint32_t parks;    // blocks of a stage that may be parked in total; bl__mix_init: any number
  // The stage that is walked.
  uint32_t stage, most; // most: blocks that may be evicted at once
  double late;          // delay of the stage compared with the timing
  double path;          // time at which its path is free
  double *link;         // time at which the link that it shares with other stages is free; NULL: it shares none
} bl__mix_t;

// BL_INVALID: the schedule already evicts or recomputes. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__mix_init(bl__mix_t *mix, const bl_schedule_t *schedule, bl_balance_mode_t mode, double copy,
                                     bl_error_t *err);
// Starts the walk of `stage`, with up to `most` blocks evicted at once.
void bl__mix_begin(bl__mix_t *mix, uint32_t stage, uint32_t most);
// Returns whether an E before operation `index`, and the L before the `backward` of its block, delay the stage by no
// more than recomputing the block.
bool bl__mix_hides(const bl__mix_t *mix, uint32_t index, uint32_t backward);
// Notes that an E or L stands before operation `index`.
void bl__mix_move(bl__mix_t *mix, uint32_t index);
// Notes that operation `index` runs; `recompute`: with an R before it.
void bl__mix_run(bl__mix_t *mix, uint32_t index, bool recompute);
// Returns when operation `index` runs, with the delay known so far.
double bl__mix_time(const bl__mix_t *mix, uint32_t index);
void bl__mix_cleanup(bl__mix_t *mix); // a zeroed one is fine

#endif
