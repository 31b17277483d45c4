// SPDX-License-Identifier: Apache-2.0
// Stages warm up along the V until each has run the first forward of its second chunk. Then every stage runs one I and
// one F per round. A W runs when the stage would wait or its memory is full. It also runs in a gap that is too short
// for it, unless the stage has lost less time than others. The sweep is repeated, with the time that each stage lost,
// while that helps.
#include "schedule/generate/zero_bubble_v.h"

#include "schedule/generate/generators.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NOT_DONE (-1.0)

typedef struct pending {
  uint32_t chunk, micro_batch;
} pending_t;

typedef struct stage {
  uint32_t forwards[2], backwards[2]; // by chunk of the stage
  pending_t *pending;                 // [2 m] I's in order; W's follow in the same order
  uint32_t pending_count, weights;
  double free_at, gap;
  double allowed; // gap in the previous sweep: a stage that lost less then may lose more now
} stage_t;

typedef struct sweep {
  const bl_costs_t *costs;
  const uint32_t *limits;
  bl_schedule_t *base;
  uint32_t p, m;
  bool fill_forward, fill_backward;
  stage_t *stages;
  double *ends[2]; // [F, I][virtual stages * m]
  double largest_gap, largest_allowed;
  bl_status_t status;
} sweep_t;

static uint32_t virtual_of(const sweep_t *p, uint32_t s, uint32_t chunk) {
  return chunk == 0 ? s : 2 * p->p - 1 - s;
}

static double *end_of(sweep_t *p, bl_op_type_t type, uint32_t virtual_stage, uint32_t micro_batch) {
  return &p->ends[type != BL_OP_F][(size_t)virtual_stage * p->m + micro_batch];
}

static uint32_t count_of(const sweep_t *p, bl_op_type_t type, uint32_t s, uint32_t chunk) {
  return type == BL_OP_F ? p->stages[s].forwards[chunk] : p->stages[s].backwards[chunk];
}

// Returns when the input of the stage's next operation of `type` on `chunk` arrives, latency included; NOT_DONE if the
// operation that it depends on has not run; 0 if there is none.
static double arrival(sweep_t *p, bl_op_type_t type, uint32_t s, uint32_t chunk) {
  uint32_t at = virtual_of(p, s, chunk), i = count_of(p, type, s, chunk);
  if (type == BL_OP_F ? at == 0 : at + 1 == 2 * p->p) {
    return type == BL_OP_F ? 0 : *end_of(p, BL_OP_F, at, i);
  }
  uint32_t other = type == BL_OP_F ? at - 1 : at + 1;
  double end = *end_of(p, type, other, i);
  bool crosses = p->base->stage_of[other] != p->base->stage_of[at];
  return end == NOT_DONE ? NOT_DONE : end + (crosses ? p->costs->boundary : 0);
}

static void emit(sweep_t *p, bl_op_type_t type, uint32_t s, uint32_t chunk, uint32_t micro_batch, double ready) {
  stage_t *stage = &p->stages[s];
  uint32_t at = virtual_of(p, s, chunk);
  double start = fmax(stage->free_at, ready);
  if (stage->forwards[0] > 0) {
    stage->gap += start - stage->free_at;
    p->largest_gap = fmax(p->largest_gap, stage->gap);
  }
  stage->free_at = start + bl_costs_op(p->costs, type, at);
  if (p->status == BL_OK) {
    p->status = bl__schedule_emit(p->base, type, at, micro_batch);
  }
}

static bool has_pending(const stage_t *stage) {
  return stage->weights < stage->pending_count;
}

static void put_weight(sweep_t *p, uint32_t s) {
  stage_t *stage = &p->stages[s];
  pending_t next = stage->pending[stage->weights++];
  emit(p, BL_OP_W, s, next.chunk, next.micro_batch, 0);
}

static uint32_t held(const stage_t *stage) {
  return stage->forwards[0] + stage->forwards[1] - stage->weights;
}

// Runs the next operation of `type` of the chunk; sets the status to BL_NOT_FOUND (stuck) if it cannot run.
static void put(sweep_t *p, bl_op_type_t type, uint32_t s, uint32_t chunk) {
  stage_t *stage = &p->stages[s];
  uint32_t micro_batch = count_of(p, type, s, chunk);
  double ready = micro_batch < p->m ? arrival(p, type, s, chunk) : NOT_DONE;
  bool full = type == BL_OP_F && held(stage) >= p->limits[s];
  if (p->status != BL_OK || ready == NOT_DONE || full) {
    p->status = p->status == BL_OK ? BL_NOT_FOUND : p->status;
    return;
  }
  emit(p, type, s, chunk, micro_batch, ready);
  *end_of(p, type, virtual_of(p, s, chunk), micro_batch) = stage->free_at;
  if (type == BL_OP_F) {
    stage->forwards[chunk]++;
  } else {
    stage->backwards[chunk]++;
    stage->pending[stage->pending_count++] = (pending_t){chunk, micro_batch};
  }
}

// Runs W's until the next operation of `type` can start.
static void fill(sweep_t *p, bl_op_type_t type, uint32_t s, uint32_t chunk, bool shorter) {
  stage_t *stage = &p->stages[s];
  double ready = arrival(p, type, s, chunk);
  while (has_pending(stage) &&
         ready >=
             stage->free_at + bl_costs_op(p->costs, BL_OP_W, virtual_of(p, s, stage->pending[stage->weights].chunk))) {
    put_weight(p, s);
  }
  double most = fmax(p->largest_gap, p->largest_allowed - stage->allowed);
  if (shorter && has_pending(stage) && ready - stage->free_at > most - stage->gap) {
    put_weight(p, s);
  }
}

