// SPDX-License-Identifier: Apache-2.0
// Private to lib/schedule: a complete search for a fast order, from its base orders to its result.
#ifndef BALLAST_SCHEDULE_SEARCH_H
#define BALLAST_SCHEDULE_SEARCH_H

#include "schedule/generate/generators.h"
#include "schedule/search/portfolio.h"

// The base orders of a search.
typedef struct bl__bases {
  // Tries base orders for `costs`, whatever they are (R merged into I), with bl__portfolio_try.
  bl_status_t (*try)(void *context, const bl_costs_t *costs, bl__portfolio_t *portfolio);
  // The same with other base orders. They are searched separately, so that neither kind displaces the other. NULL:
  // none.
  bl_status_t (*try_apart)(void *context, const bl_costs_t *costs, bl__portfolio_t *portfolio);
  void *context;
  bl__generator_t *generate; // makes the same schedule for fewer micro-batches; NULL: none
} bl__bases_t;

// Searches and fills the lists of `schedule` with the best order. First tries the base orders with the real costs. If
// none of them ends at its lower bound, searches them with other costs too; the results, and the extension of a
// schedule for fewer micro-batches (steady_state.h), are further bases. Then runs the local search. Stops early if a
// base order of `try_apart` ends at its lower bound within the limits. BL_NOT_FOUND if nothing fits the limits.
BL_MUST_USE bl_status_t bl__search(const bl__bases_t *bases, const bl_schedule_request_t *request,
                                   const uint32_t *limits, bl_schedule_t *schedule);

// Base orders that do not depend on costs.
typedef struct bl__orders {
  bl_schedule_t *const *orders; // [count]
  uint32_t count;
  bl__generator_t *generate; // as in bl__bases_t
} bl__orders_t;

// Searches from these orders.
BL_MUST_USE bl_status_t bl__improve(bl__orders_t orders, const bl_schedule_request_t *request, const uint32_t *limits,
                                    bl_schedule_t *schedule);
// The same with the peaks of `holds` as limits: for every stage its own (`each`), or the worst one for all.
BL_MUST_USE bl_status_t bl__improve_within(const bl_schedule_t *holds, bool each, bl__orders_t orders,
                                           const bl_schedule_request_t *request, bl_schedule_t *schedule);

#endif
