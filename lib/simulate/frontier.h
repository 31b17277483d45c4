// SPDX-License-Identifier: Apache-2.0
// Time against memory for one shape and one set of costs: every schedule unbalanced, and every schedule with one copy
// of the weights balanced under every cap that works. Orders from a search are also searched for balancing (`pooled` of
// schedule/generate.h). The fastest step within a budget can be read from it.
//
//   bl_frontier_t frontier;
//   bl_frontier_request_t request = {.stages = 8, .micro_batches = 16, .costs = &costs};
//   status = bl_frontier_init(&request, &frontier, &err);
//   for (size_t i = 0; i < frontier.count; i++) ...
//   bl_frontier_cleanup(&frontier);
//
// Costs are for all layers of a device and a whole sequence, so that times and memory of schedules compare. With v
// chunks or v slices, each has a v-th of F, I, W and the path. With two directions, each of the two chunks has all of
// it, since both hold the same layers.
//
// Thread: pure functions, any thread.
#ifndef BALLAST_SIMULATE_FRONTIER_H
#define BALLAST_SIMULATE_FRONTIER_H

#include "schedule/balance/balance.h"
#include "schedule/ir/costs.h"
#include "schedule/ir/schedule.h"

typedef struct bl_frontier_request {
  uint32_t stages, micro_batches;
  const bl_costs_t *costs; // of a device; `path` is the time to move a device's whole block to a store or back
  bl_balance_mode_t mode;
  double effort; // share of the usual search budget; 0: all of it
  // Built-in names, and schedules of this shape. Without any, all built-in schedules that run.
  const char *const *names;
  const bl_schedule_t *const *given;
  size_t name_count, given_count;
} bl_frontier_request_t;

typedef struct bl_frontier_point {
  char schedule[BL_SCHEDULE_NAME];
  uint32_t chunks;
  uint32_t group; // micro-batches of a group; 0: it has no groups
  double asked;   // requested memory limit, in device-micro-batches; 0: the schedule's own memory
  double cap;     // of a balanced schedule, in device-micro-batches; 0: not balanced
  double memory;  // maximum that a device holds, lent slots included
  double t_end, bubble;
  double above;       // share by which t_end is above bl_simulation_t's bound_within
  uint32_t evictions; // of all stages
  bool pooled;        // the order was searched for balancing
  bool runs;          // a job can ask for this schedule on this placement
  bool best_plain;    // no unbalanced schedule needs less memory or time without needing more of the other
  bool best;          // the same with balanced schedules
} bl_frontier_point_t;

typedef struct bl_frontier {
  bl_frontier_point_t *points;
  size_t count, capacity;
} bl_frontier_t;

// Unless they are named, leaves out schedules that the shape does not allow, and those with two copies of the weights
// or sliced sequences. BL_INVALID: no schedule is possible, or a named one is not. BL_NOT_FOUND: no such name.
// BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_frontier_init(const bl_frontier_request_t *request, bl_frontier_t *frontier,
                                         bl_error_t *err);
void bl_frontier_cleanup(bl_frontier_t *frontier);

#endif
