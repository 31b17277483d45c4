// SPDX-License-Identifier: Apache-2.0
// V-shaped schedules with split backward (Qi et al., ICLR 2024 and NeurIPS 2024): building blocks are repeated, then
// squeezed and reordered with real costs within a memory limit per stage.
//   zb-v    limit p device-micro-batches       v-half  limit floor((p + 2) / 2)
//   v-zb    limit p                            v-min   limit floor((p + 4) / 3)
// Below the limit of v-min no block of the searched period fits. Then groups of as many micro-batches as memory holds
// follow each other and are reordered likewise. One micro-batch at a time always works.
#include "schedule/generate/block_ramps.h"
#include "schedule/generate/building_block.h"
#include "schedule/generate/groups.h"
#include "schedule/generate/timed_block.h"
#include "schedule/generate/zero_bubble_v.h"
#include "schedule/search/search.h"
#include "schedule/search/searched.h"

#include <stdlib.h>
#include <string.h>

#define STEP_MAX     5                // cells from stage to stage
#define REVERSAL_MAX BL__BLOCK_PERIOD // cells of a reversal
#define BLOCKS_MAX   160              // building blocks that one search tries
#define BLOCKS_HEAD  8                // of them, those that are tried because they use the most memory
#define RAMPS_STAGES 9       // minimum of stages for blocks with ramps; with fewer the search finds better orders
#define RAMPS_BUDGET 1500000 // operations of orders with ramps that one search times or dispatches
#define TIMED_EFFORT 0.2     // minimum effort of a search for which blocks in real times are worth making

typedef struct candidate {
  bl__block_shape_t shape;
  uint32_t peak, latency;
} candidate_t;

// What a search spends on blocks in real times.
typedef struct timed {
  uint64_t budget;             // for finding them
  uint32_t blocks, dispatches; // number of blocks that are tried, and dispatches of each
} timed_t;

typedef struct search {
  const bl_schedule_request_t *request;
  bl_schedule_t *base;
  uint32_t *limits;
  bl__block_row_t *rows; // [stages]
  candidate_t *candidates;
  size_t count, bent, capacity, operations; // the last `bent` of `count` candidates are tried only with ramps
  bool thorough;                            // finds blocks in real times with a larger budget
} search_t;

// Adds the block unless its passes collide or a stage would exceed its limit.
static bl_status_t add_candidate(search_t *search, const bl__block_shape_t *shape) {
  uint32_t p = search->request->stages, peak = 0;
  if (!bl__block_rows(shape, p, search->rows)) {
    return BL_OK;
  }
  for (uint32_t s = 0; s < p; s++) {
    uint32_t held = bl__block_peak(&search->rows[s]);
    peak = held > peak ? held : peak;
    if (held > search->limits[s]) {
      return BL_OK;
    }
  }
  if (search->count == search->capacity) {
    size_t capacity = search->capacity == 0 ? 64 : 2 * search->capacity;
    candidate_t *candidates = realloc(search->candidates, capacity * sizeof *candidates);
    if (candidates == NULL) {
      return BL_EXHAUSTED;
    }
    search->candidates = candidates;
    search->capacity = capacity;
  }
  search->candidates[search->count++] = (candidate_t){*shape, peak, search->rows[0].at[3]};
  return BL_OK;
}

// Adds blocks whose first steps down take nearly a period. Some of them fit into memory between half of 1F1B's and all
// of it.
static bl_status_t find_bent_candidates(search_t *search) {
  const size_t straight = search->count;
  bl_status_t status = BL_OK;
  for (uint32_t first = 1; first + 1 < search->request->stages; first++) {
    for (uint32_t reversals = 0; reversals < 27 && status == BL_OK; reversals++) {
      const bl__block_shape_t shape = {
          .down = 1,
          .up = 1,
          .first = first,
          .bend = BL__BLOCK_PERIOD - 1,
          .reversal = {1 + 2 * (reversals % 3), 1 + 2 * (reversals / 3 % 3), 1 + 2 * (reversals / 9)}};
      status = add_candidate(search, &shape);
    }
  }
  search->bent = search->count - straight;
  return status;
}

