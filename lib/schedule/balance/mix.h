// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/schedule: parking and giving up in one plan. Of the blocks that leave their stage, those are
// parked whose copies hide behind computation; one whose copies would hold the stage up for longer than making it again
// takes, or for which stores have no room, is given up when its F ends, and an R stands before its backward (drop.h).
//
// When operations run is that of the order at equal costs (timing.h); a copy takes `copy` forwards. The number is the
// only thing that a plan knows of measurements, so that whoever has it makes the same plan.
//
// Stages that reach one store alone, a host's, share the link to it: their copies follow each other. Then all stages
// are walked at once, in the order of time, each with a mix of its own that begins as a copy of the first
// (bl__mix_t.link).
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
  double copy;
  bl__timing_t timing;
  uint8_t *given_up; // [blocks]
  uint32_t parks;    // blocks of a stage that may be parked in all; bl__mix_init: any number
  // Of the stage that is walked.
  uint32_t stage, most; // blocks that may be away at once
  double late;          // by how much the stage is behind the timing
  double path;          // when its path is free
  double *link;         // when the link that it shares with other stages is free; NULL: it shares none
} bl__mix_t;

// BL_INVALID: the schedule recomputes already. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__mix_init(bl__mix_t *mix, const bl_schedule_t *schedule, bl_balance_mode_t mode, double copy,
                                     bl_error_t *err);
void bl__mix_begin(bl__mix_t *mix, uint32_t stage, uint32_t most);
// Whether an E before operation `index` of the list, and the L before the `backward` of its block, delay the stage by
// no more than making the block again.
bool bl__mix_hides(const bl__mix_t *mix, uint32_t index, uint32_t backward);
// An E or L stands before operation `index`.
void bl__mix_move(bl__mix_t *mix, uint32_t index);
// Operation `index` runs; `again`: with an R before it.
void bl__mix_run(bl__mix_t *mix, uint32_t index, bool recompute);
// When operation `index` runs, as far as is known.
double bl__mix_time(const bl__mix_t *mix, uint32_t index);
void bl__mix_cleanup(bl__mix_t *mix); // a zeroed one is fine

#endif
