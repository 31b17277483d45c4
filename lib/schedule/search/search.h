// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/schedule: a whole search for a fast order, from where it begins to its end.
#ifndef BALLAST_SCHEDULE_SEARCH_H
#define BALLAST_SCHEDULE_SEARCH_H

#include "schedule/generate/generators.h"
#include "schedule/search/portfolio.h"

// Where a search begins.
typedef struct bl__bases {
  // Tries base orders for `costs`, whatever they are (R merged into I), with bl__portfolio_try.
  bl_status_t (*try)(void *context, const bl_costs_t *costs, bl__portfolio_t *portfolio);
  // The same with others, which are searched apart, so that neither take the place of the other; NULL: there are none.
  bl_status_t (*try_apart)(void *context, const bl_costs_t *costs, bl__portfolio_t *portfolio);
  void *context;
  bl__generator_t *generate; // makes the same for fewer micro-batches; NULL: nobody does
} bl__bases_t;

// The base orders with the real costs; unless one of them ends as early as possible, the same with other costs, whose
// results and the extension of a schedule for fewer micro-batches (steady_state.h) are further bases; then the local
// search. The best goes into the lists of `schedule`. Where base orders apart end as early as any can within the
// limits, that is all. BL_NOT_FOUND when nothing fitted the limits.
BL_MUST_USE bl_status_t bl__search(const bl__bases_t *bases, const bl_schedule_request_t *request,
                                   const uint32_t *limits, bl_schedule_t *schedule);

// Base orders that do not depend on costs.
typedef struct bl__orders {
  bl_schedule_t *const *orders; // [count]
  uint32_t count;
  bl__generator_t *generate; // as of bl__bases_t
} bl__orders_t;

// A search that begins with them.
BL_MUST_USE bl_status_t bl__improve(bl__orders_t orders, const bl_schedule_request_t *request, const uint32_t *limits,
                                    bl_schedule_t *schedule);
// The same within what `holds` holds: of every stage its own peak (`each`), or the worst one for all.
BL_MUST_USE bl_status_t bl__improve_within(const bl_schedule_t *holds, bool each, bl__orders_t orders,
                                           const bl_schedule_request_t *request, bl_schedule_t *schedule);

#endif
