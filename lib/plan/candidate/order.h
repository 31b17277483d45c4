// SPDX-License-Identifier: Apache-2.0
// Private to lib/plan: orders of operations, made once for all candidates that share them.
//
//   bl__order_cache_t cache = {.exact = true};
//   bl__order_find(&cache, &request, tensor, &schedule);   // the caller's
//   bl__order_cache_cleanup(&cache);
#ifndef BALLAST_PLAN_ORDER_H
#define BALLAST_PLAN_ORDER_H

#include "schedule/generate.h"

#define BL__ORDERS_KEPT 24

typedef struct bl__order {
  bl_schedule_t *schedule; // NULL: none
  const char *name;        // representative of all names that make the same search
  uint32_t tensor, group;
  bool recompute;          // the order contains R operations
  bool pooled, hosted;     // it was searched for balancing, and for memory of the host
  double memory, slots;    // limits of the search; 0: the schedule's own limit
  bl_chunk_costs_t *costs; // [virtual stages] costs of the search, with `boundary`
  double boundary, path, effort;
} bl__order_t;

// Cached orders. Candidates that differ in what is kept, where it is parked or how attention is computed share the
// orders of their shape, so an order may be made for the costs of another candidate. With `exact`, candidates share
// only orders made for the same costs.
typedef struct bl__order_cache {
  bool exact;
  bl__order_t orders[BL__ORDERS_KEPT]; // not exact: all of one shape
  uint32_t next;                       // index to replace next
} bl__order_cache_t;

void bl__order_cache_cleanup(bl__order_cache_t *cache);

// Returns the order for a request with `tensor` devices per stage, from the cache or newly made. The caller destroys
// it. BL_INVALID: the schedule does not have this shape (says why). BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__order_find(bl__order_cache_t *cache, const bl_schedule_request_t *request, uint32_t tensor,
                                       bl_schedule_t **order, bl_error_t *err);

// Returns a cost as in a job file, with six digits. A search with the written costs then gives the same order.
double bl__order_cost(double seconds);

#endif
