// SPDX-License-Identifier: Apache-2.0
// Private to lib/schedule: tries base orders under several dispatch rules and keeps the fastest results within the
// limits. Of equally fast ones it prefers the one with the lower worst peak.
//
//   bl__portfolio_t portfolio;
//   status = bl__portfolio_init(&portfolio, schedule, costs, limits, number of bases, effort);
//   status = bl__portfolio_try(&portfolio, base);          // for every base order
//   status = bl__portfolio_end(&portfolio, status, schedule); // fills the lists of `schedule`
//   bl__portfolio_cleanup(&portfolio);
#ifndef BALLAST_SCHEDULE_PORTFOLIO_H
#define BALLAST_SCHEDULE_PORTFOLIO_H

#include "schedule/search/request_limits.h"

// Results that are kept: the local search may improve the second best further than the best.
#define BL__PORTFOLIO_KEPT           8
#define BL__PORTFOLIO_LOCAL_SEARCHED 4 // of them, those that the local search starts from

typedef struct bl__result {
  bl_schedule_t *schedule; // of the shape to fill
  double t_end;
  uint32_t worst_peak; // blocks
} bl__result_t;

// A base order that was tried.
typedef struct bl__tried {
  uint64_t digest; // of its lists
  uint32_t rules;  // rules that were tried, in addition to the unchanged base
} bl__tried_t;

typedef struct bl__portfolio {
  const bl_costs_t *costs;
  const uint32_t *limits;                       // [stages] blocks
  uint32_t *peaks;                              // [stages]
  bl__result_t results[BL__PORTFOLIO_KEPT + 1]; // the best first; the last entry is scratch for the next attempt
  uint32_t found;                               // results that are kept
  bl__tried_t *tried;                           // [tried_count]: searches produce the same base repeatedly
  size_t tried_count, tried_capacity;
  bl__recompute_options_t recompute; // of the request, by bl__portfolio_recompute
  bl_schedule_t *drained;            // scratch: a base changed because its R's would fill too many slots; or NULL
  double effort;                     // share of the usual search
  size_t budget;                     // operations that may still be dispatched
  uint32_t bases;                    // base orders still to be tried
  struct bl__portfolio *follower;    // with other costs: also times every order that is tried here, unchanged; or NULL
} bl__portfolio_t;

// Operations that one search may dispatch, and that the local search after it may time, by the number of operations of
// the schedule: large schedules have the least to gain.
#define BL__PORTFOLIO_BUDGET             4000000
#define BL__PORTFOLIO_LOCAL_SEARCH       150000000
#define BL__PORTFOLIO_LARGE              12000 // a schedule with more operations gets less
#define BL__PORTFOLIO_BUDGET_LARGE       3000000
#define BL__PORTFOLIO_LOCAL_SEARCH_LARGE 40000000
#define BL__PORTFOLIO_HUGE               30000
#define BL__PORTFOLIO_BUDGET_HUGE        1000000
#define BL__PORTFOLIO_LOCAL_SEARCH_HUGE  2000000
#define BL__PORTFOLIO_ORDERS             150000 // maximum of orders that the local search times
#define BL__PORTFOLIO_ORDERS_EACH        800    // the same per operation of the schedule, with recomputation
#define BL__PORTFOLIO_OTHER_EFFORT       0.3    // share of the usual search for the one with other costs

BL_MUST_USE bl_status_t bl__portfolio_init(bl__portfolio_t *portfolio, const bl_schedule_t *shape,
                                           const bl_costs_t *costs, const uint32_t *limits, uint32_t bases,
                                           double effort);
// Sets the recomputation options of the request. No effect on a portfolio whose init failed.
void bl__portfolio_recompute(bl__portfolio_t *portfolio, const bl_schedule_request_t *request);
// Sets a new budget for `bases` further base orders.
void bl__portfolio_renew(bl__portfolio_t *portfolio, uint32_t bases);
// Sets a new budget for one further base order: `dispatches` of it, whatever the effort.
void bl__portfolio_grant(bl__portfolio_t *portfolio, uint32_t dispatches);
// Tries a base order under as many rules as its share of the budget allows. Skips a base that cannot run or exceeds the
// limits, and every base once the budget is spent and a result was found. BL_EXHAUSTED without memory.
BL_MUST_USE bl_status_t bl__portfolio_try(bl__portfolio_t *portfolio, const bl_schedule_t *base);
// Returns whether a base of `count` operations would be tried. If not, the caller need not make it.
bool bl__portfolio_wants(const bl__portfolio_t *portfolio, size_t count);
// Tries the best result itself as a base, as long as that improves it. `base` is scratch.
BL_MUST_USE bl_status_t bl__portfolio_refine(bl__portfolio_t *portfolio, bl_schedule_t *base);
// Ends a search whose status is `status`: if that is BL_OK, polishes the results and moves the best one into the lists
// of `schedule`. Returns `status` otherwise.
BL_MUST_USE bl_status_t bl__portfolio_end(bl__portfolio_t *portfolio, bl_status_t status, bl_schedule_t *schedule);
// Polishes the kept results and puts the best first. BL_NOT_FOUND if nothing fits.
BL_MUST_USE bl_status_t bl__portfolio_search_locally(bl__portfolio_t *portfolio);
// Returns whether the best result ends at its lower bound within the limits.
bool bl__portfolio_is_done(const bl__portfolio_t *portfolio);
void bl__portfolio_cleanup(bl__portfolio_t *portfolio);

#endif
