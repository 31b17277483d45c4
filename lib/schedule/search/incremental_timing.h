// SPDX-License-Identifier: Apache-2.0
// Private to lib/schedule: incremental timing of an order under many small changes. A change retimes only the
// operations that it affects, one by one, if they are few (the cone). Otherwise it retimes everything after the change.
//
// About half of all changes are accepted. Most of the rejected ones show that only near their end: a bound on the
// stages' ends in the objective stops nearly all of them early, but saves only 1 to 2 % of the timed operations.
//
// There are two orders: the accepted one, whose times are known, and the current one, which differs from it in some
// positions of one stage:
//
//   bl__incremental_timing_t r;
//   status = bl__incremental_timing_init(&r, schedule, costs, recompute);
//   t_end = bl__incremental_timing_all(&r);
//   moment = r.times[node].start;
//   bl__incremental_timing_swap(&r, node);                        // with the next node of its stage
//   t_end = bl__incremental_timing_try(&r, stage, place, place + 2, moment, INFINITY);
//   ... bl__incremental_timing_accept(&r); or bl__incremental_timing_swap back
//   bl__incremental_timing_cleanup(&r);
#ifndef BALLAST_SCHEDULE_INCREMENTAL_TIMING_H
#define BALLAST_SCHEDULE_INCREMENTAL_TIMING_H

#include "schedule/search/dispatch.h"

#define BL__NO_NODE   UINT32_MAX
#define BL__NO_STAGE  UINT16_MAX
#define BL__CONE_MAX  96 // nodes with changed times; with more, everything after the change is retimed
#define BL__CONE_MOVE 16 // operations of a stage that change places at once; likewise

// One operation. Its number is its index in the initial lists.
typedef struct bl__retimed_node {
  double latency, cost;
  double recompute; // of a backward: cost of the R before it, unless `own` stands directly before
  uint32_t needs;   // node on another virtual stage that must end before, or BL__NO_NODE
  uint32_t own;     // of a backward that may have an R: the node of its F; or BL__NO_NODE
  uint32_t place;   // position in the list of its stage, in the current order
  uint16_t stage;   // its stage
  uint16_t wakes;   // stage of `feeds`, or BL__NO_STAGE
  uint32_t feeds;   // node that needs it, or BL__NO_NODE
  uint32_t held;    // set and used by the caller: blocks that the stage holds before it
  uint32_t filled;  // likewise: those of them that fill slots
  bl_op_t op;
  bool takes_slot;
} bl__retimed_node_t;

typedef struct bl__node_times {
  double start, end;
  double before; // costs of the stage's operations before it
} bl__node_times_t;

// The nodes whose times a change affects, while they are few.
typedef struct bl__cone {
  uint32_t nodes[2 * BL__CONE_MAX + 2 * BL__CONE_MOVE], count; // to time
  uint32_t changed[BL__CONE_MAX], changed_count;
  uint32_t *round; // [nodes] round in which the node changed last
  uint32_t now;    // number of the current round
  bool possible;   // all operations but W have positive costs, so a cycle exceeds the cone instead of converging
} bl__cone_t;

// One stage while an order is timed.
typedef struct bl__stage_walk {
  uint32_t cut;   // position from which on times are in `trial`
  uint32_t next;  // position to time next
  uint32_t waits; // node whose end the stage waits for, or BL__NO_NODE
  double work;    // costs of all its operations
} bl__stage_walk_t;

// Callers may read all fields. They may write `lists`, with the `place` of their nodes, before
// bl__incremental_timing_all.
typedef struct bl__incremental_timing {
  const bl_schedule_t *schedule;
  bl__retimed_node_t *nodes;
  uint32_t count;
  uint32_t **lists;        // [stages] nodes in order; all lists are contiguous
  bl__node_times_t *times; // [nodes] of the accepted order
  bl__node_times_t *trial; // [nodes] of the current one: of each stage from its cut on, or of the cone
  bl__stage_walk_t *walks; // [stages]
  bl__cone_t cone;
  bool in_cone;      // the order that was timed last differs from the accepted one only in the cone
  uint32_t *stack;   // [stages] to time
  double again_most; // cost of the longest R
  uint32_t *places;  // memory of lists, stack and cone.round
} bl__incremental_timing_t;

// Takes the order of `schedule`, which is borrowed. Times nothing yet. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__incremental_timing_init(bl__incremental_timing_t *r, const bl_schedule_t *schedule,
                                                    const bl_costs_t *costs, bl__recompute_options_t recompute);
void bl__incremental_timing_cleanup(bl__incremental_timing_t *r); // a zeroed one is fine

// Times and accepts the current order, whatever it is. Returns its end, infinite if it cannot run.
double bl__incremental_timing_all(bl__incremental_timing_t *r);
// Returns the end of the current order, which differs from the accepted one only in the positions of `stage` from
// `first` to before `end`. In the accepted order the operation at `first` starts at `moment`. Infinite if the current
// order cannot run; may be infinite if it ends after `latest`.
double bl__incremental_timing_try(bl__incremental_timing_t *r, uint32_t stage, uint32_t first, uint32_t end,
                                  double moment, double latest);
// Accepts the order that was tried last, whose end must be finite.
void bl__incremental_timing_accept(bl__incremental_timing_t *r);
// Returns when the stage ends in the order that was timed last.
double bl__incremental_timing_stage_end(const bl__incremental_timing_t *r, uint32_t stage);
// Exchanges node `first` and the next node of its stage, which must exist.
void bl__incremental_timing_swap(bl__incremental_timing_t *r, uint32_t first);

#endif
