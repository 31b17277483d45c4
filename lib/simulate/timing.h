// SPDX-License-Identifier: Apache-2.0
// Private to lib/simulate: the state while operations are timed one after the other.
//
// bl__timing_run is correct in any order in which an operation comes after its dependencies, unless stages share
// something. Then bl__turns_run finds the order of requests.
#ifndef BALLAST_SIMULATE_TIMING_H
#define BALLAST_SIMULATE_TIMING_H

#include "schedule/ir/validate.h"
#include "simulate/simulate.h"

// Times at which each item became free, in the order in which items were returned. They are taken in the same order.
typedef struct bl__free_list {
  double *times; // a ring of `capacity` entries
  uint32_t capacity, head, count;
} bl__free_list_t;

// State of a stage while its list runs.
typedef struct bl__stage_clock {
  double free_at;   // end of its last computing operation, or of the call of an evict after it
  double passed;    // a load, and all operations after it, wait until its slot is free; later than free_at only then
  double path_free; // end of its last evict or load
  bl__free_list_t slots; // schedule/ir/stage_plan.h
  // Number of entries at the end of `slots` that are free only when the next computing operation ends: those of evicts
  // (overlap).
  uint32_t leaving;
  // Reservations at its host store. An E takes the one of an earlier L, when that has ended.
  bl__free_list_t store_slots;
  double asked;   // when its last copy there requested the link; later ones come after it
  double reduced; // when the gradients that were sent so far are reduced
  bool started;
} bl__stage_clock_t;

// One direction of a NIC.
typedef struct bl__lane {
  double tensors_free; // end of the last tensor
  double copies_free;  // when the next copy may begin
} bl__lane_t;

typedef struct bl__timing {
  const bl_schedule_t *schedule;
  const bl_costs_t *costs;
  const bl_machine_t *machine;
  double *forward_end;       // [blocks]
  double *backward_end;      // [blocks]; before the backward: end of the block's load
  double *late;              // [2][blocks] delay of a tensor by NICs: forward, backward; NULL: no network
  double *core_free;         // [cores] a heap with the earliest first; NULL: every stage has its own
  double *store_free;        // [stores + stages], by bl__timing_way; NULL: no store is shared
  bl__lane_t *out, *in;      // [stages] of NICs; NULL: no network
  double *gathered;          // [virtual stages] when its weights are gathered; NULL: there is one replica
  uint32_t *left;            // [virtual stages] remaining computing operations; NULL: there is one replica
  bl__stage_clock_t *clocks; // [stages]
  uint8_t *recomputed; // [blocks] whether there is an R; NULL: there are no evictions, so no operation waits for a slot
  bl_simulation_t *result;
} bl__timing_t;

// Returns the resource that copies of a stage to or from a store share: the store, or the stage's link to its host
// (numbered after the stores).
static inline size_t bl__timing_way(const bl_schedule_t *schedule, const bl_machine_t *machine, uint32_t stage,
                                    uint32_t store) {
  return store >= schedule->stages && machine->host_links != NULL
             ? bl_schedule_stores(schedule) + machine->host_links[stage]
             : store;
}
// Returns when an E or L has everything except its store and its NICs. At a shared host store it makes its request at
// once, while earlier copies of the stage may still run.
double bl__timing_transfer_ready(const bl__timing_t *t, uint32_t stage, bl_op_t op);
// What a computing operation waits for, one after the other.
typedef struct bl__waits {
  double of[BL_STALL_CAUSES];
  bl_stall_cause_t last; // BL_STALL_END: it waits for nothing
} bl__waits_t;
// Returns when a computing operation has everything except a core, and sets its waits until then.
double bl__timing_ready(const bl__timing_t *t, uint32_t stage, bl_op_t op, bl__waits_t *waits);
// Times an operation. All its dependencies must be timed already.
void bl__timing_run(bl__timing_t *t, bl_op_ref_t at);

// Returns the latency between two adjacent virtual stages; 0 on one stage.
double bl__timing_boundary(const bl__timing_t *t, uint32_t from_virtual_stage, uint32_t to_virtual_stage);
// Returns the end of an F, or of the part of an I or B that the virtual stage before it waits for.
double bl__timing_end(const bl__timing_t *t, bl_op_t op);
// Index in `late`, of an F (first half) or a backward.
static inline size_t bl__timing_late_index(const bl_schedule_t *schedule, bl_op_t op) {
  return bl_schedule_block(schedule, op) + (op.type == BL_OP_F ? 0 : bl_schedule_block_count(schedule));
}
// A tensor requests a lane at `asks` and holds it for `hold` if it is alone on it. Returns when it begins, and when it
// has passed.
typedef struct bl__passage {
  double start, end;
} bl__passage_t;
bl__passage_t bl__lane_pass(bl__lane_t *lane, double asks, double hold);

// Times all `count` operations in the order of their requests. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__turns_run(bl__timing_t *t, size_t count);

#endif
