// SPDX-License-Identifier: Apache-2.0
#include "schedule/search/portfolio.h"

#include "schedule/ir/peaks.h"
#include "schedule/search/drain.h"
#include "schedule/search/local_search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LATE  1e-8  // share beyond which an end is certainly later than another
#define SAME  1e-9  // share within which ends are equal
#define EXACT 1e-12 // share within which an end has reached its bound

bl_status_t bl__portfolio_init(bl__portfolio_t *portfolio, const bl_schedule_t *shape, const bl_costs_t *costs,
                               const uint32_t *limits, uint32_t bases, double effort) {
  *portfolio = (bl__portfolio_t){.costs = costs, .limits = limits, .effort = effort};
  portfolio->peaks = malloc(shape->stages * sizeof portfolio->peaks[0]);
  bl_status_t status = portfolio->peaks != NULL ? BL_OK : BL_EXHAUSTED;
  for (uint32_t r = 0; r <= BL__PORTFOLIO_KEPT && status == BL_OK; r++) {
    status = bl_schedule_create_like(shape, &portfolio->results[r].schedule, NULL);
  }
  if (status == BL_OK) {
    bl__portfolio_renew(portfolio, bases);
  }
  return status;
}

void bl__portfolio_recompute(bl__portfolio_t *portfolio, const bl_schedule_request_t *request) {
  if (portfolio->results[0].schedule != NULL) {
    portfolio->recompute = bl__recompute_options_of(request, portfolio->results[0].schedule);
  }
}

static double by_size(size_t count, double small, double large, double huge) {
  return count <= BL__PORTFOLIO_LARGE ? small : count <= BL__PORTFOLIO_HUGE ? large : huge;
}

void bl__portfolio_renew(bl__portfolio_t *portfolio, uint32_t bases) {
  // F, I and W of every block
  size_t count = 3 * bl_schedule_block_count(portfolio->results[0].schedule);
  double budget = by_size(count, BL__PORTFOLIO_BUDGET, BL__PORTFOLIO_BUDGET_LARGE, BL__PORTFOLIO_BUDGET_HUGE);
  portfolio->budget = (size_t)(portfolio->effort * budget);
  portfolio->bases = bases;
}

void bl__portfolio_grant(bl__portfolio_t *portfolio, uint32_t dispatches) {
  portfolio->budget = 3 * bl_schedule_block_count(portfolio->results[0].schedule) * dispatches;
  portfolio->bases = 1;
}

static bool better(const bl__result_t *a, const bl__result_t *b) {
  double slack = SAME * fabs(b->t_end);
  return a->t_end < b->t_end - slack || (a->t_end <= b->t_end + slack && a->worst_peak < b->worst_peak);
}

// Inserts the attempt into the results. One that equals a result in end and peak counts as the same.
static void keep_if_better(bl__portfolio_t *portfolio, double t_end, uint32_t worst) {
  bl__result_t *results = portfolio->results, attempt = results[BL__PORTFOLIO_KEPT];
  attempt.t_end = t_end;
  attempt.worst_peak = worst;
  uint32_t place = portfolio->found;
  while (place > 0 && better(&attempt, &results[place - 1])) {
    place--;
  }
  bool same = place > 0 && !better(&results[place - 1], &attempt);
  if (same || place == BL__PORTFOLIO_KEPT) {
    return;
  }
  memmove(results + place + 1, results + place, (BL__PORTFOLIO_KEPT - place) * sizeof *results);
  results[place] = attempt;
  portfolio->found += portfolio->found < BL__PORTFOLIO_KEPT;
}

// Sets *worst to the worst peak of a schedule, or to UINT32_MAX if a stage exceeds its limit.
static bl_status_t measure(bl__portfolio_t *portfolio, const bl_schedule_t *schedule, uint32_t *worst) {
  bl_status_t status = bl_schedule_peak_slots(schedule, portfolio->peaks);
  *worst = 0;
  for (uint32_t s = 0; s < schedule->stages && status == BL_OK; s++) {
    *worst = portfolio->peaks[s] > *worst ? portfolio->peaks[s] : *worst;
    if (portfolio->peaks[s] > portfolio->limits[s]) {
      *worst = UINT32_MAX;
      break;
    }
  }
  return status;
}

