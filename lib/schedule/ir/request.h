// SPDX-License-Identifier: Apache-2.0
// Which schedule is wanted. Who makes it is generate.h.
#ifndef BALLAST_SCHEDULE_REQUEST_H
#define BALLAST_SCHEDULE_REQUEST_H

#include "schedule/ir/costs.h"
#include "schedule/ir/schedule.h"

// What is asked of a generator. Zero means the default of the schedule for every field but the first three.
typedef struct bl_schedule_request {
  const char *name;       // one of bl_schedule_infos
  uint32_t stages;        // p
  uint32_t micro_batches; // m
  uint32_t chunks;        // v; default 1, or 2 for V-shaped and interleaved schedules
  uint32_t group;         // grouped-interleaved: micro-batches of a group, default p
  uint32_t slices; // of every sequence; default 1, or 2 for seq1f1b. Not with two pipes. Costs are those of a slice
  double memory;   // limit in device-micro-batches, for zb-* and adaptive; defaults: zb-h1 p, zb-h2 2p, zb-v p,
                   // adaptive p
  const double *memory_of_stage; // [stages] or NULL: a limit per stage instead
  const bl_costs_t *costs;       // NULL: BL_COSTS_UNIT
  bool recompute;      // every backward has its R before it, as bl_schedule_recompute puts it; what is searched
                       // counts it. A limit of memory counts blocks from F on all the same: kept inputs
  double slots;        // with recompute: limit of what is searched for blocks from R on, in device-micro-batches (at
                       // least one block); 0: none
  bool keep_placement; // adaptive: chunks stay on the V, for callers that have divided the model already
  double effort;       // share of the usual search for schedules that are searched; 0: all of it
  // With recompute: of every stage, the first so many chunks along the model; the others keep their blocks, which fill
  // slots from F on.
  uint32_t recompute_chunks;
  // For who balances the order (balance.h): a stage may keep more than the limit where others keep less. With a `memory`,
  // zb-* and adaptive are searched for the fastest order that balancing in pairs brings down to it (pooled.h);
  // grouped-interleaved and 1f1b-v give every stage what its own timetable keeps, not what the worst stage does.
  bool pooled;
  // With pooled: blocks that leave go to memory of the host, so that devices lend nothing and the limit is the cap of all.
  bool hosted;
  // With pooled: the order that the same request makes without, where somebody has it already; it is not searched again.
  // Borrowed; NULL: nobody has.
  const bl_schedule_t *unpooled;
} bl_schedule_request_t;

#endif
