// SPDX-License-Identifier: Apache-2.0
#include "schedule/ir/bound.h"

#include "base/minmax.h"

#include <math.h>
#include <stdlib.h>

static double boundary(const bl_schedule_t *schedule, const bl_costs_t *costs, uint32_t a, uint32_t b) {
  return schedule->stage_of[a] != schedule->stage_of[b] ? costs->boundary : 0;
}

// One virtual stage. Times are minima for a micro-batch that never waits.
typedef struct chunk {
  double head;    // before an F can start: the forwards before it
  double tail;    // after a backward: the backwards of the virtual stages before it
  double back;    // before a backward can start: all forwards, and the backwards of the virtual stages after it
  double home;    // from the end of an F to the end of all that its micro-batch still needs
  uint64_t count; // F's
  bool splits;    // some I
  bool recompute; // some R
  // For R's that are inserted later (bl_schedule_bound_recomputed).
  bool recomputed; // gets R's, except where an F stands directly before its backward
  double
      unhidden; // part of R that delays its micro-batch: all of R if the next virtual stage is on the same stage, or 0
  double least; // `extra` of bound.h: the time that the stage computes R or, without an R, is idle
} chunk_t;

typedef struct stage {
  double work, head, finish;
  bool ends_free;  // some W: nothing need follow it
  uint32_t chunks; // counter of mark_recomputed
} stage_t;

typedef struct paths {
  const bl_schedule_t *schedule;
  const bl_costs_t *costs;
  bool early; // a fused B releases the previous virtual stage when its I has ended
  chunk_t *chunks;
  stage_t *stages;
} paths_t;

static void fill_work(paths_t *p) {
  for (uint32_t s = 0; s < p->schedule->stages; s++) {
    const bl_op_list_t *list = &p->schedule->lists[s];
    for (size_t i = 0; i < list->count; i++) {
      const bl_op_t op = list->ops[i];
      chunk_t *chunk = &p->chunks[op.virtual_stage];
      if (bl_op_type_computes((bl_op_type_t)op.type)) {
        p->stages[s].work += bl_costs_slice(p->costs, (bl_op_type_t)op.type, op.virtual_stage, op.slice);
      }
      chunk->count += op.type == BL_OP_F;
      chunk->splits |= op.type == BL_OP_I;
      chunk->recompute |= op.type == BL_OP_R;
      p->stages[s].ends_free |= op.type == BL_OP_W;
    }
  }
}

// The cost of the first slice: the first that a stage runs forward and the last that it runs backward.
static double cost_of(const paths_t *p, bl_op_type_t type, uint32_t s) {
  return bl_costs_slice(p->costs, type, s, 0);
}

// The part of a backward that the previous virtual stage waits for. after_release() is the rest.
static double releases(const paths_t *p, uint32_t s) {
  return cost_of(p, p->chunks[s].splits || p->early ? BL_OP_I : BL_OP_B, s);
}

static double after_release(const paths_t *p, uint32_t s) {
  return p->chunks[s].splits || p->early ? cost_of(p, BL_OP_W, s) : 0;
}

static void fill_forward_paths(paths_t *p) {
  for (uint32_t s = 0; s < p->schedule->virtual_stages; s++) {
    if (!bl_schedule_is_first(p->schedule, s)) {
      const double latency = boundary(p->schedule, p->costs, s - 1, s);
      const double own = p->chunks[s - 1].splits ? 0 : after_release(p, s - 1); // a split W may run later
      p->chunks[s].head = p->chunks[s - 1].head + cost_of(p, BL_OP_F, s - 1) + latency;
      p->chunks[s].tail =
          bl_max_f64(p->chunks[s - 1].tail, own) + p->chunks[s - 1].unhidden + releases(p, s - 1) + latency;
    }
  }
  for (uint32_t s = p->schedule->virtual_stages; p->schedule->forward_only && s-- > 0;) {
    p->chunks[s].tail = bl_schedule_is_last(p->schedule, s) ? 0
                                                            : p->chunks[s + 1].tail + cost_of(p, BL_OP_F, s + 1) +
                                                                  boundary(p->schedule, p->costs, s, s + 1);
  }
}

