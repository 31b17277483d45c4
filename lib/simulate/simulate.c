// SPDX-License-Identifier: Apache-2.0
#include "simulate/simulate.h"

#include "schedule/dependency.h"
#include "schedule/peaks.h"
#include "schedule/validate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// What is known of a stage while its list runs.
typedef struct stage_clock {
  double free_at;   // end of its last computing operation
  double path_free; // end of its last evict or load
  double gate;      // whoever takes a slot waits until then for an evict to give it
  double next_gate; // the same, from the end of the next computing operation on (overlap)
  bool started;
  uint32_t next; // operation of its list, when stages share cores or stores
} stage_clock_t;

enum { RAN_FORWARD = 1, RAN_BACKWARD = 2 };

typedef struct timing {
  const bl_schedule_t *schedule;
  const bl_costs_t *costs;
  const bl_machine_t *machine;
  double *forward_end;   // [blocks]
  double *backward_end;  // [blocks]; before the backward: end of the block's load
  double *core_free;     // [cores]
  double *store_free;    // [stages], when stages share stores
  uint8_t *ran;          // [blocks] bits RAN_*, when stages share cores or stores
  stage_clock_t *clocks; // [stages]
  bl_simulation_t *result;
} timing_t;

static double *end_of(timing_t *t, bl_op_t op) {
  size_t block = bl_schedule_block(t->schedule, op);
  return op.verb == BL_VERB_F ? &t->forward_end[block] : &t->backward_end[block];
}

// When an E or L has all it needs but its store.
static double transfer_ready_at(const timing_t *t, uint32_t stage, bl_op_t op) {
  const stage_clock_t *clock = &t->clocks[stage];
  return fmax(fmax(clock->free_at, clock->path_free), op.verb == BL_VERB_L ? clock->gate : 0);
}

// E and L start when the operation before them has ended and the path is free.
static void run_transfer(timing_t *t, bl_op_ref_t at, bl_op_t op) {
  stage_clock_t *clock = &t->clocks[at.stage];
  double start = transfer_ready_at(t, at.stage, op);
  double *store = t->store_free != NULL && op.store < t->schedule->stages ? &t->store_free[op.store] : NULL;
  start = store != NULL ? fmax(start, *store) : start;
  double end = start + (t->machine->paths != NULL ? t->machine->paths[at.stage] : t->costs->path);
  clock->path_free = end;
  if (store != NULL) {
    *store = end;
  }
  t->result->spans[at.stage][at.index] = (bl_span_t){start, end};
  if (op.verb == BL_VERB_L) {
    t->backward_end[bl_schedule_block(t->schedule, op)] = end;
  } else if (t->schedule->transfers == BL_TRANSFER_OVERLAP) {
    clock->next_gate = fmax(clock->next_gate, end);
  } else {
    clock->gate = fmax(clock->gate, end);
  }
}

static double boundary_of(const timing_t *t, bl_op_t from, uint32_t stage, uint32_t to_virtual_stage) {
  if (t->schedule->stage_of[from.virtual_stage] == stage) {
    return 0;
  }
  uint32_t lower = from.virtual_stage < to_virtual_stage ? from.virtual_stage : to_virtual_stage;
  return t->machine->boundaries != NULL ? t->machine->boundaries[lower] : t->costs->boundary;
}

// Later of the two, with its cause.
static void wait_for(double *start, bl_stall_cause_t *cause, double until, bl_stall_cause_t why) {
  if (until > *start) {
    *start = until;
    *cause = why;
  }
}

