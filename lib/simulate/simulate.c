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
} stage_clock_t;

typedef struct timing {
  const bl_schedule_t *schedule;
  const bl_costs_t *costs;
  double *forward_end;   // [blocks]
  double *backward_end;  // [blocks]; before the backward: end of the block's load
  stage_clock_t *clocks; // [stages]
  bl_simulation_t *result;
} timing_t;

static double *end_of(timing_t *t, bl_op_t op) {
  size_t block = bl_schedule_block(t->schedule, op);
  return op.verb == BL_VERB_F ? &t->forward_end[block] : &t->backward_end[block];
}

// E and L start when the operation before them has ended and the path is free.
static void run_transfer(timing_t *t, bl_op_ref_t at, bl_op_t op) {
  stage_clock_t *clock = &t->clocks[at.stage];
  double start = fmax(fmax(clock->free_at, clock->path_free), op.verb == BL_VERB_L ? clock->gate : 0);
  double end = start + t->costs->path;
  clock->path_free = end;
  t->result->spans[at.stage][at.index] = (bl_span_t){start, end};
  if (op.verb == BL_VERB_L) {
    t->backward_end[bl_schedule_block(t->schedule, op)] = end;
  } else if (t->schedule->transfers == BL_TRANSFER_OVERLAP) {
    clock->next_gate = fmax(clock->next_gate, end);
  } else {
    clock->gate = fmax(clock->gate, end);
  }
}

static void run_compute(timing_t *t, bl_op_ref_t at, bl_op_t op) {
  stage_clock_t *clock = &t->clocks[at.stage];
  bl_simulation_t *r = t->result;
  bl_op_t needed;
  double start = clock->free_at;
  if (op.verb == BL_VERB_F || op.verb == BL_VERB_R) {
    start = fmax(start, clock->gate);
  }
  if (bl__op_dependency(t->schedule, op, &needed)) {
    double latency = t->schedule->stage_of[needed.virtual_stage] != at.stage ? t->costs->boundary : 0;
    start = fmax(start, *end_of(t, needed) + latency);
  }
  if (bl_verb_starts_backward((bl_verb_t)op.verb)) {
    start = fmax(start, *end_of(t, op)); // its load
  }
  double cost = bl_costs_op(t->costs, (bl_verb_t)op.verb, op.virtual_stage), end = start + cost;
  if (op.verb == BL_VERB_F || bl_verb_starts_backward((bl_verb_t)op.verb)) {
    *end_of(t, op) = end;
  }
  clock->gate = fmax(clock->gate, clock->next_gate);
  if (!clock->started) {
    clock->started = true;
    r->start[at.stage] = start;
  }
  r->spans[at.stage][at.index] = (bl_span_t){start, end};
  r->end[at.stage] = clock->free_at = end;
  r->busy[at.stage] += cost;
}

static bl_status_t allocate(const bl_schedule_t *schedule, bl_simulation_t *r) {
  size_t stages = schedule->stages;
  r->stages = schedule->stages;
  r->busy = calloc(4 * stages, sizeof r->busy[0]);
  r->peak_slots = calloc(stages, sizeof r->peak_slots[0]);
  r->spans = calloc(stages, sizeof r->spans[0]);
  bl_span_t *spans = calloc(bl_schedule_op_count(schedule) + 1, sizeof *spans);
  if (r->busy == NULL || r->peak_slots == NULL || r->spans == NULL || spans == NULL) {
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
  }
  return status == BL_OK ? bl_schedule_lower_bound(schedule, costs, &r->lower_bound) : status;
}

bl_status_t bl_simulate(const bl_schedule_t *schedule, const bl_costs_t *costs, bl_simulation_t *result,
                        bl_error_t *err) {
  bl_status_t status = bl_costs_check(costs, schedule->virtual_stages, err);
  if (status != BL_OK) {
    return status;
  }
  bl_simulation_t made = {0};
  size_t blocks = bl_schedule_block_count(schedule), count = bl_schedule_op_count(schedule);
  timing_t t = {.schedule = schedule, .costs = costs, .result = &made};
  t.forward_end = calloc(blocks, sizeof(double));
  t.backward_end = calloc(blocks, sizeof(double));
  t.clocks = calloc(schedule->stages, sizeof t.clocks[0]);
  bl_op_ref_t *order = malloc((count + 1) * sizeof *order);
  bool allocated = t.forward_end != NULL && t.backward_end != NULL && t.clocks != NULL && order != NULL;
  if (!allocated || allocate(schedule, &made) != BL_OK) {
    status = bl_error_set(err, BL_EXHAUSTED, "out of memory for the timing of %zu operations", count);
    goto free_timing;
  }
  status = bl_schedule_topological_order(schedule, order, err);
  for (size_t i = 0; i < count && status == BL_OK; i++) {
    bl_op_t op = schedule->lists[order[i].stage].ops[order[i].index];
    if (bl_verb_computes((bl_verb_t)op.verb)) {
      run_compute(&t, order[i], op);
    } else {
      run_transfer(&t, order[i], op);
    }
  }
  if (status == BL_OK) {
    status = sum_up(schedule, costs, &made);
  }
free_timing:
  free(order);
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
  free(result->peak_slots);
  free(result->busy);
  memset(result, 0, sizeof *result);
}
