// SPDX-License-Identifier: Apache-2.0
#include "schedule/search/search.h"

#include "schedule/generate/groups.h"
#include "schedule/ir/peaks.h"
#include "schedule/search/steady_state.h"

#include <stdlib.h>

// Returns the other costs to search with: unit costs, for which timetables are made. If the real costs are all equal
// and without latency, returns slightly uneven ones: with equal costs most changes of an order do not change its end,
// so the search has no direction.
static bl_costs_t other_costs(const bl_costs_t *costs, uint32_t virtual_stages) {
  static const bl_costs_t uneven = {.every = {10, 11, 9, 10}, .boundary = 1};
  bool equal = costs->boundary == 0;
  for (uint32_t s = 0; s < virtual_stages && equal; s++) {
    const bl_chunk_costs_t *chunk = bl_costs_chunk(costs, s), *first = bl_costs_chunk(costs, 0);
    equal = chunk->forward == first->forward && chunk->input == chunk->forward && chunk->weight == chunk->forward;
  }
  return equal ? uneven : BL_COSTS_UNIT;
}

// A search with its two portfolios.
typedef struct search {
  bool apart; // searches the bases of try_apart
  const bl__bases_t *bases;
  const bl_schedule_request_t *request;
  bl__portfolio_t real, other;
  bl_schedule_t *scratch;
} search_t;

#define GROUPS_MAX 8 // group sizes that are tried

// Tries the base orders. If some chunks keep their blocks and no base fits into the slots, tries groups of as many
// micro-batches as fit.

static bl_status_t try_bases(search_t *search, const bl_costs_t *costs, bl__portfolio_t *portfolio) {
  bl_schedule_t *scratch = search->scratch;
  bl__recompute_options_t recompute = portfolio->recompute;
  if (search->apart) {
    return search->bases->try_apart(search->bases->context, costs, portfolio);
  }
  bl_status_t status = search->bases->try(search->bases->context, costs, portfolio);
  uint32_t group = scratch->micro_batches;
  if (recompute.chunks > 0 && recompute.slots > 0) {
    uint32_t room = recompute.slots / (scratch->chunks - recompute.chunks);
    group = room < group ? room : group;
  }
  bool none = recompute.chunks > 0 && portfolio->found == 0;
  portfolio->bases = group < GROUPS_MAX ? group : GROUPS_MAX;
  for (uint32_t k = 0; none && k < GROUPS_MAX && group > 0 && status == BL_OK; k++, group--) {
    // Groups of one micro-batch always fit.
    status = bl__groups_fill(scratch, k + 1 < GROUPS_MAX ? group : 1);
    if (status == BL_OK) {
      status = bl__portfolio_try(portfolio, scratch);
    }
  }
  return status;
}

static bl_status_t search_with_other_costs(search_t *search, const bl_costs_t *costs) {
  search->other.follower = &search->real;
  bl_status_t status = try_bases(search, costs, &search->other);
  if (status == BL_OK) {
    status = bl__portfolio_refine(&search->other, search->scratch);
  }
  if (status == BL_OK && search->other.found > 0 && !search->apart) {
    status = bl__portfolio_search_locally(&search->other);
  }
  if (status == BL_OK && search->bases->generate != NULL && !search->apart) {
    status = bl__portfolio_from_shorter(&search->real, search->bases->generate, search->request, search->scratch);
  }
  bl__portfolio_renew(&search->real, search->other.found + 1);
  for (uint32_t r = 0; r < search->other.found && status == BL_OK; r++) {
    status = bl__portfolio_try(&search->real, search->other.results[r].schedule);
  }
  return status == BL_OK ? bl__portfolio_refine(&search->real, search->scratch) : status;
}

// The costs of a search in addition to the real ones; merged: with R in I, for making base orders.
typedef struct priced {
  bl_costs_t other, merged, merged_other;
} priced_t;

// Returns whether a schedule is too large to be searched twice.
static bool is_huge(const bl_schedule_t *shape) {
  return 3 * bl_schedule_block_count(shape) > BL__PORTFOLIO_HUGE;
}

static bl_status_t start(search_t *search, const priced_t *costs, const uint32_t *limits, const bl_schedule_t *shape) {
  const bl_schedule_request_t *request = search->request;
  bl_status_t status = bl_schedule_create_like(shape, &search->scratch, NULL);
  if (status == BL_OK) {
    status = bl__portfolio_init(&search->real, shape, request->costs, limits, 0, request->effort);
  }
  if (status == BL_OK) {
    const double effort = BL__PORTFOLIO_OTHER_EFFORT * request->effort;
    status = bl__portfolio_init(&search->other, shape, &costs->other, limits, 0, effort);
  }
  bl__portfolio_recompute(&search->real, request);
  bl__portfolio_recompute(&search->other, request);
  if (status == BL_OK) {
    status = try_bases(search, &costs->merged, &search->real);
  }
  if (status == BL_OK) {
    status = bl__portfolio_refine(&search->real, search->scratch);
  }
  const bool brief = search->apart && is_huge(shape);
  if (status == BL_OK && search->real.found > 0 && !brief && !bl__portfolio_is_done(&search->real)) {
    status = search_with_other_costs(search, &costs->merged_other);
  }
  return status;
}