// When a computing operation has all it needs but a core.
static double ready_at(timing_t *t, uint32_t stage, bl_op_t op, bl_stall_cause_t *cause) {
  stage_clock_t *clock = &t->clocks[stage];
  bl_op_t needed;
  double start = clock->free_at;
  if (op.verb == BL_VERB_F || op.verb == BL_VERB_R) {
    wait_for(&start, cause, clock->gate, BL_STALL_SLOT);
  }
  if (bl__op_dependency(t->schedule, op, &needed)) {
    double arrives = *end_of(t, needed) + boundary_of(t, needed, stage, op.virtual_stage);
    wait_for(&start, cause, arrives, op.verb == BL_VERB_F ? BL_STALL_ACTIVATION : BL_STALL_GRADIENT);
  }
  if (bl_verb_starts_backward((bl_verb_t)op.verb)) {
    wait_for(&start, cause, *end_of(t, op), BL_STALL_LOAD);
  }
  return start;
}

// The core that is free first, or NULL when every stage has its own.
static double *first_core(const timing_t *t) {
  double *best = t->core_free;
  for (uint32_t i = 1; i < t->machine->cores; i++) {
    best = t->core_free[i] < *best ? &t->core_free[i] : best;
  }
  return best;
}

static void run_compute(timing_t *t, bl_op_ref_t at, bl_op_t op) {
  stage_clock_t *clock = &t->clocks[at.stage];
  bl_simulation_t *r = t->result;
  bl_stall_cause_t cause = BL_STALL_END;
  double start = ready_at(t, at.stage, op, &cause), *core = first_core(t);
  if (core != NULL) {
    wait_for(&start, &cause, *core, BL_STALL_CORE);
  }
  double cost = bl_costs_op(t->costs, (bl_verb_t)op.verb, op.virtual_stage), share = 1;
  if (op.verb == BL_VERB_B && t->machine->early_gradient && cost > 0) {
    share = bl_costs_op(t->costs, BL_VERB_I, op.virtual_stage) / cost;
  }
  cost = t->machine->times != NULL ? t->machine->times[at.stage][at.index] : cost;
  double end = start + cost;
  if (op.verb == BL_VERB_F || bl_verb_starts_backward((bl_verb_t)op.verb)) {
    *end_of(t, op) = share < 1 ? start + share * cost : end;
  }
  r->stalls[at.stage][cause] += start - clock->free_at;
  clock->gate = fmax(clock->gate, clock->next_gate);
  if (!clock->started) {
    clock->started = true;
    r->start[at.stage] = start;
  }
  r->spans[at.stage][at.index] = (bl_span_t){start, end};
  r->end[at.stage] = clock->free_at = end;
  r->busy[at.stage] += cost;
  if (core != NULL) {
    *core = end;
  }
}

static void run_op(timing_t *t, bl_op_ref_t at) {
  bl_op_t op = t->schedule->lists[at.stage].ops[at.index];
  if (bl_verb_computes((bl_verb_t)op.verb)) {
    run_compute(t, at, op);
  } else {
    run_transfer(t, at, op);
  }
}

// Whether what the next operation of the stage depends on has been timed, and from when it asks for a core.
static bool asks_at(timing_t *t, uint32_t stage, double *asks) {
  const bl_op_list_t *list = &t->schedule->lists[stage];
  if (t->clocks[stage].next == list->count) {
    return false;
  }
  bl_op_t op = list->ops[t->clocks[stage].next], needed;
  if (!bl_verb_computes((bl_verb_t)op.verb)) { // without shared stores it changes its own stage's clocks alone
    *asks = t->store_free != NULL ? transfer_ready_at(t, stage, op) : -INFINITY;
    return true;
  }
  if (bl__op_dependency(t->schedule, op, &needed)) {
    uint8_t ran = t->ran[bl_schedule_block(t->schedule, needed)];
    if ((ran & (needed.verb == BL_VERB_F ? RAN_FORWARD : RAN_BACKWARD)) == 0) {
      return false;
    }
  }
  bl_stall_cause_t cause;
  *asks = ready_at(t, stage, op, &cause);
  return true;
}