// Adds the blocks of the published family (building_block.h): every number of cells down and up, with all reversals.
static bl_status_t find_candidates(search_t *search) {
  bl_status_t status = BL_OK;
  for (uint32_t down = 1; down <= STEP_MAX; down++) {
    for (uint32_t up = 1; up <= STEP_MAX; up++) {
      for (uint32_t reversals = 0; reversals < REVERSAL_MAX * REVERSAL_MAX * REVERSAL_MAX && status == BL_OK;
           reversals++) {
        bl__block_shape_t shape = {.down = down,
                                   .up = up,
                                   .reversal = {1 + reversals % REVERSAL_MAX,
                                                1 + reversals / REVERSAL_MAX % REVERSAL_MAX,
                                                1 + reversals / REVERSAL_MAX / REVERSAL_MAX}};
        status = add_candidate(search, &shape);
      }
    }
  }
  const bool bends = search->request->stages >= RAMPS_STAGES && search->operations <= BL__PORTFOLIO_LARGE;
  if (status == BL_OK && bends) {
    status = find_bent_candidates(search);
  }
  return status;
}

// Sorts short blocks first: they leave most of the memory to the reordering.
static int by_latency(const void *a, const void *b) {
  const candidate_t *x = a, *y = b;
  if (x->latency != y->latency) {
    return x->latency < y->latency ? -1 : 1;
  }
  return x->peak != y->peak ? (x->peak < y->peak ? -1 : 1) : memcmp(&x->shape, &y->shape, sizeof x->shape);
}

// Sorts the blocks that use the most memory first.
static int by_peak(const void *a, const void *b) {
  const candidate_t *x = a, *y = b;
  return x->peak != y->peak ? (x->peak > y->peak ? -1 : 1) : by_latency(a, b);
}

static bl_status_t try_candidate(search_t *search, bl__portfolio_t *portfolio, const candidate_t *candidate) {
  bl_status_t status = BL_OK;
  if (bl__block_rows(&candidate->shape, search->request->stages, search->rows)) {
    status = bl__block_repeat(search->rows, search->base);
  }
  return status == BL_OK ? bl__portfolio_try(portfolio, search->base) : status;
}

static bl_status_t try_ramp(search_t *search, bl__portfolio_t *portfolio, const candidate_t *candidate) {
  bl_status_t status = BL_OK;
  if (bl__block_rows(&candidate->shape, search->request->stages, search->rows)) {
    status = bl__block_ramps(search->rows, candidate->peak, search->base);
  }
  bl__portfolio_grant(portfolio, 2);
  return status == BL_OK ? bl__portfolio_try(portfolio, search->base) : status;
}

// Tries blocks with ramps (block_ramps.h), straight and bent ones in turn, those with the largest peak first:
// unchanged, and dispatched once.
static bl_status_t try_ramps(void *context, const bl_costs_t *costs, bl__portfolio_t *portfolio) {
  search_t *search = context;
  (void)costs;
  const size_t straight = search->count - search->bent;
  bl_status_t status = BL_OK;
  if (search->count > 0) {
    qsort(search->candidates, straight, sizeof search->candidates[0], by_peak);
    qsort(search->candidates + straight, search->bent, sizeof search->candidates[0], by_peak);
  }
  size_t left = (size_t)(portfolio->effort * RAMPS_BUDGET) / (2 * search->operations);
  for (size_t i = 0; i < search->count && left > 0 && status == BL_OK; i++) {
    if (i < straight) {
      status = try_ramp(search, portfolio, &search->candidates[i]);
      left--;
    }
    if (i < search->bent && left > 0 && status == BL_OK) {
      status = try_ramp(search, portfolio, &search->candidates[straight + i]);
      left--;
    }
  }
  return status;
}

