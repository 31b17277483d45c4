// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/simulate: what is known while operations are timed one after the other.
//
// bl__timing_run is right in any order in which what an operation needs comes before it, unless stages share something;
// then bl__turns_run puts them into the order of asking.
#ifndef BALLAST_SIMULATE_TIMING_H
#define BALLAST_SIMULATE_TIMING_H

#include "schedule/ir/validate.h"
#include "simulate/simulate.h"

// When each of what is free became free, in the order in which it was given, which is that of taking.
typedef struct bl__free_list {
  double *times; // a ring of `room`
  uint32_t room, head, count;
} bl__free_list_t;

// What is known of a stage while its list runs.
typedef struct bl__stage_clock {
  double free_at;        // end of its last computing operation
  double passed;         // a load stands still until its slot is free, and all behind it; later than free_at only then
  double path_free;      // end of its last evict or load
  bl__free_list_t slots; // schedule/ir/slots.h
  uint32_t leaving; // of those, at the end: evicts that give theirs when the next computing operation ends (overlap)
  bl__free_list_t
      rooms;      // that it reserves at its host store: an E takes the one of an L before it, when that has ended
  double asked;   // when its last copy there asked for the link: others wait behind it
  double reduced; // when the gradients that have been sent so far are added up
  bool started;
} bl__stage_clock_t;

// One direction of a network card.
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
  double *late;              // [2][blocks] time that a tensor waited for cards: forward, backward; NULL: no network
  double *core_free;         // [cores] a heap: the first is free first; NULL: every stage has its own
  double *store_free;        // [stores + stages], by bl__timing_way; NULL: nobody shares a store
  bl__lane_t *out, *in;      // [stages] of cards; NULL: no network
  double *gathered;          // [virtual stages] when its weights are there; NULL: there is one replica
  uint32_t *left;            // [virtual stages] computing operations to come; NULL: there is one replica
  bl__stage_clock_t *clocks; // [stages]
  uint8_t *recomputed; // [blocks] whether there is an R; NULL: nothing is evicted, so that nobody waits for a slot
  bl_simulation_t *result;
} bl__timing_t;

// What copies of a stage at a store take turns for: the store, or the stage's link to its host (numbered after stores).
static inline size_t bl__timing_way(const bl_schedule_t *schedule, const bl_machine_t *machine, uint32_t stage,
                                    uint32_t store) {
  return store >= schedule->stages && machine->host_links != NULL
             ? bl_schedule_stores(schedule) + machine->host_links[stage]
             : store;
}
// When an E or L has all it needs but its store and its cards: at a host store, which is asked at once, beside others of the
// stage.
double bl__timing_transfer_ready(const bl__timing_t *t, uint32_t stage, bl_op_t op);
// When a computing operation has all it needs but a core. `cause` is set where it waited for something.
double bl__timing_ready(const bl__timing_t *t, uint32_t stage, bl_op_t op, bl_stall_cause_t *cause);
// Times an operation after all that it needs.
void bl__timing_run(bl__timing_t *t, bl_op_ref_t at);

// Between two virtual stages next to each other, 0 on one stage.
double bl__timing_boundary(const bl__timing_t *t, uint32_t from_virtual_stage, uint32_t to_virtual_stage);
// End of an F, or of the part of an I or B that the virtual stage before it waits for.
double bl__timing_end(const bl__timing_t *t, bl_op_t op);
// Of F (first half) or backward.
static inline size_t bl__timing_late_index(const bl_schedule_t *schedule, bl_op_t op) {
  return bl_schedule_block(schedule, op) + (op.verb == BL_VERB_F ? 0 : bl_schedule_block_count(schedule));
}
// A tensor that asks for a lane at `asks` and holds it for `hold`, alone on it: when it begins, and when it is through.
typedef struct bl__passage {
  double start, end;
} bl__passage_t;
bl__passage_t bl__lane_pass(bl__lane_t *lane, double asks, double hold);

// Times all `count` operations, first come, first served. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__turns_run(bl__timing_t *t, size_t count);

#endif
