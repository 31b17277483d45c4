// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/schedule: the times of an order that is changed a little and timed again, many times over.
// Only what a change moves is timed: where that is little each operation on its own, otherwise all that comes later.
//
// About half of all changes are accepted. Of those that are not most show it near the end only: a bound on the stages'
// ends in what is to become small ends nearly all of them early, and saves 1 to 2 % of the operations that are timed.
//
// There is the accepted order, whose times are known, and the present one, which is it but for some places of one
// stage:
//
//   bl__incremental_timing_t r;
//   status = bl__incremental_timing_init(&r, schedule, costs, again);
//   t_end = bl__incremental_timing_all(&r);
//   moment = r.times[node].start;
//   bl__incremental_timing_swap(&r, node);                        // with the next one of its stage
//   t_end = bl__incremental_timing_try(&r, stage, place, place + 2, moment, INFINITY);
//   ... bl__incremental_timing_accept(&r); or bl__incremental_timing_swap back
//   bl__incremental_timing_cleanup(&r);
#ifndef BALLAST_SCHEDULE_INCREMENTAL_TIMING_H
#define BALLAST_SCHEDULE_INCREMENTAL_TIMING_H

#include "schedule/search/dispatch.h"

#define BL__NO_NODE   UINT32_MAX
#define BL__NO_STAGE  UINT16_MAX
#define BL__CONE_MAX  96 // changes of times, above which all that comes later is timed
#define BL__CONE_MOVE 16 // operations of a stage that change places at once: more are timed with all that comes later

// One operation, known by its index in the lists as they were at the beginning.
typedef struct bl__retimed_node {
  double latency, cost;
  double recompute; // of a backward: R before it, unless `own` stands directly before
  uint32_t needs;   // node on another virtual stage that must end before
  uint32_t own;     // of a backward that may have an R: the node of its F
  uint32_t place;   // in the list of its stage, now
  uint16_t stage;   // and the one
  uint16_t wakes;   // stage of `feeds`, or BL__NO_STAGE
  uint32_t feeds;   // node that needs it, or BL__NO_NODE
  uint32_t held;    // for who changes the order: blocks of the stage before it,
  uint32_t filled;  // of those, the ones that fill slots
  bl_op_t op;
  bool fills; // takes a slot
} bl__retimed_node_t;

typedef struct bl__node_times {
  double start, end;
  double before; // work of the stage before it
} bl__node_times_t;

// The nodes whose times a change moves, while they are few.
typedef struct bl__cone {
  uint32_t nodes[2 * BL__CONE_MAX + 2 * BL__CONE_MOVE], count; // to look at
  uint32_t changed[BL__CONE_MAX], changed_count;
  uint32_t *round; // [nodes] in which a node was changed last
  uint32_t now;    // this round
  bool possible;   // operations that others wait for take some time, so that a cycle does not come to rest
} bl__cone_t;

// One stage while an order is timed.
typedef struct bl__stage_walk {
  uint32_t cut;   // place from which on times are new
  uint32_t next;  // place to time
  uint32_t waits; // node for whose end it stopped, or BL__NO_NODE
  double work;    // of all operations
} bl__stage_walk_t;

// To read: all. To write: `lists` with the `place` of their nodes, between accepted orders.
typedef struct bl__incremental_timing {
  const bl_schedule_t *schedule;
  bl__retimed_node_t *nodes;
  uint32_t count;
  uint32_t **lists;        // [stages] nodes in order, one list behind the other
  bl__node_times_t *times; // [nodes] of the accepted order
  bl__node_times_t *trial; // [nodes] of the present one: of each stage from its cut on, or of the cone
  bl__stage_walk_t *walks; // [stages]
  bl__cone_t cone;
  bool in_cone;      // the order that was timed last is the accepted one but for the cone
  uint32_t *stack;   // [stages]
  double again_most; // longest R
  uint32_t *places;  // what lists, stack and cone lie in
} bl__incremental_timing_t;

// The order of `schedule`, which is borrowed. Nothing is timed yet. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__incremental_timing_init(bl__incremental_timing_t *r, const bl_schedule_t *schedule,
                                                    const bl_costs_t *costs, bl__recompute_options_t recompute);
void bl__incremental_timing_cleanup(bl__incremental_timing_t *r); // a zeroed one is fine

// Times and accepts the present order, whatever it is; returns its end, infinite where it cannot run.
double bl__incremental_timing_all(bl__incremental_timing_t *r);
// The end of the present order, which is as the accepted one but for `stage` from `first` to before `end`, where an
// operation started at `moment`. Infinite when it cannot run. One that ends after `latest` may be infinite, too.
double bl__incremental_timing_try(bl__incremental_timing_t *r, uint32_t stage, uint32_t first, uint32_t end,
                                  double moment, double latest);
// Accepts the order that was tried last, whose end must be finite.
void bl__incremental_timing_accept(bl__incremental_timing_t *r);
// When the stage ends in the order that was timed last.
double bl__incremental_timing_stage_end(const bl__incremental_timing_t *r, uint32_t stage);
// Node `first` and the next one of its stage, which must be there, change places.
void bl__incremental_timing_swap(bl__incremental_timing_t *r, uint32_t first);

#endif