static void warm_up(sweep_t *p) {
  for (uint32_t s = 0; s < p->p; s++) {
    put(p, BL_OP_F, s, 0);
  }
  for (uint32_t s = p->p; s-- > 0 && p->status == BL_OK;) {
    stage_t *stage = &p->stages[s];
    while (p->status == BL_OK && s + 1 < p->p && held(stage) + 2 + 2 * s <= p->limits[s] && stage->forwards[0] < p->m &&
           stage->free_at + bl_costs_op(p->costs, BL_OP_F, s) <= arrival(p, BL_OP_F, s, 1)) {
      for (uint32_t before = 0; before <= s; before++) {
        put(p, BL_OP_F, before, 0);
      }
    }
    put(p, BL_OP_F, s, 1);
  }
  uint32_t chunk = 0;
  for (uint32_t s = 1; s < p->p; s++) { // later stages catch up with those before them
    const uint32_t *mine = p->stages[s].forwards, *before = p->stages[s - 1].forwards;
    while (p->status == BL_OK &&
           (mine[0] + mine[1] < before[0] + before[1] || (mine[1] <= before[1] && before[1] < p->m))) {
      bool all_done = mine[0] + mine[1] == 2 * p->m;
      for (uint32_t later = p->p; later-- > s;) {
        if (p->stages[later].forwards[chunk] < p->m) {
          put(p, BL_OP_F, later, chunk);
        }
      }
      chunk = 1 - chunk;
      if (all_done) {
        break;
      }
    }
  }
}

// Returns the chunk whose I the stage runs in this round: the second, until an I of the first can run.
static uint32_t backward_chunk(sweep_t *p, uint32_t s) {
  const uint32_t *done = p->stages[s].backwards;
  if (done[0] >= done[1]) {
    return 1;
  }
  return s + 1 == p->p || done[1] >= p->m || arrival(p, BL_OP_I, s, 0) != NOT_DONE ? 0 : 1;
}

static void put_backward(sweep_t *p, uint32_t s, uint32_t chunk) {
  fill(p, BL_OP_I, s, chunk, chunk == 0 || p->fill_backward);
  put(p, BL_OP_I, s, chunk);
}

static void put_forward(sweep_t *p, uint32_t s) {
  stage_t *stage = &p->stages[s];
  if (stage->forwards[1] >= p->m) {
    return;
  }
  uint32_t chunk;
  if (stage->forwards[1] < stage->forwards[0] && arrival(p, BL_OP_F, s, 1) != NOT_DONE) {
    chunk = 1;
  } else if (stage->forwards[0] < p->m && arrival(p, BL_OP_F, s, 0) != NOT_DONE) {
    chunk = 0;
  } else {
    return;
  }
  while (held(stage) >= p->limits[s] && has_pending(stage)) {
    put_weight(p, s);
  }
  fill(p, BL_OP_F, s, chunk, p->fill_forward);
  put(p, BL_OP_F, s, chunk);
}

static void run(sweep_t *p, uint8_t *chunks) {
  p->largest_gap = 0;
  for (size_t i = 0; i < 2 * (size_t)p->p * p->m; i++) {
    p->ends[0][i] = p->ends[1][i] = NOT_DONE;
  }
  for (uint32_t s = 0; s < p->p; s++) {
    stage_t *stage = &p->stages[s];
    *stage = (stage_t){.pending = stage->pending, .allowed = stage->allowed};
    p->base->lists[s].count = 0;
  }
  warm_up(p);
  for (uint32_t round = 0; round < 2 * p->m && p->status == BL_OK; round++) {
    for (uint32_t s = 0; s < p->p; s++) {
      chunks[s] = (uint8_t)backward_chunk(p, s);
    }
    for (uint32_t s = p->p; s-- > 0;) {
      if (chunks[s] == 0) {
        put_backward(p, s, 0);
      }
    }
    for (uint32_t s = 0; s < p->p; s++) {
      if (chunks[s] == 1) {
        put_backward(p, s, 1);
      }
    }
    for (uint32_t s = 0; s < p->p && p->status == BL_OK; s++) {
      put_forward(p, s);
    }
  }
  for (uint32_t s = 0; s < p->p; s++) {
    while (has_pending(&p->stages[s])) {
      put_weight(p, s);
    }
  }
}

bl_status_t bl__zero_bubble_v(const bl_costs_t *costs, const uint32_t *limits, bool fill_forward, bool fill_backward,
                              bl_schedule_t *base) {
  size_t stages = base->stages, m = base->micro_batches;
  sweep_t p = {.costs = costs,
               .limits = limits,
               .base = base,
               .p = base->stages,
               .m = base->micro_batches,
               .fill_forward = fill_forward,
               .fill_backward = fill_backward};
  p.stages = calloc(stages, sizeof p.stages[0]);
  p.ends[0] = malloc(4 * stages * m * sizeof p.ends[0][0]);
  pending_t *pending = malloc(2 * stages * m * sizeof *pending);
  uint8_t *chunks = calloc(stages, 1);
  p.status = p.stages != NULL && p.ends[0] != NULL && pending != NULL && chunks != NULL ? BL_OK : BL_EXHAUSTED;
  if (p.status == BL_OK) {
    p.ends[1] = p.ends[0] + 2 * stages * m;
    for (size_t s = 0; s < stages; s++) {
      p.stages[s].pending = pending + 2 * m * s;
    }
    double before = INFINITY;
    for (int sweep = 0; sweep < 4 && p.status == BL_OK; sweep++) {
      run(&p, chunks);
      if (p.largest_gap >= before) {
        break;
      }
      before = p.largest_allowed = p.largest_gap;
      for (size_t s = 0; s < stages; s++) {
        p.stages[s].allowed = p.stages[s].gap;
      }
    }
  }
  free(chunks);
  free(pending);
  free(p.ends[0]);
  free(p.stages);
  return p.status;
}
