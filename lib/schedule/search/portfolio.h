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

#include "schedule/search/wanted.h"

// Results that are kept: the local search may bring the second best further than the best.
#define BL__PORTFOLIO_KEPT           8
#define BL__PORTFOLIO_LOCAL_SEARCHED 4 // of them that the local search goes on from

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
  bl__recompute_options_t recompute; // of the request, by bl__portfolio_recompute
  bl_schedule_t *drained;            // a base whose R's would fill too many slots, changed; or NULL
  double effort;                     // share of the usual search
  size_t budget;                     // operations that may still be dispatched
  uint32_t bases;                    // base orders still to come
  struct bl__portfolio *follower;    // with other costs: also times every order that is tried here, as it is; or NULL
} bl__portfolio_t;

// Operations that one search may dispatch, and that the local search after it may time, by the operations of the
// schedule: large ones have the least to gain.
#define BL__PORTFOLIO_BUDGET             4000000
#define BL__PORTFOLIO_LOCAL_SEARCH       150000000
#define BL__PORTFOLIO_LARGE              12000 // operations of a schedule, above which it gets less
#define BL__PORTFOLIO_BUDGET_LARGE       3000000
#define BL__PORTFOLIO_LOCAL_SEARCH_LARGE 40000000
#define BL__PORTFOLIO_HUGE               30000
#define BL__PORTFOLIO_BUDGET_HUGE        1000000
#define BL__PORTFOLIO_LOCAL_SEARCH_HUGE  2000000
#define BL__PORTFOLIO_ORDERS             150000 // orders that the local search times at most,
#define BL__PORTFOLIO_ORDERS_EACH        800    // and with R for every operation of the schedule
#define BL__PORTFOLIO_OTHER_EFFORT       0.3 // share of the search with other costs, before the one with the real ones

BL_MUST_USE bl_status_t bl__portfolio_init(bl__portfolio_t *portfolio, const bl_schedule_t *shape,
                                           const bl_costs_t *costs, const uint32_t *limits, uint32_t bases,
                                           double effort);
// Takes that over.
void bl__portfolio_recompute(bl__portfolio_t *portfolio, const bl_schedule_request_t *request);
// A new budget for `bases` further base orders.
void bl__portfolio_renew(bl__portfolio_t *portfolio, uint32_t bases);
// A new budget for one further base order: so many dispatches, whatever the effort.
void bl__portfolio_grant(bl__portfolio_t *portfolio, uint32_t dispatches);
// A base order that cannot run or does not fit within the limits is passed over, as is everything once the budget is
// spent and something was found. BL_EXHAUSTED without memory.
BL_MUST_USE bl_status_t bl__portfolio_try(bl__portfolio_t *portfolio, const bl_schedule_t *base);
// Whether a base of `count` operations would be looked at, or the budget is spent and it need not be made.
bool bl__portfolio_wants(const bl__portfolio_t *portfolio, size_t count);
// Tries the best result itself as a base, again and again while that is an improvement. `base` is scratch.
BL_MUST_USE bl_status_t bl__portfolio_refine(bl__portfolio_t *portfolio, bl_schedule_t *base);
// The end of a search, which has come to `status`: improves and moves the best result into the lists of `schedule`.
BL_MUST_USE bl_status_t bl__portfolio_end(bl__portfolio_t *portfolio, bl_status_t status, bl_schedule_t *schedule);
// Polishes the results that were kept and puts the best first. BL_NOT_FOUND when nothing fitted.
BL_MUST_USE bl_status_t bl__portfolio_search_locally(bl__portfolio_t *portfolio);
// Is the best result as early as its lower bound within the limits?
bool bl__portfolio_is_done(const bl__portfolio_t *portfolio);
void bl__portfolio_cleanup(bl__portfolio_t *portfolio);

#endif
