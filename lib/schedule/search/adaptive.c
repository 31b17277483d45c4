// SPDX-License-Identifier: Apache-2.0
// adaptive: the fastest order of two chunks a stage within a memory limit. On a V (Qi et al., NeurIPS 2024) memory is
// even, but a micro-batch passes every boundary twice as often as with one chunk. If boundaries are slow, this costs
// more than the V gains. So the search also tries adjacent chunks: it starts from orders of one chunk a stage and cuts
// each operation in two. This takes no more time and no more memory, so the result is never slower than 1f1b,
// eager-1f1b or gpipe within the same memory. With few micro-batches a loop, as in grouped-interleaved, may warm up
// faster. Both placements get a short search first, and a full one if that comes near the V. Finally the search tries
// the orders of all other names that stay within the limit, so that none of them is faster in that memory (named.h).
#include "schedule/ir/peaks.h"
#include "schedule/ir/recompute.h"
#include "schedule/ir/timing.h"
#include "schedule/search/cut.h"
#include "schedule/search/named.h"
#include "schedule/search/search.h"
#include "schedule/search/searched.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_EFFORT 0.1  // share of the search that is tried first on a placement
#define NEAR         1.05 // a full one follows if the end is below this multiple of the best end so far

// Cuts an order of one chunk a stage and tries it, even if the budget is too small for it.
static bl_status_t try_cut(const bl_schedule_request_t *request, bl__generator_t *generate, bl__portfolio_t *portfolio,
                           bl_schedule_t *base) {
  bl_schedule_t *whole;
  bl_schedule_request_t wanted = *request;
  wanted.chunks = 1;
  bl_status_t status = bl__generate_with(generate, BL_PLACEMENT_LOOPED, &wanted, &whole, NULL);
  if (status != BL_OK) {
    return status;
  }
  status = bl__cut_order(whole, base);
  bl_schedule_destroy(whole);
  size_t count = bl_schedule_op_count(base);
  portfolio->budget = portfolio->budget < count ? count : portfolio->budget;
  return status == BL_OK ? bl__portfolio_try(portfolio, base) : status;
}

static bl_status_t try_cut_orders(const bl_schedule_request_t *request, const bl_costs_t *costs,
                                  bl__portfolio_t *portfolio, bl_schedule_t *base) {
  static bl__generator_t *const generators[] = {bl__generate_1f1b, bl__generate_eager_1f1b, bl__generate_gpipe,
                                                bl__generate_zero_bubble};
  bl_schedule_request_t wanted = *request;
  bl_status_t status = BL_OK;
  wanted.costs = costs;
  bl__portfolio_renew(portfolio, sizeof generators / sizeof generators[0] + 1);
  for (size_t k = 0; k < sizeof generators / sizeof generators[0] && status == BL_OK; k++) {
    status = try_cut(&wanted, generators[k], portfolio, base);
  }
  return status == BL_OK ? bl__portfolio_refine(portfolio, base) : status;
}

// Fills `schedule`, whose chunks are adjacent.
static bl_status_t search_side_by_side(const bl_schedule_request_t *request, const uint32_t *limits,
                                       bl_schedule_t *schedule) {
  bl__portfolio_t portfolio = {0};
  bl_schedule_t *base = NULL;
  bl_chunk_costs_t *whole = bl__cut_costs(request->costs, request->stages, schedule->chunks);
  bl_status_t status = whole != NULL ? bl_schedule_create_like(schedule, &base, NULL) : BL_EXHAUSTED;
  bl_costs_t costs = *request->costs;
  costs.chunks = whole;
  if (status == BL_OK) {
    status = bl__portfolio_init(&portfolio, schedule, request->costs, limits, 0, request->effort);
  }
  bl__portfolio_recompute(&portfolio, request);
  if (status == BL_OK) {
    status = try_cut_orders(request, &costs, &portfolio, base);
  }
  status = bl__portfolio_end(&portfolio, status, schedule);
  bl__portfolio_cleanup(&portfolio);
  bl_schedule_destroy(base);
  free(whole);
  return status;
}

// Fills `schedule`, whose chunks are looped, with groups as large as memory allows. BL_NOT_FOUND: not even the smallest
// groups fit.
static bl_status_t search_loop(const bl_schedule_request_t *request, const uint32_t *limits, bl_schedule_t *schedule) {
  uint32_t p = request->stages, room = UINT32_MAX;
  bl_schedule_request_t wanted = *request;
  bl_schedule_t *base;
  for (uint32_t s = 0; s < p; s++) {
    room = limits[s] < room ? limits[s] : room;
  }
  if (room < p + (p + 1) / 2) {
    return BL_NOT_FOUND;
  }
  wanted.group = room - p < p ? room - p : p;
  bl_status_t status = bl_schedule_create_like(schedule, &base, NULL);
  if (status != BL_OK) {
    return status;
  }
  status = bl__grouped_interleaved_base(base, wanted.group);
  if (status == BL_OK) {
    status = bl__improve((bl__orders_t){&base, 1, bl__generate_grouped_interleaved}, &wanted, limits, schedule);
  }
  bl_schedule_destroy(base);
  return status == BL_INVALID ? BL_NOT_FOUND : status;
}