static void fill_backward_paths(paths_t *p) {
  double rest = 0; // of a micro-batch, from the start of the backward on s
  for (uint32_t s = 0; s < p->schedule->virtual_stages; s++) {
    const bool first = bl_schedule_is_first(p->schedule, s);
    const double before = first ? 0 : boundary(p->schedule, p->costs, s - 1, s) + p->chunks[s - 1].unhidden + rest;
    rest = releases(p, s) + bl_max_f64(before, after_release(p, s));
    p->chunks[s].home = rest; // right for the last virtual stage of a pipe; the loop below sets the rest
  }
  for (uint32_t s = p->schedule->virtual_stages; s-- > 0;) {
    chunk_t *chunk = &p->chunks[s];
    if (bl_schedule_is_last(p->schedule, s)) {
      chunk->back = chunk->head + cost_of(p, BL_OP_F, s);
    } else {
      const double latency = boundary(p->schedule, p->costs, s, s + 1);
      chunk->back = p->chunks[s + 1].back + releases(p, s + 1) + latency + chunk->unhidden;
      chunk->home = p->chunks[s + 1].home + cost_of(p, BL_OP_F, s + 1) + latency;
    }
  }
}

// Marks the chunks that get R's, and those whose R delays its micro-batch, before path times are known. The chunks of a
// stage are counted along the model.
static void mark_recomputed(paths_t *p, uint32_t chunks) {
  const bl_schedule_t *schedule = p->schedule;
  for (uint32_t s = 0; s < schedule->virtual_stages; s++) {
    chunk_t *chunk = &p->chunks[s];
    chunk->recomputed = chunks == 0 || p->stages[schedule->stage_of[s]].chunks++ < chunks;
    const bool beside = !bl_schedule_is_last(schedule, s) && schedule->stage_of[s + 1] == schedule->stage_of[s];
    chunk->unhidden = chunk->recomputed && beside ? cost_of(p, BL_OP_R, s) : 0;
  }
}

// Adds the least time of R's to the stages' work, from the path times.
static void fill_recomputed(paths_t *p) {
  for (uint32_t s = 0; s < p->schedule->virtual_stages; s++) {
    chunk_t *chunk = &p->chunks[s];
    if (chunk->recomputed) {
      const double gap = fmax(0, chunk->back - chunk->head - cost_of(p, BL_OP_F, s));
      chunk->least = chunk->unhidden > 0 ? chunk->unhidden : fmin(cost_of(p, BL_OP_R, s), gap);
      p->stages[p->schedule->stage_of[s]].work += (double)chunk->count * chunk->least;
    }
  }
}

static void fill_stages(paths_t *p) {
  for (uint32_t s = 0; s < p->schedule->stages; s++) {
    p->stages[s].head = p->stages[s].finish = INFINITY;
  }
  for (uint32_t s = 0; s < p->schedule->virtual_stages; s++) {
    stage_t *stage = &p->stages[p->schedule->stage_of[s]];
    const chunk_t *chunk = &p->chunks[s];
    const double own = p->early && !chunk->splits ? cost_of(p, BL_OP_W, s) : 0; // counted as work
    stage->head = fmin(stage->head, chunk->head);
    stage->finish = fmin(stage->finish, stage->ends_free ? 0 : fmax(0, chunk->tail - own));
  }
}

static double bound_of(const paths_t *p) {
  double bound = 0;
  for (uint32_t s = 0; s < p->schedule->stages; s++) {
    if (p->schedule->lists[s].count > 0) {
      bound = fmax(bound, p->stages[s].head + p->stages[s].work + p->stages[s].finish);
    }
  }
  return bound;
}

// The blocks of a stage, of all its chunks.
typedef struct blocks {
  uint64_t count;
  double back, home;     // minima over the chunks; `back` less the `least` of the chunk
  double life;           // sum over all blocks
  double before, behind; // X and Y
} blocks_t;

static double work_before(const paths_t *p, uint32_t s) {
  return cost_of(p, BL_OP_F, s) + (p->chunks[s].recompute ? cost_of(p, BL_OP_R, s) : 0);
}

static double work_behind(const paths_t *p, uint32_t s) {
  return cost_of(p, BL_OP_B, s) + (p->chunks[s].recompute ? cost_of(p, BL_OP_R, s) : p->chunks[s].least);
}

// Returns the maximum work that `room` blocks of the stage can have.
static double most_work(const paths_t *p, uint32_t stage, uint64_t room,
                        double (*work)(const paths_t *p, uint32_t virtual_stage)) {
  double sum = 0, below = INFINITY;
  while (room > 0) {
    double most = -1;
    uint64_t count = 0;
    for (uint32_t s = 0; s < p->schedule->virtual_stages; s++) {
      const double each = work(p, s);
      if (p->schedule->stage_of[s] != stage || p->chunks[s].count == 0 || each >= below) {
        continue;
      }
      count = each > most ? 0 : count;
      most = fmax(most, each);
      count += each == most ? p->chunks[s].count : 0;
    }
    if (count == 0) {
      break;
    }
    count = count < room ? count : room;
    sum += most * (double)count;
    room -= count;
    below = most;
  }
  return sum;
}

