// SPDX-License-Identifier: Apache-2.0
#include "plan/order.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void forget(bl__order_t *order) {
  bl_schedule_destroy(order->schedule);
  free(order->costs);
  *order = (bl__order_t){0};
}

void bl__order_cache_cleanup(bl__order_cache_t *cache) {
  for (uint32_t i = 0; i < BL__ORDERS_KEPT; i++) {
    forget(&cache->orders[i]);
  }
}

static bl_status_t copy_order(const bl_schedule_t *from, bl_schedule_t **copy) {
  bl_schedule_t *made;
  bl_status_t status = bl_schedule_create_like(from, &made, NULL);
  if (status != BL_OK) {
    return status;
  }
  status = bl_schedule_copy_lists(from, made);
  if (status != BL_OK) {
    bl_schedule_destroy(made);
    return status;
  }
  *copy = made;
  return BL_OK;
}

double bl__order_cost(double seconds) {
  char text[32];
  snprintf(text, sizeof text, "%.6g", seconds);
  return strtod(text, NULL);
}

static bl_status_t generate(const bl_schedule_request_t *request, bl_schedule_t **order) {
  bl_status_t status = bl_schedule_generate(request, order, NULL);
  return status == BL_OK || status == BL_EXHAUSTED ? status : BL_INVALID;
}

static size_t cost_bytes(const bl_schedule_request_t *request) {
  return (size_t)request->stages * request->chunks * sizeof(bl_chunk_costs_t);
}

static bool is_shaped(const bl__order_t *order, const bl_schedule_request_t *request, uint32_t tensor) {
  const bl_schedule_t *schedule = order->schedule;
  return schedule != NULL && strcmp(order->name, request->name) == 0 && schedule->stages == request->stages &&
         schedule->chunks == request->chunks && schedule->micro_batches == request->micro_batches &&
         order->tensor == tensor;
}

static bool is_of(const bl__order_t *order, const bl_schedule_request_t *request, uint32_t tensor, bool exact) {
  bool same = is_shaped(order, request, tensor) && order->recompute == request->recompute &&
              order->pooled == request->pooled && order->memory == request->memory && order->slots == request->slots;
  return same && (!exact || (order->effort == request->effort && order->boundary == request->costs->boundary &&
                             memcmp(order->costs, request->costs->chunks, cost_bytes(request)) == 0));
}

// In place of the one that has been there for longest; not exact: of all of another shape.
static bl_status_t keep(bl__order_cache_t *cache, const bl_schedule_request_t *request, uint32_t tensor,
                        const bl_schedule_t *made) {
  bl__order_t order = {.name = request->name,
                       .tensor = tensor,
                       .recompute = request->recompute,
                       .pooled = request->pooled,
                       .memory = request->memory,
                       .slots = request->slots,
                       .costs = malloc(cost_bytes(request)),
                       .boundary = request->costs->boundary,
                       .effort = request->effort};
  if (order.costs == NULL || copy_order(made, &order.schedule) != BL_OK) {
    free(order.costs);
    return BL_EXHAUSTED;
  }
  memcpy(order.costs, request->costs->chunks, cost_bytes(request));
  if (!cache->exact && !is_shaped(&cache->orders[0], request, tensor)) {
    bl__order_cache_cleanup(cache);
    cache->next = 0;
  }
  forget(&cache->orders[cache->next]);
  cache->orders[cache->next] = order;
  cache->next = (cache->next + 1) % BL__ORDERS_KEPT;
  return BL_OK;
}

bl_status_t bl__order_find(bl__order_cache_t *cache, const bl_schedule_request_t *request, uint32_t tensor,
                           bl_schedule_t **order) {
  for (uint32_t i = 0; i < BL__ORDERS_KEPT; i++) {
    if (is_of(&cache->orders[i], request, tensor, cache->exact)) {
      return copy_order(cache->orders[i].schedule, order);
    }
  }
  bl_schedule_t *made;
  bl_status_t status = generate(request, &made);
  if (status != BL_OK) {
    return status;
  }
  status = keep(cache, request, tensor, made);
  if (status != BL_OK) {
    bl_schedule_destroy(made);
    return status;
  }
  *order = made;
  return BL_OK;
}
