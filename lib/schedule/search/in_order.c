// SPDX-License-Identifier: Apache-2.0
// Timing of an order without changing it.
#include "base/minmax.h"
#include "schedule/search/dispatch.h"
#include "schedule/search/op_classes.h"

#include <math.h>
#include <stdlib.h>

typedef struct walk {
  const bl_schedule_t *schedule;
  bl__op_class_t *classes;
  double *ends, *starts;   // by index of end (op_classes.h); starts: only with recomputation, otherwise NULL
  double *now, *work_left; // [stages]
  uint32_t *next;          // [stages]
  uint32_t *waits;         // [stages] index of the end that the stage waits for, or BL__END_ZERO
  uint32_t *stack;         // [stages] stages to run
  uint32_t stack_count;
  double t_end;
} walk_t;

// Returns when the operation may start, including its R. The R starts no earlier than the operation that produces the
// gradient for the backward after it.
static double ready_at(const walk_t *w, bl_op_t op, const bl__op_class_t *op_class, bl_op_t last, double *recompute) {
  uint32_t needed = bl__end_needed(w->schedule, op_class, op);
  double ready = bl_max_f64(w->ends[needed] + op_class->latency, w->ends[bl__end_own(w->schedule, op)]);
  bool fresh = last.type == BL_OP_F && bl_schedule_block(w->schedule, last) == bl_schedule_block(w->schedule, op);
  *recompute = fresh ? 0 : op_class->recompute;
  return *recompute > 0 && needed != BL__END_ZERO ? bl_max_f64(ready - *recompute, w->starts[needed])
                                                  : ready - *recompute;
}

// Runs a stage until it waits. False if it would end after `latest`.
static bool run(walk_t *w, uint32_t stage, double latest) {
  const bl_op_list_t *list = &w->schedule->lists[stage];
  bl_op_t last = {.type = BL_OP_W};
  if (w->next[stage] > 0) {
    last = list->ops[w->next[stage] - 1];
  }
  w->waits[stage] = BL__END_ZERO;
  for (; w->next[stage] < list->count; w->next[stage]++) {
    bl_op_t op = list->ops[w->next[stage]];
    const bl__op_class_t *op_class = bl__op_class_of(w->classes, op);
    double recompute, ready = ready_at(w, op, op_class, last, &recompute);
    if (isinf(ready)) {
      w->waits[stage] = bl__end_needed(w->schedule, op_class, op);
      return true;
    }
    uint32_t end = bl__end_of(w->schedule, op);
    double start = bl_max_f64(w->now[stage], ready);
    w->now[stage] = start + recompute + op_class->cost;
    w->work_left[stage] -= op_class->cost;
    if (w->now[stage] + w->work_left[stage] > latest) {
      return false;
    }
    if (w->starts != NULL) {
      w->starts[end] = start;
    }
    w->ends[end] = w->now[stage];
    w->t_end = bl_max_f64(w->t_end, w->now[stage]);
    last = op;
    uint32_t waiting = op_class->feeds != BL__NO_OP_CLASS ? w->schedule->stage_of[op_class->feeds] : stage;
    if (waiting != stage && w->waits[waiting] == end) {
      w->waits[waiting] = BL__END_ZERO;
      w->stack[w->stack_count++] = waiting;
    }
  }
  return true;
}

static bl_status_t run_all(walk_t *w, double latest) {
  const bl_schedule_t *schedule = w->schedule;
  for (uint32_t s = schedule->stages; s-- > 0;) {
    for (size_t i = 0; i < schedule->lists[s].count; i++) {
      w->work_left[s] += bl__op_class_of(w->classes, schedule->lists[s].ops[i])->cost;
    }
    w->stack[w->stack_count++] = s;
  }
  while (w->stack_count > 0) {
    if (!run(w, w->stack[--w->stack_count], latest)) {
      return BL_NOT_FOUND;
    }
  }
  for (uint32_t s = 0; s < schedule->stages; s++) {
    if (w->next[s] < schedule->lists[s].count) {
      return BL_INTERNAL;
    }
  }
  return BL_OK;
}

bl_status_t bl__dispatch_in_order(const bl_schedule_t *schedule, const bl_costs_t *costs,
                                  bl__recompute_options_t recompute, double latest, double *t_end) {
  walk_t w = {.schedule = schedule};
  w.ends = bl__ends_create(schedule);
  w.starts = recompute.on ? bl__ends_create(schedule) : NULL;
  w.now = calloc(2 * (size_t)schedule->stages, sizeof w.now[0]);
  w.next = calloc(3 * (size_t)schedule->stages, sizeof w.next[0]);
  bool allocated = w.ends != NULL && (w.starts != NULL || !recompute.on) && w.now != NULL && w.next != NULL;
  bl_status_t status = allocated ? bl__op_classes_create(schedule, costs, recompute, &w.classes) : BL_EXHAUSTED;
  if (status == BL_OK) {
    w.work_left = w.now + schedule->stages;
    w.waits = w.next + schedule->stages;
    w.stack = w.waits + schedule->stages;
    status = run_all(&w, latest);
  }
  if (status == BL_OK) {
    *t_end = w.t_end;
  }
  free(w.classes);
  free(w.next);
  free(w.now);
  free(w.starts);
  free(w.ends);
  return status;
}

bl_status_t bl__dispatch_end(const bl_schedule_t *schedule, const bl_costs_t *costs, bl__recompute_options_t recompute,
                             double *t_end) {
  return bl__dispatch_in_order(schedule, costs, recompute, INFINITY, t_end);
}