// Returns a rule. Rules are tried in order of `index`, the most promising first, after the unchanged base order.
static bl__dispatch_rule_t rule_at(uint32_t index) {
  static const uint32_t windows[] = {UINT32_MAX, 2, 1, 4, 8};
  static const double patience[] = {1, 0, 0.5};
  static const bl__preference_t preferences[] = {BL__PREFER_BASE_ORDER, BL__PREFER_WEIGHTS_LAST, BL__PREFER_BACKWARD,
                                                 BL__PREFER_FORWARD};
  return (bl__dispatch_rule_t){preferences[index % 4], patience[index / 4 % 3], windows[index / 12 % 5]};
}
#define RULES (4 * 3 * 5)

// Returns the end after which an attempt is not kept.
static double latest_kept(const bl__portfolio_t *portfolio) {
  bool full = portfolio->found == BL__PORTFOLIO_KEPT;
  return full ? portfolio->results[BL__PORTFOLIO_KEPT - 1].t_end * (1 + LATE) : INFINITY;
}

static void spend(bl__portfolio_t *portfolio, size_t count) {
  portfolio->budget -= portfolio->budget < count ? portfolio->budget : count;
}

// Keeps an attempt, whose status is `status`, if it is good.
static bl_status_t keep(bl__portfolio_t *portfolio, bl_status_t status, double t_end) {
  uint32_t worst;
  if (status == BL_INTERNAL || status == BL_NOT_FOUND) {
    return BL_OK; // the base cannot run, or ends too late
  }
  if (status == BL_OK) {
    status = measure(portfolio, portfolio->results[BL__PORTFOLIO_KEPT].schedule, &worst);
  }
  if (status == BL_OK) {
    keep_if_better(portfolio, t_end, worst);
  }
  return status;
}

// Keeps `base` unchanged if it is good.
static bl_status_t attempt_as_it_is(bl__portfolio_t *portfolio, const bl_schedule_t *base) {
  double t_end = INFINITY;
  spend(portfolio, bl_schedule_op_count(base));
  bl_status_t status =
      bl__dispatch_in_order(base, portfolio->costs, portfolio->recompute, latest_kept(portfolio), &t_end);
  if (status == BL_OK) {
    status = bl_schedule_copy_lists(base, portfolio->results[BL__PORTFOLIO_KEPT].schedule);
  }
  return keep(portfolio, status, t_end);
}

// Dispatches the base by one rule and keeps the result if it is good. A follower tries every result.
static bl_status_t attempt(bl__portfolio_t *portfolio, bl__dispatcher_t *dispatcher, size_t count,
                           bl__dispatch_rule_t rule) {
  bl_schedule_t *made = portfolio->results[BL__PORTFOLIO_KEPT].schedule;
  double latest = portfolio->follower != NULL ? INFINITY : latest_kept(portfolio), t_end = INFINITY;
  spend(portfolio, count);
  bl_status_t status = bl__dispatcher_run(dispatcher, rule, latest, made, &t_end);
  if (status == BL_OK && portfolio->follower != NULL) {
    status = attempt_as_it_is(portfolio->follower, made);
  }
  return keep(portfolio, status, t_end);
}

bool bl__portfolio_wants(const bl__portfolio_t *portfolio, size_t count) {
  return portfolio->found == 0 || portfolio->budget >= count;
}

// Replaces *base by an order like it if it exceeds the limit of slots. Sets it to NULL instead if some chunks keep
// their blocks, because those leave no slots for running W's earlier.
static bl_status_t within_slots(bl__portfolio_t *portfolio, const bl_schedule_t **base) {
  bl_status_t status = BL_OK;
  if (portfolio->recompute.slots == 0 || bl__filled_most(*base, portfolio->recompute) <= portfolio->recompute.slots) {
    return status;
  }
  if (portfolio->recompute.chunks > 0) {
    *base = NULL;
    return status;
  }
  if (portfolio->drained == NULL) {
    status = bl_schedule_create_like(*base, &portfolio->drained, NULL);
  }
  if (status == BL_OK) {
    status = bl__drain(*base, portfolio->recompute.slots, portfolio->drained);
    *base = portfolio->drained;
  }
  return status;
}

static uint64_t digest_of(const bl_schedule_t *schedule) {
  uint64_t digest = 0;
  for (uint32_t s = 0; s < schedule->stages; s++) {
    for (size_t i = 0; i < schedule->lists[s].count; i++) {
      bl_op_t op = schedule->lists[s].ops[i];
      uint64_t text =
          (uint64_t)op.micro_batch << 32 | (uint64_t)op.virtual_stage << 16 | (uint64_t)op.slice << 8 | op.type;
      digest = (digest ^ text) * 0x9E3779B97F4A7C15u;
      digest ^= digest >> 29;
    }
  }
  return digest;
}

