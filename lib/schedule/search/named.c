// SPDX-License-Identifier: Apache-2.0
#include "schedule/search/named.h"

#include "schedule/ir/peaks.h"
#include "schedule/search/cut.h"
#include "schedule/search/drain.h"
#include "schedule/search/portfolio.h"
#include "schedule/search/request_limits.h"
#include "schedule/search/searched.h"

#include <stdlib.h>
#include <string.h>

#define SAME 1e-9 // share by which ends are the same

typedef struct name {
  bl__generator_t *generate;
  bl_placement_t placement;
  uint32_t chunks;
  bool fused;
  uint32_t (*memory)(uint32_t stages); // its default limit; NULL: no limit
} name_t;

static uint32_t all(uint32_t p) {
  return p;
}

static uint32_t twice(uint32_t p) {
  return 2 * p;
}

static const name_t names[] = {
    {bl__generate_1f1b, BL_PLACEMENT_LOOPED, 1, true, NULL},
    {bl__generate_eager_1f1b, BL_PLACEMENT_LOOPED, 1, true, NULL},
    {bl__generate_gpipe, BL_PLACEMENT_LOOPED, 1, true, NULL},
    {bl__generate_interleaved, BL_PLACEMENT_LOOPED, 2, true, NULL},
    {bl__generate_dualpipe_v, BL_PLACEMENT_V, 2, false, NULL},
    {bl__generate_v_half, BL_PLACEMENT_V, 2, false, bl__v_half_memory},
    {bl__generate_v_min, BL_PLACEMENT_V, 2, false, bl__v_min_memory},
    {bl__generate_zb_v, BL_PLACEMENT_V, 2, false, all},
    {bl__generate_1f1b_v, BL_PLACEMENT_V, 2, true, NULL},
    {bl__generate_zero_bubble, BL_PLACEMENT_LOOPED, 1, false, all},
    {bl__generate_zero_bubble, BL_PLACEMENT_LOOPED, 1, false, twice},
    {bl__generate_grouped_interleaved, BL_PLACEMENT_LOOPED, 2, false, NULL},
};

typedef struct taking {
  const bl_schedule_request_t *request;
  const uint32_t *limits;
  bool looped;       // grouped-interleaved was searched within the limits
  uint32_t *scratch; // [stages]
  bl_schedule_t *best;
  double *t_end;
} taking_t;

// Creates an empty schedule with the placement that the order of a name has in two chunks a stage.
static bl_status_t create_like(const taking_t *t, const name_t *name, bl_schedule_t **made) {
  const bl_placement_t placement = name->chunks == 1 ? BL_PLACEMENT_CONTIGUOUS : name->placement;
  const bl_schedule_t *best = t->best;
  return bl_schedule_create(best->name, placement, best->stages, best->chunks, best->micro_batches, made, NULL);
}

// Sets *bound so that no order of a name ends before it within the limits, with the name's own kind of backward.
// `shape` is scratch and empty afterwards.
static bl_status_t bound_of(const taking_t *t, const name_t *name, bl_schedule_t *shape, double *bound) {
  static const bl_op_type_t types[2][3] = {{BL_OP_F, BL_OP_I, BL_OP_W}, {BL_OP_F, BL_OP_B}};
  const uint32_t count = name->fused ? 2 : 3;
  bl_status_t status = BL_OK;
  for (uint32_t s = 0; s < shape->virtual_stages; s++) {
    for (uint32_t i = 0; i < count * shape->micro_batches && status == BL_OK; i++) {
      status = bl__schedule_emit(shape, types[name->fused][i % count], s, i / count);
    }
  }
  for (uint32_t s = 0; s < shape->stages; s++) {
    const uint32_t own = name->memory != NULL ? name->memory(shape->stages) * shape->chunks : UINT32_MAX;
    t->scratch[s] = own < t->limits[s] ? own : t->limits[s];
  }
  if (status == BL_OK) {
    status = bl__bound_within(shape, t->request->costs, t->scratch, bl__recompute_options_of(t->request, shape), bound);
  }
  for (uint32_t s = 0; s < shape->stages; s++) {
    shape->lists[s].count = 0;
  }
  return status;
}

// Fills `made` with the order of a name. BL_INVALID, BL_NOT_FOUND: there is none for this request.
static bl_status_t make(const taking_t *t, const name_t *name, bl_schedule_t *made) {
  bl_schedule_request_t wanted = *t->request;
  bl_schedule_t *own;
  bl_chunk_costs_t *whole = bl__cut_costs(t->request->costs, made->stages, made->chunks / name->chunks);
  bl_costs_t costs = *t->request->costs;
  if (whole == NULL) {
    return BL_EXHAUSTED;
  }
  costs.chunks = name->chunks < made->chunks ? whole : costs.chunks;
  wanted.costs = &costs;
  wanted.chunks = name->chunks;
  wanted.group = 0;
  wanted.memory = name->memory != NULL ? name->memory(made->stages) : 0;
  wanted.memory_of_stage = NULL;
  wanted.pooled = wanted.hosted = false;
  bl_status_t status = bl__generate_with(name->generate, name->placement, &wanted, &own, NULL);
  if (status == BL_OK) {
    status = bl__cut_order(own, made);
    bl_schedule_destroy(own);
  }
  free(whole);
  return status;
}

