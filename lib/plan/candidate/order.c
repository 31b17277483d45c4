// SPDX-License-Identifier: Apache-2.0
#include "plan/candidate/order.h"

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

static bl_status_t generate(const bl_schedule_request_t *request, bl_schedule_t **order, bl_error_t *err) {
  bl_status_t status = bl_schedule_generate(request, order, err);
  return status == BL_OK || status == BL_EXHAUSTED ? status : BL_INVALID;
}

// Maps names that make the same search with given limits: every V is zb-v within its own limit (on the V for which the
// model was divided), and zb-h2 is zb-h1 within twice the memory.
static bl_schedule_request_t common_request(const bl_schedule_request_t *request) {
  const uint32_t p = request->stages;
  const struct {
    const char *name, *common;
    uint32_t memory;
  } same[] = {{"zb-h1", "zb-h1", p},         {"zb-h2", "zb-h1", 2 * p}, {"zb-v", "zb-v", p},
              {"adaptive", "zb-v", p},       {"v-zb", "zb-v", p},       {"v-half", "zb-v", (p + 2) / 2},
              {"v-min", "zb-v", (p + 4) / 3}};
  bl_schedule_request_t common = *request;
  for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
    // With slices a schedule's own limit is that of the units before they are cut (generate.c).
    if (strcmp(request->name, same[i].name) == 0 && request->keep_placement && request->slices <= 1) {
      const bool limited = bl_schedule_info_find(request->name)->limited && request->memory > 0;
      common.name = same[i].common;
      common.memory = limited ? request->memory : same[i].memory;
      common.pooled = request->pooled && limited; // its own limit is not the same for all devices
      common.hosted = request->hosted && limited;
    }
  }
  return common;
}

static size_t cost_bytes(const bl_schedule_request_t *request) {
  return (size_t)request->stages * request->chunks * sizeof(bl_chunk_costs_t);
}

static bool is_shaped(const bl__order_t *order, const bl_schedule_request_t *request, uint32_t tensor) {
  const bl_schedule_t *schedule = order->schedule;
  return schedule != NULL && schedule->stages == request->stages && schedule->micro_batches == request->micro_batches &&
         schedule->slices == (request->slices > 1 ? request->slices : 1) && order->tensor == tensor;
}

static bool is_of(const bl__order_t *order, const bl_schedule_request_t *request, uint32_t tensor, bool exact) {
  bool same = is_shaped(order, request, tensor) && strcmp(order->name, request->name) == 0 &&
              order->schedule->chunks == request->chunks && order->group == request->group &&
              order->recompute == request->recompute && order->pooled == request->pooled &&
              order->hosted == request->hosted && order->memory == request->memory && order->slots == request->slots;
  return same && (!exact || (order->effort == request->effort && order->boundary == request->costs->boundary &&
                             order->path == request->costs->path &&
                             memcmp(order->costs, request->costs->chunks, cost_bytes(request)) == 0));
}

// Replaces the oldest order.
static bl_status_t keep(bl__order_cache_t *cache, const bl_schedule_request_t *request, uint32_t tensor,
                        const bl_schedule_t *made) {
  bl__order_t order = {.name = request->name,
                       .tensor = tensor,
                       .group = request->group,
                       .recompute = request->recompute,
                       .pooled = request->pooled,
                       .hosted = request->hosted,
                       .memory = request->memory,
                       .slots = request->slots,
                       .costs = malloc(cost_bytes(request)),
                       .boundary = request->costs->boundary,
                       .path = request->costs->path,
                       .effort = request->effort};
  if (order.costs == NULL || copy_order(made, &order.schedule) != BL_OK) {
    free(order.costs);
    return BL_EXHAUSTED;
  }
  memcpy(order.costs, request->costs->chunks, cost_bytes(request));
  forget(&cache->orders[cache->next]);
  cache->orders[cache->next] = order;
  cache->next = (cache->next + 1) % BL__ORDERS_KEPT;
  return BL_OK;
}

bl_status_t bl__order_find(bl__order_cache_t *cache, const bl_schedule_request_t *request, uint32_t tensor,
                           bl_schedule_t **order, bl_error_t *err) {
  const bl_schedule_request_t common = common_request(request);
  bl_schedule_t *made = NULL;
  bl_status_t status = BL_NOT_FOUND;
  for (uint32_t i = 0; i < BL__ORDERS_KEPT && status == BL_NOT_FOUND; i++) {
    if (is_of(&cache->orders[i], &common, tensor, cache->exact)) {
      status = copy_order(cache->orders[i].schedule, &made);
    }
  }
  if (status == BL_NOT_FOUND) {
    status = generate(&common, &made, err);
    status = status == BL_OK ? keep(cache, &common, tensor, made) : status;
  }
  if (status != BL_OK) {
    bl_schedule_destroy(made);
    return status;
  }
  snprintf(made->name, sizeof made->name, "%s", request->name);
  *order = made;
  return BL_OK;
}
