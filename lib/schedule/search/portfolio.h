// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/schedule: tries base orders under several dispatch rules and keeps the fastest result within
// the limits, of equally fast ones that with the lower worst peak.
//
//   bl__portfolio_t portfolio;
//   status = bl__portfolio_init(&portfolio, schedule, costs, limits, number of bases, effort);
//   status = bl__portfolio_try(&portfolio, base);          // for every base order
//   status = bl__portfolio_end(&portfolio, status, schedule); // fills the lists of `schedule`
//   bl__portfolio_cleanup(&portfolio);
#ifndef BALLAST_SCHEDULE_PORTFOLIO_H
#define BALLAST_SCHEDULE_PORTFOLIO_H

#include "schedule/generate.h"
#include "schedule/search/dispatch.h"

// Results that are kept: the local search may bring the second best further than the best.
#define BL__PORTFOLIO_KEPT     8
#define BL__PORTFOLIO_POLISHED 4 // of them that the local search goes on from

typedef struct bl__result {
  bl_schedule_t *schedule; // of the shape to fill
  double t_end;
  uint32_t worst_peak; // blocks
} bl__result_t;

// A base order that was tried.
typedef struct bl__tried {
  uint64_t digest; // of its lists
  uint32_t rules;  // that were tried, besides the base as it is
} bl__tried_t;

typedef struct bl__portfolio {
  const bl_costs_t *costs;
  const uint32_t *limits;                       // [stages] blocks
  uint32_t *peaks;                              // [stages]
  bl__result_t results[BL__PORTFOLIO_KEPT + 1]; // the best first; the last one is room for the next attempt
  uint32_t found;
  bl__tried_t *tried; // [tried_count]: searches come upon the same base again and again
  size_t tried_count, tried_capacity;
  bl__again_t again;              // of the request, by bl__portfolio_recompute
  bl_schedule_t *drained;         // a base whose R's would fill too many slots, changed; or NULL
  double effort;                  // share of the usual search
  size_t budget;                  // operations that may still be dispatched
  uint32_t bases;                 // base orders still to come
  struct bl__portfolio *follower; // with other costs: also times every order that is tried here, as it is; or NULL
} bl__portfolio_t;

// Operations that one search may dispatch, and that the local search after it may time, by the operations of the
// schedule: large ones have the least to gain.
#define BL__PORTFOLIO_BUDGET       4000000
#define BL__PORTFOLIO_POLISH       150000000
#define BL__PORTFOLIO_LARGE        12000 // operations of a schedule, above which it gets less
#define BL__PORTFOLIO_BUDGET_LARGE 3000000
#define BL__PORTFOLIO_POLISH_LARGE 40000000
#define BL__PORTFOLIO_HUGE         30000
#define BL__PORTFOLIO_BUDGET_HUGE  1000000
#define BL__PORTFOLIO_POLISH_HUGE  2000000
#define BL__PORTFOLIO_ORDERS       150000 // orders that the local search times at most
#define BL__PORTFOLIO_OTHER_EFFORT 0.3    // share of the search with other costs, before the one with the real ones

BL_MUST_USE bl_status_t bl__portfolio_init(bl__portfolio_t *portfolio, const bl_schedule_t *shape,
                                           const bl_costs_t *costs, const uint32_t *limits, uint32_t bases,
                                           double effort);
// Takes that over.
void bl__portfolio_recompute(bl__portfolio_t *portfolio, const bl_schedule_request_t *request);
// A new budget for `bases` further base orders.
void bl__portfolio_renew(bl__portfolio_t *portfolio, uint32_t bases);
// A new budget for one further base order: so many dispatches, whatever the effort.
void bl__portfolio_grant(bl__portfolio_t *portfolio, uint32_t dispatches);
// A base order that cannot run or does not fit within the limits is passed over, as is everything once the budget is spent and
// something was found. BL_EXHAUSTED without memory.
BL_MUST_USE bl_status_t bl__portfolio_try(bl__portfolio_t *portfolio, const bl_schedule_t *base);
// Whether a base of `count` operations would be looked at, or the budget is spent and it need not be made.
bool bl__portfolio_wants(const bl__portfolio_t *portfolio, size_t count);
// Tries the best result itself as a base, again and again while that is an improvement. `base` is scratch.
BL_MUST_USE bl_status_t bl__portfolio_refine(bl__portfolio_t *portfolio, bl_schedule_t *base);
// The end of a search, which has come to `status`: polishes and moves the best result into the lists of `schedule`.
BL_MUST_USE bl_status_t bl__portfolio_end(bl__portfolio_t *portfolio, bl_status_t status, bl_schedule_t *schedule);
void bl__portfolio_cleanup(bl__portfolio_t *portfolio);

// Tries base orders for `costs`, whatever they are (R merged into I), with bl__portfolio_try.
typedef bl_status_t bl__bases_t(void *context, const bl_costs_t *costs, bl__portfolio_t *portfolio);
// A whole search: the base orders with the real costs; unless one of them ends as early as possible, the same with other
// costs, whose results and the extension of a schedule for fewer micro-batches (extend.h) are further
// bases; then the local search. The best goes into the lists of `schedule`. BL_NOT_FOUND when nothing fitted the limits.
BL_MUST_USE bl_status_t bl__search(bl__bases_t *bases, void *context, const bl_schedule_request_t *request,
                                   const uint32_t *limits, bl_schedule_t *schedule);
// The same from base orders that do not depend on costs.
BL_MUST_USE bl_status_t bl__improve(bl_schedule_t *const *bases, uint32_t count, const bl_schedule_request_t *request,
                                    const uint32_t *limits, bl_schedule_t *schedule);
// The same within what `holds` holds: of every stage its own peak (`each`), or the worst one for all.
BL_MUST_USE bl_status_t bl__improve_within(const bl_schedule_t *holds, bool each, bl_schedule_t *const *bases,
                                           uint32_t count, const bl_schedule_request_t *request,
                                           bl_schedule_t *schedule);

// Costs for who makes base orders of a schedule that recomputes: I with the R before it. `merged` is `costs` itself
// without recomputation; otherwise merged->chunks is on the heap, if chunks differ. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__costs_merge(const bl_costs_t *costs, bl__again_t again, const bl_schedule_t *shape,
                                        bl_costs_t *merged);
void bl__costs_merge_cleanup(const bl_costs_t *costs, bl_costs_t *merged);

// Limits in blocks from those of a request, in device-micro-batches: `limits` has room for [stages].
void bl__memory_limits(const bl_schedule_t *shape, double memory, const double *memory_of_stage, uint32_t *limits);
// BL_INVALID names the stage whose limit holds fewer than `least` blocks, which is one device-micro-batch.
BL_MUST_USE bl_status_t bl__memory_limits_check(const bl_schedule_request_t *request, double memory,
                                                const uint32_t *limits, uint32_t least, bl_error_t *err);
// What the request says of recomputation, for a schedule of that shape.
bl__again_t bl__again_of(const bl_schedule_request_t *request, const bl_schedule_t *shape);

#endif