static bl_status_t stays_within(const taking_t *t, const bl_schedule_t *made, bool *within) {
  const bl__recompute_options_t recompute = bl__recompute_options_of(t->request, made);
  bl_status_t status = bl_schedule_peak_slots(made, t->scratch);
  *within = status == BL_OK && (recompute.slots == 0 || bl__filled_most(made, recompute) <= recompute.slots);
  for (uint32_t s = 0; s < made->stages && *within; s++) {
    *within = t->scratch[s] <= t->limits[s];
  }
  return status;
}

static bl_status_t take(const taking_t *t, const name_t *name) {
  bl_schedule_t *made, kept = *t->best;
  double bound, end;
  bool within;
  bl_status_t status = create_like(t, name, &made);
  if (status != BL_OK) {
    return status;
  }
  status = bound_of(t, name, made, &bound);
  const bool may = status == BL_OK && bound < *t->t_end * (1 - SAME);
  status = may ? make(t, name, made) : status;
  if (status == BL_OK && may) {
    status = stays_within(t, made, &within);
  }
  if (status == BL_OK && may && within) {
    status = bl__dispatch_end(made, t->request->costs, bl__recompute_options_of(t->request, made), &end);
    if (status == BL_OK && end < *t->t_end * (1 - SAME)) {
      *t->t_end = end;
      *t->best = *made;
      *made = kept;
    }
  }
  bl_schedule_destroy(made);
  return status == BL_INVALID || status == BL_NOT_FOUND ? BL_OK : status;
}

static bool all_limits_are(const taking_t *t, uint32_t blocks) {
  for (uint32_t s = 0; s < t->best->stages; s++) {
    if (t->limits[s] != blocks) {
      return false;
    }
  }
  return true;
}

// Sets *worst to the blocks of the fullest stage in the timetable of grouped-interleaved. The name is searched within
// this limit. 0: there is no timetable.
static bl_status_t peak_of_groups(const taking_t *t, uint32_t *worst) {
  const bl_schedule_t *best = t->best;
  bl_schedule_t *base;
  *worst = 0;
  bl_status_t status =
      bl_schedule_create(best->name, BL_PLACEMENT_LOOPED, best->stages, best->chunks, best->micro_batches, &base, NULL);
  if (status != BL_OK) {
    return status;
  }
  status = bl__grouped_interleaved_base(base, base->stages);
  if (status == BL_OK) {
    status = bl_schedule_peak_slots(base, t->scratch);
  }
  for (uint32_t s = 0; s < base->stages && status == BL_OK; s++) {
    *worst = t->scratch[s] > *worst ? t->scratch[s] : *worst;
  }
  bl_schedule_destroy(base);
  return status == BL_INVALID ? BL_OK : status;
}

// Sets *searched: the search for `best` already covered the same orders.
static bl_status_t is_searched(const taking_t *t, const name_t *name, bool *searched) {
  uint32_t worst;
  *searched = name->generate == bl__generate_zb_v && all_limits_are(t, name->memory(t->best->stages) * t->best->chunks);
  if (name->generate != bl__generate_grouped_interleaved || !t->looped || t->request->pooled) {
    return BL_OK;
  }
  bl_status_t status = peak_of_groups(t, &worst);
  *searched = status == BL_OK && all_limits_are(t, worst);
  return status;
}

// Returns whether the order of a name is worth making. In a huge schedule, one whose memory may exceed the limits is
// not.
static bool is_wanted(const taking_t *t, const name_t *name) {
  bool fits = name->memory == NULL || 3 * bl_schedule_block_count(t->best) <= BL__PORTFOLIO_HUGE;
  for (uint32_t s = 0; s < t->best->stages && !fits; s++) {
    if (name->memory(t->best->stages) * t->best->chunks > t->limits[s]) {
      return false;
    }
  }
  return !t->request->keep_placement || name->placement == BL_PLACEMENT_V;
}

bl_status_t bl__take_named(const bl_schedule_request_t *request, const uint32_t *limits, bool looped,
                           bl_schedule_t *best, double *t_end) {
  taking_t taking = {.request = request, .limits = limits, .looped = looped, .best = best, .t_end = t_end};
  taking.scratch = malloc(best->stages * sizeof *taking.scratch);
  bl_status_t status = taking.scratch != NULL ? BL_OK : BL_EXHAUSTED;
  for (size_t k = 0; k < sizeof names / sizeof names[0] && status == BL_OK; k++) {
    bool searched = !is_wanted(&taking, &names[k]);
    if (!searched) {
      status = is_searched(&taking, &names[k], &searched);
    }
    if (status == BL_OK && !searched) {
      status = take(&taking, &names[k]);
    }
  }
  free(taking.scratch);
  return status;
}