static void clean_up(search_t *search) {
  bl__portfolio_cleanup(&search->real);
  bl__portfolio_cleanup(&search->other);
  bl_schedule_destroy(search->scratch);
}

// Maximal end of the separate search, as a multiple of the other end, for which its results are polished.
#define NEAR      1.03
#define NEAR_HUGE 1

// Runs both searches and puts the better result into `schedule`.

static bl_status_t run(search_t *search, search_t *apart, const priced_t *costs, const uint32_t *limits,
                       bl_schedule_t *schedule) {
  bl_status_t status = apart->bases->try_apart != NULL ? start(apart, costs, limits, schedule) : BL_OK;
  if (status == BL_OK && apart->real.found > 0 && bl__portfolio_is_done(&apart->real)) {
    return bl__portfolio_end(&apart->real, status, schedule);
  }
  if (status == BL_OK) {
    status = start(search, costs, limits, schedule);
  }
  status = bl__portfolio_end(&search->real, status, schedule);
  const double end = search->real.results[0].t_end, near = is_huge(schedule) ? NEAR_HUGE : NEAR;
  if (status == BL_OK && apart->real.found > 0 && apart->real.results[0].t_end < near * end) {
    status = bl__portfolio_search_locally(&apart->real);
    if (status == BL_OK && apart->real.results[0].t_end < end) {
      status = bl_schedule_copy_lists(apart->real.results[0].schedule, schedule);
    }
  }
  return status;
}

bl_status_t bl__search(const bl__bases_t *bases, const bl_schedule_request_t *request, const uint32_t *limits,
                       bl_schedule_t *schedule) {
  search_t search = {.bases = bases, .request = request}, apart = {.apart = true, .bases = bases, .request = request};
  priced_t costs = {.other = other_costs(request->costs, schedule->virtual_stages), .merged = *request->costs};
  const bl__recompute_options_t recompute = bl__recompute_options_of(request, schedule);
  costs.merged_other = costs.other;
  bl_status_t status = bl__costs_merge(request->costs, recompute, schedule, &costs.merged);
  if (status == BL_OK) {
    status = bl__costs_merge(&costs.other, recompute, schedule, &costs.merged_other);
  }
  if (status == BL_OK) {
    status = run(&search, &apart, &costs, limits, schedule);
  }
  clean_up(&apart);
  clean_up(&search);
  bl__costs_merge_cleanup(&costs.other, &costs.merged_other);
  bl__costs_merge_cleanup(request->costs, &costs.merged);
  return status;
}

static bl_status_t try_given(void *context, const bl_costs_t *costs, bl__portfolio_t *portfolio) {
  const bl__orders_t *given = context;
  bl_status_t status = BL_OK;
  (void)costs;
  bl__portfolio_renew(portfolio, given->count + 1);
  for (uint32_t k = 0; k < given->count && status == BL_OK; k++) {
    status = bl__portfolio_try(portfolio, given->orders[k]);
  }
  return status;
}

bl_status_t bl__improve(bl__orders_t orders, const bl_schedule_request_t *request, const uint32_t *limits,
                        bl_schedule_t *schedule) {
  const bl__bases_t bases = {.try = try_given, .context = &orders, .generate = orders.generate};
  return bl__search(&bases, request, limits, schedule);
}

static void level(uint32_t *limits, uint32_t stages) {
  uint32_t worst = 0;
  for (uint32_t s = 0; s < stages; s++) {
    worst = limits[s] > worst ? limits[s] : worst;
  }
  for (uint32_t s = 0; s < stages; s++) {
    limits[s] = worst;
  }
}

bl_status_t bl__improve_within(const bl_schedule_t *holds, bool each, bl__orders_t orders,
                               const bl_schedule_request_t *request, bl_schedule_t *schedule) {
  uint32_t *limits = malloc(holds->stages * sizeof *limits);
  bl_status_t status = limits != NULL ? bl_schedule_peak_slots(holds, limits) : BL_EXHAUSTED;
  if (status == BL_OK && !each) {
    level(limits, holds->stages);
  }
  if (status == BL_OK) {
    status = bl__improve(orders, request, limits, schedule);
  }
  free(limits);
  return status;
}
