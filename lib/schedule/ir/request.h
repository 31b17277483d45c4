// SPDX-License-Identifier: Apache-2.0
// A request for a schedule. generate.h fulfils it.
#ifndef BALLAST_SCHEDULE_REQUEST_H
#define BALLAST_SCHEDULE_REQUEST_H

#include "schedule/ir/costs.h"
#include "schedule/ir/schedule.h"

// The request to a generator. In every field but the first three, zero means the default of the schedule.
typedef struct bl_schedule_request {
  const char *name;       // one of bl_schedule_infos
  uint32_t stages;        // p
  uint32_t micro_batches; // m
  uint32_t chunks;        // v; default 1, or 2 for V-shaped and interleaved schedules
  uint32_t group;         // grouped-interleaved: micro-batches of a group, default p
  uint32_t slices;        // per sequence; default 1, or 2 for seq1f1b. Not with two pipes. Costs are those of a slice
  double memory;          // limit in device-micro-batches, for zb-* and adaptive; defaults: zb-h1 p, zb-h2 2p, zb-v p,
                          // adaptive p
  const double *memory_of_stage; // [stages] or NULL: a limit per stage instead
  const bl_costs_t *costs;       // NULL: BL_COSTS_UNIT
  bool recompute;      // every backward has an R before it, as bl_schedule_recompute puts it; searches include its
                       // cost. A limit of memory still counts blocks from F on: kept inputs
  double slots;        // with recompute, for schedules that are searched: limit for blocks from R on, in
                       // device-micro-batches (at least one block); 0: none
  bool keep_placement; // adaptive: chunks stay on the V, for callers that have already divided the model
  double effort;       // for schedules that are searched: share of the usual search; 0: all of it
  // With recompute: the number of chunks of every stage, the first along the model, that are recomputed. The other
  // chunks keep their blocks in slots from F on. 0: all chunks are recomputed.
  uint32_t recompute_chunks;
  // The order will be balanced (balance.h): a stage may keep more than the limit if other stages keep less. With a
  // `memory`, zb-* and adaptive search for the fastest order that balancing in pairs brings down to the limit
  // (pooled.h). grouped-interleaved and 1f1b-v limit every stage to what its own timetable keeps, not to what the
  // fullest stage keeps.
  bool pooled;
  // With pooled: evicted blocks are kept in host memory, so devices lend nothing and the limit is the cap of all
  // devices.
  bool hosted;
  // With pooled: the order of the same request without pooled, if the caller already has it; it is not searched a
  // second time. Borrowed; NULL: the caller does not have it.
  const bl_schedule_t *unpooled;
} bl_schedule_request_t;

#endif