// Returns the entry of the base, a new one at its first try. NULL without memory.
static bl__tried_t *tried_of(bl__portfolio_t *portfolio, const bl_schedule_t *base) {
  uint64_t digest = digest_of(base);
  for (size_t i = 0; i < portfolio->tried_count; i++) {
    if (portfolio->tried[i].digest == digest) {
      return &portfolio->tried[i];
    }
  }
  if (portfolio->tried_count == portfolio->tried_capacity) {
    size_t capacity = portfolio->tried_capacity == 0 ? 64 : 2 * portfolio->tried_capacity;
    bl__tried_t *all = realloc(portfolio->tried, capacity * sizeof *all);
    if (all == NULL) {
      return NULL;
    }
    portfolio->tried = all;
    portfolio->tried_capacity = capacity;
  }
  portfolio->tried[portfolio->tried_count] = (bl__tried_t){.digest = digest};
  return &portfolio->tried[portfolio->tried_count++];
}

bl_status_t bl__portfolio_try(bl__portfolio_t *portfolio, const bl_schedule_t *base) {
  uint32_t worst;
  if (!bl__portfolio_wants(portfolio, bl_schedule_op_count(base))) {
    return BL_OK;
  }
  bl_status_t status = within_slots(portfolio, &base);
  if (status == BL_OK && base == NULL) {
    return BL_OK;
  }
  if (status == BL_OK) {
    status = measure(portfolio, base, &worst);
  }
  if (status != BL_OK || worst == UINT32_MAX) {
    return status;
  }
  size_t count = bl_schedule_op_count(base);
  // Every base gets its share of the remaining budget. Until a result is found, the budget limits no rule.
  size_t share = portfolio->budget / (portfolio->bases > 0 ? portfolio->bases : 1);
  portfolio->bases -= portfolio->bases > 0;
  status = attempt_as_it_is(portfolio, base);
  if (status == BL_OK && portfolio->follower != NULL) {
    status = attempt_as_it_is(portfolio->follower, base);
  }
  bl__tried_t *tried = status == BL_OK ? tried_of(portfolio, base) : NULL;
  status = status == BL_OK && tried == NULL ? BL_EXHAUSTED : status;
  bl__dispatcher_t *dispatcher = NULL;
  for (uint32_t r = 0; r < RULES && status == BL_OK; r++) {
    if (portfolio->found && (portfolio->budget < count || share < (r + 2) * count)) {
      break;
    }
    if (r < tried->rules) {
      spend(portfolio, count);
      continue;
    }
    tried->rules = r + 1;
    if (dispatcher == NULL) {
      status = bl__dispatcher_create(base, portfolio->costs, portfolio->limits, portfolio->recompute, &dispatcher);
    }
    if (status == BL_OK) {
      status = attempt(portfolio, dispatcher, count, rule_at(r));
    }
  }
  bl__dispatcher_destroy(dispatcher);
  return status;
}

bl_status_t bl__portfolio_refine(bl__portfolio_t *portfolio, bl_schedule_t *base) {
  bl_status_t status = BL_OK;
  for (double before = INFINITY;
       status == BL_OK && portfolio->found > 0 && portfolio->results[0].t_end < before && portfolio->budget > 0;) {
    before = portfolio->results[0].t_end;
    status = bl_schedule_copy_lists(portfolio->results[0].schedule, base);
    if (status == BL_OK) {
      status = bl__portfolio_try(portfolio, base);
    }
  }
  return status;
}

static bl_status_t improve(bl__portfolio_t *portfolio, bl__result_t *result, bl__local_search_rounds_t rounds,
                           size_t evaluations, double bound) {
  bl_status_t status = BL_OK;
  if (evaluations > 0 && result->t_end > bound * (1 + EXACT)) {
    status = bl__local_search(result->schedule, portfolio->costs, portfolio->limits, portfolio->recompute, rounds,
                              evaluations, bound * (1 + EXACT), &result->t_end);
    if (status == BL_OK) {
      status = measure(portfolio, result->schedule, &result->worst_peak);
    }
  }
  return status;
}

