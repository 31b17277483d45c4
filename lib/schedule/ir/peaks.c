// SPDX-License-Identifier: Apache-2.0
#include "schedule/ir/peaks.h"

#include "schedule/ir/slot_walk.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void bl_schedule_mark_recomputed(const bl_schedule_t *schedule, uint8_t *recomputed) {
  for (uint32_t s = 0; s < schedule->stages; s++) {
    for (size_t i = 0; i < schedule->lists[s].count; i++) {
      bl_op_t op = schedule->lists[s].ops[i];
      if (op.verb == BL_VERB_R) {
        recomputed[bl_schedule_block(schedule, op)] = 1;
      }
    }
  }
}

static uint32_t peak_of_list(const bl_schedule_t *schedule, const bl_op_list_t *list, const uint8_t *recomputed) {
  bl_slot_walk_t walk = {.schedule = schedule, .recomputed = recomputed};
  uint32_t peak = 0;
  for (size_t i = 0; i < list->count; i++) {
    bl_slot_walk_next(&walk, list->ops[i]);
    peak = walk.during > peak ? walk.during : peak;
  }
  return peak;
}

bl_status_t bl_schedule_peak_slots(const bl_schedule_t *schedule, uint32_t *peak_slots) {
  uint8_t *recomputed = calloc(bl_schedule_block_count(schedule), 1);
  if (recomputed == NULL) {
    return BL_EXHAUSTED;
  }
  bl_schedule_mark_recomputed(schedule, recomputed);
  for (uint32_t s = 0; s < schedule->stages; s++) {
    peak_slots[s] = peak_of_list(schedule, &schedule->lists[s], recomputed);
  }
  free(recomputed);
  return BL_OK;
}

void bl_schedule_peak_blocks(const bl_schedule_t *schedule, uint32_t *peak_blocks) {
  for (uint32_t s = 0; s < schedule->stages; s++) {
    uint32_t held = 0;
    peak_blocks[s] = 0;
    for (size_t i = 0; i < schedule->lists[s].count; i++) {
      bl_verb_t verb = (bl_verb_t)schedule->lists[s].ops[i].verb;
      held += verb == BL_VERB_F;
      peak_blocks[s] = held > peak_blocks[s] ? held : peak_blocks[s];
      held -= bl_verb_ends_block(verb) || (verb == BL_VERB_F && schedule->forward_only);
    }
  }
}

static double boundary(const bl_schedule_t *schedule, const bl_costs_t *costs, uint32_t a, uint32_t b) {
  return schedule->stage_of[a] != schedule->stage_of[b] ? costs->boundary : 0;
}

typedef struct paths {
  double *head;       // [virtual stages] least time before an F can start: the forwards before it
  double *tail;       // [virtual stages] least time after a backward: the backwards of the virtual stages before it
  uint8_t *splits;    // [virtual stages] some I
  uint8_t *ends_free; // [stages] some W: nothing must follow it
  double *work, *start, *finish; // [stages]
  bool early;                    // a fused B releases the virtual stage before it when its I has ended
} paths_t;

static void fill_work(const bl_schedule_t *schedule, const bl_costs_t *costs, paths_t *p) {
  for (uint32_t s = 0; s < schedule->stages; s++) {
    for (size_t i = 0; i < schedule->lists[s].count; i++) {
      bl_op_t op = schedule->lists[s].ops[i];
      if (bl_verb_computes((bl_verb_t)op.verb)) {
        p->work[s] += bl_costs_slice(costs, (bl_verb_t)op.verb, op.virtual_stage, op.slice);
      }
      p->splits[op.virtual_stage] |= op.verb == BL_VERB_I;
      p->ends_free[s] |= op.verb == BL_VERB_W;
    }
  }
}

static void fill_paths(const bl_schedule_t *schedule, const bl_costs_t *costs, paths_t *p) {
  for (uint32_t s = 0; s < schedule->virtual_stages; s++) {
    if (!bl_schedule_is_first(schedule, s)) {
      double latency = boundary(schedule, costs, s - 1, s);
      p->head[s] = p->head[s - 1] + bl_costs_slice(costs, BL_VERB_F, s - 1, 0) + latency;
      bl_verb_t verb = p->splits[s - 1] || p->early ? BL_VERB_I : BL_VERB_B;
      double after = verb == BL_VERB_I && !p->splits[s - 1] ? bl_costs_slice(costs, BL_VERB_W, s - 1, 0) : 0;
      p->tail[s] = fmax(p->tail[s - 1], after) + bl_costs_slice(costs, verb, s - 1, 0) + latency;
    }
  }
  for (uint32_t s = schedule->virtual_stages; schedule->forward_only && s-- > 0;) {
    p->tail[s] = bl_schedule_is_last(schedule, s) ? 0
                                                  : p->tail[s + 1] + bl_costs_slice(costs, BL_VERB_F, s + 1, 0) +
                                                        boundary(schedule, costs, s, s + 1);
  }
}

static double bound_of(const bl_schedule_t *schedule, const bl_costs_t *costs, paths_t *p) {
  fill_work(schedule, costs, p);
  fill_paths(schedule, costs, p);
  for (uint32_t s = 0; s < schedule->stages; s++) {
    p->start[s] = p->finish[s] = INFINITY;
  }
  for (uint32_t s = 0; s < schedule->virtual_stages; s++) {
    uint32_t stage = schedule->stage_of[s];
    p->start[stage] = fmin(p->start[stage], p->head[s]);
    double beside = p->early && !p->splits[s] ? bl_costs_slice(costs, BL_VERB_W, s, 0) : 0; // its own W, which is work
    p->finish[stage] = fmin(p->finish[stage], p->ends_free[stage] ? 0 : fmax(0, p->tail[s] - beside));
  }
  double bound = 0;
  for (uint32_t s = 0; s < schedule->stages; s++) {
    if (schedule->lists[s].count > 0) {
      bound = fmax(bound, p->start[s] + p->work[s] + p->finish[s]);
    }
  }
  return bound;
}

static bl_status_t lower_bound(const bl_schedule_t *schedule, const bl_costs_t *costs, bool early, double *bound) {
  size_t stages = schedule->stages, virtual_stages = schedule->virtual_stages;
  paths_t p = {.early = early && !schedule->forward_only};
  double *numbers = calloc(2 * virtual_stages + 3 * stages, sizeof *numbers);
  uint8_t *flags = calloc(virtual_stages + stages, 1);
  bl_status_t status = BL_EXHAUSTED;
  if (numbers != NULL && flags != NULL) {
    p.head = numbers;
    p.tail = p.head + virtual_stages;
    p.work = p.tail + virtual_stages;
    p.start = p.work + stages;
    p.finish = p.start + stages;
    p.splits = flags;
    p.ends_free = flags + virtual_stages;
    *bound = bound_of(schedule, costs, &p);
    status = BL_OK;
  }
  free(flags);
  free(numbers);
  return status;
}

bl_status_t bl_schedule_lower_bound(const bl_schedule_t *schedule, const bl_costs_t *costs, double *bound) {
  return lower_bound(schedule, costs, false, bound);
}

bl_status_t bl_schedule_early_lower_bound(const bl_schedule_t *schedule, const bl_costs_t *costs, double *bound) {
  return lower_bound(schedule, costs, true, bound);
}
