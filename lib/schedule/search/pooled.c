// SPDX-License-Identifier: Apache-2.0
#include "schedule/search/pooled.h"

#include "schedule/balance/balance.h"
#include "schedule/ir/bound.h"
#include "schedule/search/dispatch.h"

#include <math.h>
#include <stdlib.h>

// Share of the limit by which the first stage exceeds it (below 0: stays below it). Loops, and few micro-batches on a
// V, gain from opposite signs.
static const double tilts[] = {0.125, 0.25, 0.5, 0.75, -0.125, -0.25, -0.5, -0.75};
#define TILTS (sizeof tilts / sizeof tilts[0])
// With a host: share of the limit by which all stages exceed it. The smallest is first because it moves the fewest
// blocks.
static const double lifts[] = {0.125, 0.25, 0.375, 0.5};
#define LIFTS        (sizeof lifts / sizeof lifts[0])
#define FIRST_EFFORT 0.1 // share of the search for each tilt or lift, before a full one for the best

typedef struct pool {
  bl__generator_t *generate;
  bl_placement_t placement;
  const bl_schedule_request_t *request;
  uint32_t chunks, cap; // blocks of a device
  double *memory;       // [stages] limits of the tilt that is tried
  bl_schedule_t *best;
  double t_end;
} pool_t;

// Sets the limits of a lift. False if it rounds to no block.
static bool lift_limits(pool_t *pool, double lift) {
  const uint32_t more = (uint32_t)lround(lift * pool->cap);
  for (uint32_t s = 0; s < pool->request->stages; s++) {
    pool->memory[s] = (double)(pool->cap + more) / pool->chunks;
  }
  return more > 0;
}

// Sets the limits of a tilt. False if it changes no stage's limit.
static bool tilt_limits(pool_t *pool, double tilt) {
  const uint32_t p = pool->request->stages;
  bool tilted = false;
  for (uint32_t s = 0; s < p; s++) {
    pool->memory[s] = (double)pool->cap / pool->chunks;
  }
  for (uint32_t s = 0; s < p / 2; s++) {
    const double share = fabs(tilt) * (p - 1 - 2 * s) / (p - 1);
    uint32_t more = (uint32_t)lround(share * pool->cap), least = pool->chunks + 1;
    more = pool->cap > least && more > pool->cap - least ? pool->cap - least : more;
    if (pool->cap <= least || more == 0) {
      continue;
    }
    const uint32_t heavy = tilt > 0 ? s : p - 1 - s, light = p - 1 - heavy;
    pool->memory[heavy] = (double)(pool->cap + more) / pool->chunks;
    pool->memory[light] = (double)(pool->cap - more - 1) / pool->chunks;
    tilted = true;
  }
  return tilted;
}

static bool loads_late(const bl_balance_result_t *result) {
  bool late = false;
  for (uint32_t s = 0; s < result->stages; s++) {
    late = late || result->late[s] > 0;
  }
  return late;
}

// Returns whether copies to a host hide behind operations: none takes longer than a forward. True without a host.
static bool copies_hide(const pool_t *pool) {
  const bl_costs_t *costs = pool->request->costs;
  bool hide = true;
  for (uint32_t v = 0; pool->request->hosted && v < pool->best->virtual_stages; v++) {
    hide = hide && costs->path <= bl_costs_chunk(costs, v)->forward;
  }
  return hide;
}

// Returns whether the order can be balanced in both modes without late loads, which the end of an order does not
// include.
static bool can_be_balanced(const pool_t *pool, const bl_schedule_t *schedule) {
  static const bl_balance_mode_t modes[] = {BL_BALANCE_OVERLAP, BL_BALANCE_FEWEST};
  bl_status_t status = BL_OK;
  for (size_t i = 0; i < 2 && status == BL_OK; i++) {
    const bl_balance_cap_t cap = {.slots = pool->cap,
                                  .pairs_only = true,
                                  .mode = modes[i],
                                  .hosts = pool->request->hosted,
                                  .host_slots = UINT32_MAX,
                                  .host_only = pool->request->hosted};
    bl_balance_result_t result;
    status = bl_balance_within(schedule, &cap, &result, NULL);
    if (status == BL_OK) {
      status = loads_late(&result) ? BL_EXHAUSTED : BL_OK;
      bl_balance_result_cleanup(&result);
    }
  }
  return status == BL_OK;
}

// Searches with one tilt or lift. Keeps the order if it can be balanced and ends before the best so far. Sets *t_end to
// its end, infinite if none that can be balanced was found.
static bl_status_t try_limits(pool_t *pool, double share, bool lifts_all, double effort, double *t_end) {
  bl_schedule_request_t wanted = *pool->request;
  bl_schedule_t *made;
  *t_end = INFINITY;
  if (!(lifts_all ? lift_limits(pool, share) : tilt_limits(pool, share))) {
    return BL_OK;
  }
  wanted.memory_of_stage = pool->memory;
  wanted.effort = effort * wanted.effort;
  bl_status_t status = bl__generate_with(pool->generate, pool->placement, &wanted, &made, NULL);
  if (status != BL_OK) { // too low for one stage; another tilt may work
    return status == BL_INVALID || status == BL_NOT_FOUND ? BL_OK : status;
  }
  double end;
  status = bl__dispatch_end(made, pool->request->costs, (bl__recompute_options_t){0}, &end);
  if (status == BL_OK && can_be_balanced(pool, made)) {
    *t_end = end;
  }
  if (*t_end < pool->t_end * (1 - 1e-9)) {
    bl_schedule_destroy(pool->best);
    pool->best = made;
    pool->t_end = *t_end;
  } else {
    bl_schedule_destroy(made);
  }
  return status;
}

static bl_status_t try_all(pool_t *pool) {
  double fastest = INFINITY, best = 0, end, bound;
  bool lifts_all = false;
  bl_status_t status = bl_schedule_lower_bound(pool->best, pool->request->costs, &bound);
  if (status != BL_OK || pool->t_end <= bound * (1 + 1e-9) || !copies_hide(pool)) { // no order ends earlier
    return status;
  }
  const size_t first = pool->request->hosted ? 0 : LIFTS; // the lifts, then the tilts
  for (size_t i = first; i < LIFTS + TILTS && status == BL_OK; i++) {
    const double share = i < LIFTS ? lifts[i] : tilts[i - LIFTS];
    status = try_limits(pool, share, i < LIFTS, FIRST_EFFORT, &end);
    if (end < fastest) {
      fastest = end;
      best = share;
      lifts_all = i < LIFTS;
    }
  }
  return status == BL_OK && isfinite(fastest) ? try_limits(pool, best, lifts_all, 1, &end) : status;
}

bl_status_t bl__pool(bl__generator_t *generate, bl_placement_t placement, const bl_schedule_request_t *request,
                     bl_schedule_t **schedule) {
  pool_t pool = {.generate = generate, .placement = placement, .request = request, .best = *schedule};
  pool.chunks = pool.best->chunks;
  pool.cap = (uint32_t)floor(request->memory / bl_schedule_block_weight(pool.best) + 1e-9);
  pool.memory = malloc(request->stages * sizeof *pool.memory);
  bl_status_t status = pool.memory != NULL
                           ? bl__dispatch_end(pool.best, request->costs, (bl__recompute_options_t){0}, &pool.t_end)
                           : BL_EXHAUSTED;
  if (status == BL_OK) {
    status = try_all(&pool);
  }
  free(pool.memory);
  *schedule = pool.best;
  return status;
}