// Whether two stages park blocks at one store.
static bool stores_are_shared(const bl_schedule_t *schedule, uint32_t *user) {
  for (uint32_t s = 0; s < schedule->stages; s++) {
    for (size_t i = 0; i < schedule->lists[s].count; i++) {
      bl_op_t op = schedule->lists[s].ops[i];
      if (op.verb != BL_VERB_E || op.store >= schedule->stages) {
        continue;
      }
      if (user[op.store] != 0 && user[op.store] != s + 1) {
        return true;
      }
      user[op.store] = s + 1;
    }
  }
  return false;
}

// First come, first served: every operation in the order in which it asks for a core or a store.
static void run_in_order_of_asking(timing_t *t, size_t count) {
  for (size_t done = 0; done < count; done++) {
    uint32_t first = UINT32_MAX;
    double earliest = INFINITY, asks;
    for (uint32_t s = 0; s < t->schedule->stages; s++) {
      if (asks_at(t, s, &asks) && asks < earliest) {
        earliest = asks;
        first = s;
      }
    }
    uint32_t index = t->clocks[first].next++;
    bl_op_t op = t->schedule->lists[first].ops[index];
    run_op(t, (bl_op_ref_t){.stage = first, .index = index});
    uint8_t *ran = &t->ran[bl_schedule_block(t->schedule, op)];
    *ran |= op.verb == BL_VERB_F ? RAN_FORWARD : bl_verb_starts_backward((bl_verb_t)op.verb) ? RAN_BACKWARD : 0;
  }
}

static bl_status_t allocate(const bl_schedule_t *schedule, bl_simulation_t *r) {
  size_t stages = schedule->stages;
  r->stages = schedule->stages;
  r->busy = calloc(4 * stages, sizeof r->busy[0]);
  r->peak_slots = calloc(stages, sizeof r->peak_slots[0]);
  r->stalls = calloc(stages, sizeof r->stalls[0]);
  r->spans = calloc(stages, sizeof(bl_span_t *));
  bl_span_t *spans = calloc(bl_schedule_op_count(schedule) + 1, sizeof *spans);
  if (r->busy == NULL || r->peak_slots == NULL || r->spans == NULL || r->stalls == NULL || spans == NULL) {
    free(spans);
    return BL_EXHAUSTED;
  }
  r->start = r->busy + stages;
  r->end = r->start + stages;
  r->peak = r->end + stages;
  for (size_t s = 0, used = 0; s < stages; s++) {
    r->spans[s] = spans + used;
    used += schedule->lists[s].count;
  }
  return BL_OK;
}

static bl_status_t sum_up(const bl_schedule_t *schedule, const bl_costs_t *costs, bl_simulation_t *r) {
  double busiest = 0;
  for (uint32_t s = 0; s < r->stages; s++) {
    r->t_end = fmax(r->t_end, r->end[s]);
    r->max_span = fmax(r->max_span, r->end[s] - r->start[s]);
    busiest = fmax(busiest, r->busy[s]);
  }
  r->bubble_total = r->t_end > 0 ? 1 - busiest / r->t_end : 0;
  r->bubble_span = r->max_span > 0 ? 1 - busiest / r->max_span : 0;
  bl_status_t status = bl_schedule_peak_slots(schedule, r->peak_slots);
  for (uint32_t s = 0; s < r->stages; s++) {
    r->peak[s] = r->peak_slots[s] * bl_schedule_block_weight(schedule);
    r->stalls[s][BL_STALL_END] += r->t_end - r->end[s];
  }
  return status == BL_OK ? bl_schedule_lower_bound(schedule, costs, &r->lower_bound) : status;
}