// Tries the first candidates by peak, then the first of the rest by latency. The remaining budget is spent on the best
// result.
static bl_status_t try_candidates(search_t *search, bl__portfolio_t *portfolio) {
  bl_status_t status = BL_OK;
  const size_t straight = search->count - search->bent, count = straight < BLOCKS_MAX ? straight : BLOCKS_MAX;
  if (straight == 0) {
    return bl__portfolio_refine(portfolio, search->base);
  }
  size_t heads = count / 2 < BLOCKS_HEAD ? count / 2 : BLOCKS_HEAD;
  portfolio->bases = (uint32_t)count + 1;
  qsort(search->candidates, straight, sizeof search->candidates[0], by_peak);
  for (size_t i = 0; i < heads && status == BL_OK && bl__portfolio_wants(portfolio, search->operations); i++) {
    status = try_candidate(search, portfolio, &search->candidates[i]);
  }
  qsort(search->candidates + heads, straight - heads, sizeof search->candidates[0], by_latency);
  for (size_t i = heads; i < count && status == BL_OK && bl__portfolio_wants(portfolio, search->operations); i++) {
    status = try_candidate(search, portfolio, &search->candidates[i]);
  }
  return status == BL_OK ? bl__portfolio_refine(portfolio, search->base) : status;
}

// Fills the base with groups of as many micro-batches as the tightest stage holds, one after the other.
static bl_status_t fill_groups(search_t *search) {
  uint32_t group = search->base->micro_batches;
  for (uint32_t s = 0; s < search->base->stages; s++) {
    group = search->limits[s] / 2 < group ? search->limits[s] / 2 : group;
  }
  return group > 0 ? bl__groups_fill(search->base, group) : BL_OK;
}

// Returns whether blocks in real times are tried. The search of a large schedule is too short to find orders as good as
// these by changes.
static bool wants_timed_blocks(const search_t *search, const bl__portfolio_t *portfolio) {
  const bl_schedule_request_t *request = search->request;
  const bool real = portfolio->follower == NULL; // costs
  return real && search->operations > BL__PORTFOLIO_LARGE && request->stages > 1 && request->effort >= TIMED_EFFORT;
}

static bl_status_t try_timed_blocks(search_t *search, const bl_costs_t *costs, bl__portfolio_t *portfolio) {
  const timed_t timed =
      search->thorough ? (timed_t){BL__TIMED_BLOCKS_BUDGET, 6, 8} : (timed_t){BL__TIMED_BLOCKS_BUDGET / 20, 2, 4};
  bl__timed_blocks_t *blocks;
  bl_status_t status = bl__timed_blocks_create(search->request->stages, costs, search->limits, timed.budget, &blocks);
  if (status != BL_OK) {
    return status;
  }
  for (uint32_t k = 0; k < timed.blocks && status == BL_OK && bl__timed_blocks_next(blocks); k++) {
    status = bl__timed_blocks_repeat(blocks, search->base);
    bl__portfolio_grant(portfolio, timed.dispatches);
    if (status == BL_OK) {
      status = bl__portfolio_try(portfolio, search->base);
    }
  }
  bl__timed_blocks_destroy(blocks);
  return status;
}

static bl_status_t try_bases(void *context, const bl_costs_t *costs, bl__portfolio_t *portfolio) {
  search_t *search = context;
  bl_status_t status = BL_OK;
  if (wants_timed_blocks(search, portfolio)) {
    status = try_timed_blocks(search, costs, portfolio);
  }
  bl__portfolio_renew(portfolio, 8);
  if (search->count == 0 && status == BL_OK) {
    status = fill_groups(search);
    if (status == BL_OK) {
      status = bl__portfolio_try(portfolio, search->base);
    }
  }
  for (int k = 0; k < 4 && status == BL_OK && bl__portfolio_wants(portfolio, search->operations); k++) {
    status = bl__zero_bubble_v(costs, search->limits, k & 1, k & 2, search->base);
    if (status == BL_OK) {
      status = bl__portfolio_try(portfolio, search->base);
    }
    status = status == BL_NOT_FOUND ? BL_OK : status;
  }
  return status == BL_OK ? try_candidates(search, portfolio) : status;
}

