// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/plan: orders of operations, made once for candidates that share them.
//
//   bl__order_cache_t cache = {.exact = true};
//   status = bl__order_find(&cache, &request, tensor, &schedule);   // the caller's
//   bl__order_cache_cleanup(&cache);
#ifndef BALLAST_PLAN_ORDER_H
#define BALLAST_PLAN_ORDER_H

#include "schedule/generate.h"

#define BL__ORDERS_KEPT 24

typedef struct bl__order {
  bl_schedule_t *schedule; // NULL: none
  const char *name;        // of those that search the same, the one that stands for all
  uint32_t tensor, group;
  bool recompute;          // the order has its R's
  bool pooled;             // it was made for balancing
  double memory, slots;    // within these; 0: the schedule's own limit
  bl_chunk_costs_t *costs; // [virtual stages] that it was made for, with `boundary`
  double boundary, effort;
} bl__order_t;

// Orders that were made. Ways that differ in what is kept, where it is parked or how attention computes share those of
// their shape, so that one may be made for the costs of another; exact: those that were made for the same costs.
typedef struct bl__order_cache {
  bool exact;
  bl__order_t orders[BL__ORDERS_KEPT]; // not exact: all of one shape
  uint32_t next;                       // to be replaced
} bl__order_cache_t;

void bl__order_cache_cleanup(bl__order_cache_t *cache);

// The order of a request of stages that are `tensor` devices each, from the cache or made anew. The caller destroys it.
// BL_INVALID: a shape that the schedule does not have (says why). BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__order_find(bl__order_cache_t *cache, const bl_schedule_request_t *request, uint32_t tensor,
                                       bl_schedule_t **order, bl_error_t *err);

// A cost as a job file has it, with six digits: what is searched with what is written gives the same order.
double bl__order_cost(double seconds);

#endif
