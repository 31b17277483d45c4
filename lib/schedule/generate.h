// SPDX-License-Identifier: Apache-2.0
// Schedules by name (DESIGN.md section 6). An unknown name is refused with the list of names; nothing is ever replaced
// by another schedule.
// Thread: pure functions, any thread.
#ifndef BALLAST_SCHEDULE_GENERATE_H
#define BALLAST_SCHEDULE_GENERATE_H

#include "schedule/ir/costs.h"
#include "schedule/ir/schedule.h"

// What is asked of a generator. Zero means the default of the schedule for every field but the first three.
typedef struct bl_schedule_request {
  const char *name;       // one of bl_schedule_infos
  uint32_t stages;        // p
  uint32_t micro_batches; // m
  uint32_t chunks;        // v; default 1, or 2 for V-shaped and interleaved schedules
  uint32_t group;         // grouped-interleaved: micro-batches of a group, default p; seq1f1b: slices, default 2
  double memory;          // limit in device-micro-batches, for zb-* and adaptive; defaults: zb-h1 p, zb-h2 2p, zb-v p,
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
  // With pooled: the order that the same request makes without, where somebody has it already; it is not searched again.
  // Borrowed; NULL: nobody has.
  const bl_schedule_t *unpooled;
} bl_schedule_request_t;

// BL_INVALID: the shape is not possible for this schedule (names what and why); BL_NOT_FOUND: no such name;
// BL_EXHAUSTED. The result passes bl_schedule_validate. Of a schedule that is not searched, `pooled` changes nothing.
BL_MUST_USE bl_status_t bl_schedule_generate(const bl_schedule_request_t *request, bl_schedule_t **schedule,
                                             bl_error_t *err);

// Whether `pooled` makes another order of a request than it has without.
bool bl_schedule_pools(const bl_schedule_request_t *request);

// Forwards alone, in order, on the placement of `like`: for validation losses and sampling.
BL_MUST_USE bl_status_t bl_schedule_forward(const bl_schedule_t *like, uint32_t micro_batches, bl_schedule_t **schedule,
                                            bl_error_t *err);

// What is known about a name without generating: for validation of a job and for `--help`.
typedef struct bl_schedule_info {
  const char *name;
  const char *summary;
  uint32_t default_chunks; // 1 or 2
  bl_placement_t placement;
  bool splits_backward; // I and W apart
  bool runs;            // the executor runs it; otherwise generator and simulator only
  const char *why_not;  // the reason, NULL where it runs
  bool limited;         // it takes a limit of memory
  bool any_chunks;      // a run has any number of chunks from default_chunks on; otherwise just these
} bl_schedule_info_t;

const bl_schedule_info_t *bl_schedule_infos(size_t *count);
const bl_schedule_info_t *bl_schedule_info_find(const char *name); // NULL if there is no such schedule

#endif