// Returns whether to search longer for blocks in real times: for adaptive if memory is tight. With the memory of 1F1B
// the short search finds orders that are as good.
static bool wants_thorough(const bl_schedule_t *schedule, const uint32_t *limits) {
  bool tight = false;
  for (uint32_t s = 0; s < schedule->stages; s++) {
    tight = tight || limits[s] < schedule->chunks * schedule->stages;
  }
  return tight && strcmp(schedule->name, "adaptive") == 0;
}

// Fills `schedule` with the fastest order found within `memory` device-micro-batches. `shorter` makes the same schedule
// for fewer micro-batches, to be extended. It does so without ramps, because an extended order loses its ramps.
static bl_status_t search_within(const bl_schedule_request_t *request, double memory, bool ramps,
                                 bl__generator_t *shorter, bl_schedule_t *schedule, bl_error_t *err) {
  search_t search = {.request = request, .operations = 3 * bl_schedule_block_count(schedule)};
  search.limits = malloc(request->stages * sizeof search.limits[0]);
  search.rows = malloc(request->stages * sizeof search.rows[0]);
  bl_status_t status = search.limits != NULL && search.rows != NULL
                           ? bl_schedule_create_like(schedule, &search.base, NULL)
                           : BL_EXHAUSTED;
  if (status == BL_OK) {
    bl__memory_limits(schedule, memory, request->memory_of_stage, search.limits);
    search.thorough = wants_thorough(schedule, search.limits);
    status = bl__memory_limits_check(request, memory, search.limits, schedule->chunks, err);
  }
  if (status == BL_OK) {
    status = find_candidates(&search);
  }
  if (status == BL_OK) {
    const bl__bases_t bases = {.try = try_bases,
                               .try_apart = ramps && request->stages >= RAMPS_STAGES ? try_ramps : NULL,
                               .context = &search,
                               .generate = shorter};
    status = bl__search(&bases, request, search.limits, schedule);
  }
  bl_schedule_destroy(search.base);
  free(search.candidates);
  free(search.rows);
  free(search.limits);
  return status;
}

uint32_t bl__v_half_memory(uint32_t stages) {
  return (stages + 2) / 2;
}

uint32_t bl__v_min_memory(uint32_t stages) {
  return (stages + 4) / 3;
}

static bl_status_t zb_v(const bl_schedule_request_t *request, bl_schedule_t *schedule, bl_error_t *err) {
  return search_within(request, request->memory, false, zb_v, schedule, err);
}

static bl_status_t v_zb(const bl_schedule_request_t *request, bl_schedule_t *schedule, bl_error_t *err) {
  return search_within(request, request->stages, false, v_zb, schedule, err);
}

static bl_status_t v_half(const bl_schedule_request_t *request, bl_schedule_t *schedule, bl_error_t *err) {
  return search_within(request, bl__v_half_memory(request->stages), false, v_half, schedule, err);
}

static bl_status_t v_min(const bl_schedule_request_t *request, bl_schedule_t *schedule, bl_error_t *err) {
  return search_within(request, bl__v_min_memory(request->stages), false, v_min, schedule, err);
}

bl_status_t bl__generate_zb_v(const bl_schedule_request_t *request, bl_schedule_t *schedule, bl_error_t *err) {
  return search_within(request, request->memory, true, zb_v, schedule, err);
}

bl_status_t bl__generate_v_zb(const bl_schedule_request_t *request, bl_schedule_t *schedule, bl_error_t *err) {
  return search_within(request, request->stages, true, v_zb, schedule, err);
}

bl_status_t bl__generate_v_half(const bl_schedule_request_t *request, bl_schedule_t *schedule, bl_error_t *err) {
  return search_within(request, bl__v_half_memory(request->stages), true, v_half, schedule, err);
}

bl_status_t bl__generate_v_min(const bl_schedule_request_t *request, bl_schedule_t *schedule, bl_error_t *err) {
  return search_within(request, bl__v_min_memory(request->stages), true, v_min, schedule, err);
}