static bl_status_t check_machine(const bl_schedule_t *schedule, const bl_machine_t *machine, bl_error_t *err) {
  for (uint32_t s = 0; machine->boundaries != NULL && s < schedule->virtual_stages; s++) {
    if (!isfinite(machine->boundaries[s]) || machine->boundaries[s] < 0) {
      return bl_error_set(err, BL_INVALID, "boundary after virtual stage %u: must be a number from 0 upwards, is %g", s,
                          machine->boundaries[s]);
    }
  }
  for (uint32_t s = 0; machine->paths != NULL && s < schedule->stages; s++) {
    if (!isfinite(machine->paths[s]) || machine->paths[s] < 0) {
      return bl_error_set(err, BL_INVALID, "an evict or load of stage %u: must be a number from 0 upwards, is %g", s,
                          machine->paths[s]);
    }
  }
  for (uint32_t s = 0; machine->times != NULL && s < schedule->stages; s++) {
    for (size_t i = 0; i < schedule->lists[s].count; i++) {
      if (!isfinite(machine->times[s][i]) || machine->times[s][i] < 0) {
        return bl_error_set(err, BL_INVALID, "operation %zu of stage %u: must be a number from 0 upwards, is %g", i, s,
                            machine->times[s][i]);
      }
    }
  }
  return BL_OK;
}

bl_status_t bl_simulate(const bl_schedule_t *schedule, const bl_costs_t *costs, bl_simulation_t *result,
                        bl_error_t *err) {
  return bl_simulate_on(schedule, costs, &(bl_machine_t){0}, result, err);
}

bl_status_t bl_simulate_on(const bl_schedule_t *schedule, const bl_costs_t *costs, const bl_machine_t *machine,
                           bl_simulation_t *result, bl_error_t *err) {
  bl_status_t status = bl_costs_check(costs, schedule->virtual_stages, err);
  if (status == BL_OK) {
    status = check_machine(schedule, machine, err);
  }
  if (status != BL_OK) {
    return status;
  }
  bl_simulation_t made = {0};
  size_t blocks = bl_schedule_block_count(schedule), count = bl_schedule_op_count(schedule);
  timing_t t = {.schedule = schedule, .costs = costs, .machine = machine, .result = &made};
  t.forward_end = calloc(blocks, sizeof(double));
  t.backward_end = calloc(blocks, sizeof(double));
  t.clocks = calloc(schedule->stages, sizeof t.clocks[0]);
  t.core_free = machine->cores > 0 ? calloc(machine->cores, sizeof(double)) : NULL;
  uint32_t *users = calloc(schedule->stages, sizeof *users);
  const bool shares = machine->shared_stores && users != NULL && stores_are_shared(schedule, users);
  const bool takes_turns = machine->cores > 0 || shares;
  t.store_free = shares ? calloc(schedule->stages, sizeof(double)) : NULL;
  t.ran = takes_turns ? calloc(blocks, 1) : NULL;
  bl_op_ref_t *order = malloc((count + 1) * sizeof *order);
  bool allocated = t.forward_end != NULL && t.backward_end != NULL && t.clocks != NULL && order != NULL &&
                   users != NULL && (machine->cores == 0 || t.core_free != NULL) && (!takes_turns || t.ran != NULL) &&
                   (!shares || t.store_free != NULL);
  if (!allocated || allocate(schedule, &made) != BL_OK) {
    status = bl_error_set(err, BL_EXHAUSTED, "out of memory for the timing of %zu operations", count);
    goto free_timing;
  }
  status = bl_schedule_topological_order(schedule, order, err); // also: no cycle
  if (status == BL_OK && takes_turns) {
    run_in_order_of_asking(&t, count);
  }
  for (size_t i = 0; i < count && status == BL_OK && !takes_turns; i++) {
    run_op(&t, order[i]);
  }
  if (status == BL_OK) {
    status = sum_up(schedule, costs, &made);
  }
free_timing:
  free(order);
  free(t.ran);
  free(t.store_free);
  free(users);
  free(t.core_free);
  free(t.clocks);
  free(t.backward_end);
  free(t.forward_end);
  if (status != BL_OK) {
    bl_simulation_cleanup(&made);
    return status;
  }
  *result = made;
  return BL_OK;
}

void bl_simulation_cleanup(bl_simulation_t *result) {
  if (result->spans != NULL) {
    free(result->spans[0]);
  }
  free(result->spans);
  free(result->stalls);
  free(result->peak_slots);
  free(result->busy);
  memset(result, 0, sizeof *result);
}