static blocks_t blocks_of(const paths_t *p, uint32_t stage, uint64_t limit) {
  blocks_t blocks = {.back = INFINITY, .home = INFINITY};
  for (uint32_t s = 0; s < p->schedule->virtual_stages; s++) {
    const chunk_t *chunk = &p->chunks[s];
    if (p->schedule->stage_of[s] == stage && chunk->count > 0) {
      blocks.count += chunk->count;
      blocks.back = fmin(blocks.back, chunk->back - chunk->least);
      blocks.home = fmin(blocks.home, chunk->home);
      blocks.life += (double)chunk->count * (chunk->back - chunk->head + cost_of(p, BL_OP_B, s));
    }
  }
  const uint64_t room = blocks.count < limit ? blocks.count : limit;
  blocks.before = most_work(p, stage, room, work_before);
  blocks.behind = most_work(p, stage, room, work_behind);
  return blocks;
}

static double stage_within(const paths_t *p, uint32_t stage, uint64_t limit) {
  const stage_t *own = &p->stages[stage];
  const blocks_t blocks = blocks_of(p, stage, limit);
  if (blocks.count == 0) {
    return 0;
  }
  double bound = blocks.back + own->work - blocks.before + own->finish;
  bound = fmax(bound, own->head + own->work - blocks.behind + blocks.home);
  if (blocks.count > limit) {
    bound = fmax(bound, blocks.back + own->work - blocks.before - blocks.behind + blocks.home);
    bound = fmax(bound, own->head + blocks.life / (double)limit + own->finish);
  }
  return bound;
}

static double bound_within(const paths_t *p, const uint32_t *limits) {
  double bound = bound_of(p);
  for (uint32_t s = 0; s < p->schedule->stages; s++) {
    bound = fmax(bound, stage_within(p, s, limits != NULL ? limits[s] : UINT64_MAX));
  }
  return bound;
}

// Which bound is wanted.
typedef struct question {
  bool early, within, recomputed;
  const uint32_t *limits;
  uint32_t chunks; // with recomputed
} question_t;

static bl_status_t find(const bl_schedule_t *schedule, const bl_costs_t *costs, question_t asked, double *bound) {
  paths_t p = {.schedule = schedule, .costs = costs, .early = asked.early && !schedule->forward_only};
  p.chunks = calloc(schedule->virtual_stages, sizeof p.chunks[0]);
  p.stages = calloc(schedule->stages, sizeof p.stages[0]);
  const bool alike = costs->slices == NULL; // the bounds with limits or R assume equal costs for all blocks of a chunk
  const bool recomputed = asked.recomputed && alike && !schedule->forward_only;
  bl_status_t status = p.chunks != NULL && p.stages != NULL ? BL_OK : BL_EXHAUSTED;
  if (status == BL_OK) {
    fill_work(&p);
    if (recomputed) {
      mark_recomputed(&p, asked.chunks);
    }
    fill_forward_paths(&p);
    fill_backward_paths(&p);
    if (recomputed) {
      fill_recomputed(&p);
    }
    fill_stages(&p);
    *bound = asked.within && alike && !schedule->forward_only ? bound_within(&p, asked.limits) : bound_of(&p);
  }
  free(p.stages);
  free(p.chunks);
  return status;
}

bl_status_t bl_schedule_lower_bound(const bl_schedule_t *schedule, const bl_costs_t *costs, double *bound) {
  return find(schedule, costs, (question_t){0}, bound);
}

bl_status_t bl_schedule_early_lower_bound(const bl_schedule_t *schedule, const bl_costs_t *costs, double *bound) {
  return find(schedule, costs, (question_t){.early = true}, bound);
}

bl_status_t bl_schedule_bound_within(const bl_schedule_t *schedule, const bl_costs_t *costs, const uint32_t *limits,
                                     bool early, double *bound) {
  return find(schedule, costs, (question_t){.early = early, .within = true, .limits = limits}, bound);
}

bl_status_t bl_schedule_bound_recomputed(const bl_schedule_t *schedule, const bl_costs_t *costs, const uint32_t *limits,
                                         uint32_t chunks, double *bound) {
  return find(schedule, costs, (question_t){.within = true, .recomputed = true, .limits = limits, .chunks = chunks},
              bound);
}
