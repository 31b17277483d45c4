// SPDX-License-Identifier: Apache-2.0
// Each stage warms up with as many forwards as memory and the arrival of the first backward allow. Then it runs one F
// and one I per micro-batch. A W runs when the stage would wait or its memory is full. A gap too short for a W stays
// idle only while another stage has lost more time already.
#include "schedule/generate/zero_bubble_heuristic.h"

#include "schedule/generate/generators.h"

#include <math.h>
#include <stdlib.h>

typedef struct stage {
  uint32_t forwards, backwards, weights;
  uint32_t warm_up;    // forwards beyond the first, before the first I
  double free_at, gap; // gap: time waited since the first F
} stage_t;

typedef struct heuristic {
  const bl_costs_t *costs;
  const uint32_t *limits;
  bl__heuristic_switches_t switches;
  bl_schedule_t *base;
  uint32_t p, m;
  stage_t *stages;
  double *forward_end, *backward_end; // [p * m]
  double largest_gap;
  bl_status_t status;
} heuristic_t;

static double cost_of(const heuristic_t *h, bl_op_type_t type, uint32_t s) {
  return bl_costs_op(h->costs, type, s);
}

// Returns when the input of the next operation of `type` has arrived.
static double arrival(const heuristic_t *h, bl_op_type_t type, uint32_t s) {
  const stage_t *stage = &h->stages[s];
  if (type == BL_OP_F && s > 0) {
    return h->forward_end[(size_t)(s - 1) * h->m + stage->forwards] + h->costs->boundary;
  }
  if (type == BL_OP_I && s + 1 < h->p) {
    return h->backward_end[(size_t)(s + 1) * h->m + stage->backwards] + h->costs->boundary;
  }
  return 0;
}

static void put(heuristic_t *h, bl_op_type_t type, uint32_t s) {
  stage_t *stage = &h->stages[s];
  double start = fmax(stage->free_at, arrival(h, type, s)), end = start + cost_of(h, type, s);
  if (stage->forwards > 0) {
    stage->gap += start - stage->free_at;
    h->largest_gap = fmax(h->largest_gap, stage->gap);
  }
  stage->free_at = end;
  uint32_t micro_batch = 0;
  if (type == BL_OP_F) {
    micro_batch = stage->forwards++;
    h->forward_end[(size_t)s * h->m + micro_batch] = end;
  } else if (type == BL_OP_I) {
    micro_batch = stage->backwards++;
    h->backward_end[(size_t)s * h->m + micro_batch] = end;
  } else {
    micro_batch = stage->weights++;
  }
  if (h->status == BL_OK) {
    h->status = bl__schedule_emit(h->base, type, s, micro_batch);
  }
}

static uint32_t held(const stage_t *stage) {
  return stage->forwards - stage->weights;
}

// Runs W's while the next operation of `type` cannot start yet.
static void fill(heuristic_t *h, bl_op_type_t type, uint32_t s) {
  stage_t *stage = &h->stages[s];
  double ready = arrival(h, type, s);
  while (stage->weights < stage->backwards && stage->free_at + cost_of(h, BL_OP_W, s) <= ready) {
    put(h, BL_OP_W, s);
  }
  if (stage->weights < stage->backwards && stage->free_at < ready) {
    bool affordable = ready - stage->free_at <= h->largest_gap - stage->gap;
    if (!affordable || h->switches.fill_gaps) {
      put(h, BL_OP_W, s);
    }
  }
}