// Returns the maximum of orders that the local search of a portfolio times.
static size_t orders_of(const bl__portfolio_t *portfolio, size_t count) {
  const size_t most = portfolio->recompute.on && count * BL__PORTFOLIO_ORDERS_EACH < BL__PORTFOLIO_ORDERS
                          ? count * BL__PORTFOLIO_ORDERS_EACH
                          : BL__PORTFOLIO_ORDERS;
  const size_t orders = (size_t)by_size(count, BL__PORTFOLIO_LOCAL_SEARCH, BL__PORTFOLIO_LOCAL_SEARCH_LARGE,
                                        BL__PORTFOLIO_LOCAL_SEARCH_HUGE) /
                        count;
  return (size_t)((double)(orders < most ? orders : most) * portfolio->effort);
}

// Polishes the best result further. `alike`: how many of the polished results have the same end.
static bl_status_t search_further(bl__portfolio_t *portfolio, bl__result_t *best, uint32_t alike, size_t orders,
                                  double bound) {
  if (!portfolio->recompute.on) {
    return improve(portfolio, best, BL__LOCAL_SEARCH_FRESH, orders / 2, bound);
  }
  return alike == BL__PORTFOLIO_LOCAL_SEARCHED ? improve(portfolio, best, BL__LOCAL_SEARCH_LAST, orders / 8, bound)
                                               : improve(portfolio, best, BL__LOCAL_SEARCH_FURTHER, orders / 4, bound);
}

// Orders that recompute have more operations than their lists, and are searched with R and without. So they get less
// search if it has improved nothing.
bl_status_t bl__portfolio_search_locally(bl__portfolio_t *portfolio) {
  if (portfolio->found == 0) {
    return BL_NOT_FOUND;
  }
  double bound;
  bl__result_t *results = portfolio->results, *best = results;
  bl_status_t status =
      bl__bound_within(best->schedule, portfolio->costs, portfolio->limits, portfolio->recompute, &bound);
  const size_t orders = orders_of(portfolio, bl_schedule_op_count(best->schedule));
  const bool brief = portfolio->recompute.on && portfolio->follower == NULL; // with other costs all results are bases
  const double enough = brief ? bound * (1 + EXACT) : 0;
  // Half of the search is for the first few results, the other half or less for the best of them.
  const uint32_t tried =
      portfolio->found < BL__PORTFOLIO_LOCAL_SEARCHED ? portfolio->found : BL__PORTFOLIO_LOCAL_SEARCHED;
  for (uint32_t r = 0; r < tried && best->t_end > enough && status == BL_OK; r++) {
    status = improve(portfolio, &results[r], BL__LOCAL_SEARCH_FRESH, orders / 2 / tried, bound);
    best = status == BL_OK && better(&results[r], best) ? &results[r] : best;
  }
  uint32_t alike = 0;
  for (uint32_t r = 0; r < tried; r++) {
    alike += results[r].t_end <= best->t_end * (1 + SAME);
  }
  if (status == BL_OK) {
    status = search_further(portfolio, best, alike, orders, bound);
  }
  bl__result_t kept = results[0];
  results[0] = *best;
  *best = kept;
  return status;
}

bool bl__portfolio_is_done(const bl__portfolio_t *portfolio) {
  const bl__result_t *best = &portfolio->results[0];
  double bound;
  return portfolio->found > 0 &&
         bl__bound_within(best->schedule, portfolio->costs, portfolio->limits, portfolio->recompute, &bound) == BL_OK &&
         best->t_end <= bound * (1 + EXACT);
}

bl_status_t bl__portfolio_end(bl__portfolio_t *portfolio, bl_status_t status, bl_schedule_t *schedule) {
  if (status == BL_OK) {
    status = bl__portfolio_search_locally(portfolio);
  }
  if (status == BL_OK) {
    bl_op_list_t *lists = schedule->lists;
    schedule->lists = portfolio->results[0].schedule->lists;
    portfolio->results[0].schedule->lists = lists;
  }
  return status;
}

void bl__portfolio_cleanup(bl__portfolio_t *portfolio) {
  for (uint32_t r = 0; r <= BL__PORTFOLIO_KEPT; r++) {
    bl_schedule_destroy(portfolio->results[r].schedule);
  }
  bl_schedule_destroy(portfolio->drained);
  free(portfolio->tried);
  free(portfolio->peaks);
}