// Sets *bound so that no order of the placement of `side` ends before it within `limits`; NULL: without limits. `side`
// is scratch and empty afterwards.
static bl_status_t bound_of(const bl_schedule_request_t *request, const uint32_t *limits, bl_schedule_t *side,
                            double *bound) {
  static const bl_op_type_t types[] = {BL_OP_F, BL_OP_I, BL_OP_W};
  bl_status_t status = BL_OK;
  for (uint32_t s = 0; s < side->virtual_stages; s++) {
    for (uint32_t i = 0; i < 3 * side->micro_batches && status == BL_OK; i++) {
      status = bl__schedule_emit(side, types[i % 3], s, i / 3);
    }
  }
  if (status == BL_OK) {
    status = bl__bound_within(side, request->costs, limits, bl__recompute_options_of(request, side), bound);
  }
  for (uint32_t s = 0; s < side->stages; s++) {
    side->lists[s].count = 0;
  }
  return status;
}

bl_status_t bl__adaptive_bound(const bl_schedule_request_t *request, const bl_costs_t *costs, const bl_schedule_t *made,
                               double *bound) {
  static const bl_placement_t placements[] = {BL_PLACEMENT_V, BL_PLACEMENT_CONTIGUOUS, BL_PLACEMENT_LOOPED};
  bl_schedule_request_t priced = *request;
  bl_status_t status = BL_OK;
  priced.costs = costs;
  *bound = INFINITY;
  for (size_t k = 0; k < sizeof placements / sizeof placements[0] && status == BL_OK; k++) {
    bl_schedule_t *side;
    double own = 0;
    status =
        bl_schedule_create(made->name, placements[k], made->stages, made->chunks, made->micro_batches, &side, NULL);
    if (status == BL_OK) {
      status = bound_of(&priced, NULL, side, &own);
      bl_schedule_destroy(side);
    }
    *bound = fmin(*bound, own);
  }
  return status;
}

static bl_status_t search_placement(const bl_schedule_request_t *request, const uint32_t *limits, double effort,
                                    bl_schedule_t *side, double *t_end) {
  bl_schedule_request_t wanted = *request;
  wanted.effort = effort;
  bl_status_t status = side->placement == BL_PLACEMENT_CONTIGUOUS ? search_side_by_side(&wanted, limits, side)
                                                                  : search_loop(&wanted, limits, side);
  return status == BL_OK ? bl__dispatch_end(side, request->costs, bl__recompute_options_of(request, side), t_end)
                         : status;
}

static void swap(bl_schedule_t *a, bl_schedule_t *b) {
  bl_schedule_t kept = *a;
  *a = *b;
  *b = kept;
}

// Puts an order of another placement into `best` if it ends before *t_end, the end of `best`. Sets *searched if the
// full search was done.
static bl_status_t try_placement(const bl_schedule_request_t *request, const uint32_t *limits, bl_placement_t placement,
                                 bl_schedule_t *best, double *t_end, bool *searched) {
  const double efforts[] = {FIRST_EFFORT * request->effort, request->effort};
  bl_schedule_t *side;
  double bound = 0, side_end = INFINITY;
  bl_status_t status =
      bl_schedule_create(best->name, placement, best->stages, best->chunks, best->micro_batches, &side, NULL);
  if (status != BL_OK) {
    return status;
  }
  status = bound_of(request, limits, side, &bound);
  for (int k = 0; k < 2 && status == BL_OK && bound < *t_end * (1 - 1e-9); k++) {
    status = search_placement(request, limits, efforts[k], side, &side_end);
    bool near = side_end < *t_end * NEAR;
    *searched = status == BL_OK && k == 1;
    if (status == BL_OK && side_end < *t_end * (1 - 1e-9)) {
      *t_end = side_end;
      swap(best, side);
      memcpy(side->stage_of, best->stage_of, best->virtual_stages * sizeof *side->stage_of); // for the second search
      side->placement = placement;
    }
    if (!near) {
      break;
    }
  }
  bl_schedule_destroy(side);
  return status == BL_NOT_FOUND ? BL_OK : status;
}