static void warm_up(heuristic_t *h) {
  for (uint32_t s = 0; s < h->p; s++) {
    put(h, BL_OP_F, s);
  }
  double first_end = h->stages[h->p - 1].free_at + cost_of(h, BL_OP_I, h->p - 1); // of the first I below
  for (uint32_t s = h->p - 1; s-- > 0;) {
    stage_t *stage = &h->stages[s];
    double now = stage->free_at, cost = cost_of(h, BL_OP_F, s), arrives = first_end + h->costs->boundary;
    while (1 + stage->warm_up < h->m && 2 + stage->warm_up <= h->limits[s] &&
           (h->switches.wait_for_first ? now + cost <= arrives : now < arrives)) {
      now += cost;
      stage->warm_up++;
    }
    first_end = fmax(now, arrives) + cost_of(h, BL_OP_I, s);
  }
  for (uint32_t s = 1; s < h->p; s++) { // each stage warms up with at least one F more than the next
    stage_t *stage = &h->stages[s];
    while (stage->warm_up > 0 && stage->warm_up >= h->stages[s - 1].warm_up && 1 + stage->warm_up < h->m) {
      stage->warm_up--;
    }
  }
  for (uint32_t s = 0; s < h->p; s++) {
    for (uint32_t n = 0; n < h->stages[s].warm_up; n++) {
      put(h, BL_OP_F, s);
    }
  }
  for (uint32_t s = h->p; s-- > 0;) {
    put(h, BL_OP_I, s);
  }
}

// Returns whether stage s should run an F in this round.
static bool wants_forward(const heuristic_t *h, uint32_t s) {
  const stage_t *stage = &h->stages[s], *next = stage + 1;
  if (stage->forwards >= h->m) {
    return false;
  }
  if (s + 1 == h->p || !h->switches.prefer_backward || stage->forwards < next->forwards + 2) {
    return true;
  }
  double next_end = next->free_at + cost_of(h, BL_OP_F, s + 1) + cost_of(h, BL_OP_I, s + 1) + h->costs->boundary;
  if (stage->free_at >= next_end) {
    return false;
  }
  uint32_t needed = held(stage) + 1 > h->limits[s] ? held(stage) + 1 - h->limits[s] : 0;
  double end = stage->free_at + cost_of(h, BL_OP_F, s) + needed * cost_of(h, BL_OP_W, s);
  return end <= next_end || next_end - stage->free_at > h->largest_gap - stage->gap;
}

static void round_of(heuristic_t *h, uint8_t *wants) {
  for (uint32_t s = h->p; s-- > 0;) {
    wants[s] = wants_forward(h, s) && (s + 1 == h->p || wants[s + 1]);
  }
  for (uint32_t s = 0; s < h->p; s++) {
    stage_t *stage = &h->stages[s];
    while (wants[s] && held(stage) >= h->limits[s] && stage->weights < stage->backwards) {
      put(h, BL_OP_W, s);
    }
    if (wants[s] && held(stage) < h->limits[s]) {
      fill(h, BL_OP_F, s);
      put(h, BL_OP_F, s);
    }
  }
  for (uint32_t s = h->p; s-- > 0;) {
    stage_t *stage = &h->stages[s];
    fill(h, BL_OP_I, s);
    while (s == 0 && stage->forwards == h->m && stage->weights < stage->backwards) {
      put(h, BL_OP_W, s);
    }
    put(h, BL_OP_I, s);
  }
}

bl_status_t bl__zero_bubble_heuristic(const bl_costs_t *costs, const uint32_t *limits,
                                      bl__heuristic_switches_t switches, bl_schedule_t *base) {
  size_t p = base->stages, m = base->micro_batches;
  heuristic_t h = {.costs = costs,
                   .limits = limits,
                   .switches = switches,
                   .base = base,
                   .p = base->stages,
                   .m = base->micro_batches,
                   .stages = calloc(p, sizeof(stage_t)),
                   .forward_end = calloc(2 * p * m, sizeof(double))};
  uint8_t *wants = calloc(p, 1);
  h.status = h.stages != NULL && h.forward_end != NULL && wants != NULL ? BL_OK : BL_EXHAUSTED;
  if (h.status == BL_OK) {
    h.backward_end = h.forward_end + p * m;
    for (uint32_t s = 0; s < p; s++) {
      base->lists[s].count = 0;
    }
    warm_up(&h);
    for (uint32_t i = 1; i < m; i++) {
      round_of(&h, wants);
    }
    for (uint32_t s = 0; s < p; s++) {
      while (h.stages[s].weights < m) {
        put(&h, BL_OP_W, s);
      }
    }
  }
  free(wants);
  free(h.forward_end);
  free(h.stages);
  return h.status;
}
