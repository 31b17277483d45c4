// SPDX-License-Identifier: Apache-2.0
// Time against memory for one shape and one set of costs: every schedule as it is, and every schedule with one copy of
// the weights balanced under every cap that works. Orders that are searched are also made for balancing (`pooled` of
// schedule/generate.h). Who wants the fastest step within a budget reads it off.
//
//   bl_frontier_t frontier;
//   status = bl_frontier_init(&(bl_frontier_request_t){.stages = 8, .micro_batches = 16, .costs = &costs}, &frontier, &err);
//   for (size_t i = 0; i < frontier.count; i++) ...
//   bl_frontier_cleanup(&frontier);
//
// Costs are those of a whole device's model part, for a whole sequence: a schedule with v chunks, or with v slices, runs
// with a v-th of F, I, W and of the path on each, one of two directions with all of it on both of its chunks (they hold
// the same part), so that times and memory compare. Thread: pure functions, any thread.
#ifndef BALLAST_SIMULATE_FRONTIER_H
#define BALLAST_SIMULATE_FRONTIER_H

#include "schedule/balance/balance.h"
#include "schedule/ir/costs.h"
#include "schedule/ir/schedule.h"

typedef struct bl_frontier_request {
  uint32_t stages, micro_batches;
  const bl_costs_t *costs; // of a device; `path` is the time that a device's whole block takes to a store or back
  bl_balance_mode_t mode;
  double effort; // share of the usual search; 0: all of it
  // What is wanted: built-in names, and schedules of this shape. Without any, all built-in ones that run.
  const char *const *names;
  const bl_schedule_t *const *given;
  size_t name_count, given_count;
} bl_frontier_request_t;

typedef struct bl_frontier_point {
  char schedule[BL_SCHEDULE_NAME];
  uint32_t chunks;
  uint32_t group; // micro-batches of a group; 0: has none
  double asked;   // memory asked for, in device-micro-batches; 0: the schedule's own
  double cap;     // of a balanced schedule, likewise; 0: not balanced
  double memory;  // most that a device holds, lent slots included
  double t_end, bubble;
  double above;       // share by which t_end is above bl_simulation_t's bound_within
  uint32_t evictions; // of all stages
  bool pooled;        // the order was made to be balanced
  bool runs;          // a job can ask for this schedule on this placement
  bool best_plain;    // no unbalanced schedule needs less memory or time without needing more of the other
  bool best;          // the same among all
} bl_frontier_point_t;

typedef struct bl_frontier {
  bl_frontier_point_t *points;
  size_t count, capacity;
} bl_frontier_t;

// Unless they are named, schedules that the shape does not allow are left out, as are those with two copies of the weights
// or sliced sequences. BL_INVALID: no schedule is possible, or one that is named; BL_NOT_FOUND: no such name; BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_frontier_init(const bl_frontier_request_t *request, bl_frontier_t *frontier,
                                         bl_error_t *err);
void bl_frontier_cleanup(bl_frontier_t *frontier);

#endif