bl_status_t bl__generate_adaptive(const bl_schedule_request_t *request, bl_schedule_t *schedule, bl_error_t *err) {
  double t_end = INFINITY;
  bool beside = false, looped = false;
  bl_status_t status = bl__generate_zb_v(request, schedule, err);
  if (status != BL_OK || request->stages == 1) {
    return status;
  }
  uint32_t *limits = malloc(request->stages * sizeof *limits);
  if (limits == NULL) {
    return BL_EXHAUSTED;
  }
  bl__memory_limits(schedule, request->memory, request->memory_of_stage, limits);
  status = bl__dispatch_end(schedule, request->costs, bl__recompute_options_of(request, schedule), &t_end);
  if (status == BL_OK && !request->keep_placement) {
    status = try_placement(request, limits, BL_PLACEMENT_CONTIGUOUS, schedule, &t_end, &beside);
  }
  if (status == BL_OK && !request->keep_placement) {
    status = try_placement(request, limits, BL_PLACEMENT_LOOPED, schedule, &t_end, &looped);
  }
  if (status == BL_OK) {
    status = bl__take_named(request, limits, looped, schedule, &t_end);
  }
  free(limits);
  return status;
}

// Sets *within: `whole`, of one chunk a stage, stays within the memory of the request.
static bl_status_t stays_within(const bl_schedule_request_t *request, const bl_schedule_t *whole, bool *within) {
  const double memory = request->memory > 0 ? request->memory : request->stages;
  uint32_t *limits = malloc(2 * (size_t)whole->stages * sizeof *limits);
  bl_status_t status = limits != NULL ? bl_schedule_peak_slots(whole, limits + whole->stages) : BL_EXHAUSTED;
  *within = status == BL_OK;
  if (status == BL_OK) {
    bl__memory_limits(whole, memory, request->memory_of_stage, limits);
  }
  for (uint32_t s = 0; s < whole->stages && *within; s++) {
    *within = limits[whole->stages + s] <= limits[s];
  }
  free(limits);
  return status;
}

// Sets *faster: `whole` ends before `made`, both with their R's. Times them with timing.h, because a search lets R
// start no earlier than the operation that produces the gradient for its backward (in_order.c, ready_at). That is too
// late if R takes longer than that operation.
static bl_status_t is_faster(const bl_schedule_request_t *request, const bl_schedule_t *whole,
                             const bl_schedule_t *made, bool *faster) {
  const bl_costs_t unit = BL_COSTS_UNIT, *costs = request->costs != NULL ? request->costs : &unit;
  bl_chunk_costs_t *chunks = bl__cut_costs(costs, whole->stages, made->chunks);
  bl_costs_t whole_ones = *costs;
  double ends[2] = {INFINITY, INFINITY};
  whole_ones.chunks = chunks;
  bl_status_t status = chunks != NULL ? bl__makespan(whole, &whole_ones, &ends[0]) : BL_EXHAUSTED;
  if (status == BL_OK) {
    status = bl__makespan(made, costs, &ends[1]);
  }
  *faster = status == BL_OK && ends[0] < ends[1] * (1 - 1e-12);
  free(chunks);
  return status;
}

bl_status_t bl__adaptive_take_1f1b(const bl_schedule_request_t *request, bl_schedule_t **made) {
  const bl_schedule_t *shape = *made;
  const bl__recompute_options_t recompute = bl__recompute_options_of(request, shape);
  const bl_schedule_request_t wanted = {
      .name = "1f1b", .stages = shape->stages, .micro_batches = shape->micro_batches, .chunks = 1};
  bl_schedule_t *whole, *cut = NULL;
  bool better = false;
  if (recompute.chunks > 0 || (recompute.slots > 0 && recompute.slots < shape->chunks) || shape->slices > 1) {
    return BL_OK;
  }
  bl_status_t status = bl__generate_with(bl__generate_1f1b, BL_PLACEMENT_LOOPED, &wanted, &whole, NULL);
  if (status != BL_OK) {
    return status;
  }
  status = stays_within(request, whole, &better);
  if (status == BL_OK && better) {
    status = bl_schedule_recompute(whole, NULL);
  }
  if (status == BL_OK && better) {
    status = is_faster(request, whole, shape, &better);
  }
  if (status == BL_OK && better) {
    status = bl_schedule_create(shape->name, BL_PLACEMENT_CONTIGUOUS, shape->stages, shape->chunks,
                                shape->micro_batches, &cut, NULL);
  }
  if (status == BL_OK && better) {
    status = bl__cut_order(whole, cut);
  }
  if (status == BL_OK && better) {
    swap(*made, cut);
  }
  bl_schedule_destroy(cut);
  bl_schedule_destroy(whole);
  return status;
}
