// SPDX-License-Identifier: Apache-2.0
#include "simulate/frontier.h"

#include "schedule/generate.h"
#include "simulate/simulate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NEAR 1e-9

static bl_status_t add(bl_frontier_t *frontier, const bl_frontier_point_t *point) {
  if (frontier->count == frontier->capacity) {
    size_t capacity = frontier->capacity == 0 ? 64 : 2 * frontier->capacity;
    bl_frontier_point_t *points = realloc(frontier->points, capacity * sizeof *points);
    if (points == NULL) {
      return BL_EXHAUSTED;
    }
    frontier->points = points;
    frontier->capacity = capacity;
  }
  frontier->points[frontier->count++] = *point;
  return BL_OK;
}

static double most_of(const bl_simulation_t *result) {
  double most = 0;
  for (uint32_t s = 0; s < result->stages; s++) {
    most = fmax(most, result->peak[s]);
  }
  return most;
}

// Simulates a schedule and sets the results of the point.
static bl_status_t measure(const bl_schedule_t *schedule, const bl_costs_t *costs, bl_frontier_point_t *point,
                           bl_error_t *err) {
  bl_simulation_t result;
  bl_status_t status = bl_simulate(schedule, costs, &result, err);
  if (status != BL_OK) {
    return status;
  }
  point->t_end = result.t_end;
  point->above = result.bound_within > 0 ? result.t_end / result.bound_within - 1 : 0;
  point->bubble = result.bubble_total;
  point->memory = point->cap == 0 ? most_of(&result) : point->memory;
  bl_simulation_cleanup(&result);
  return BL_OK;
}

// Adds points from one slot below the worst peak down to the smallest cap that works.
static bl_status_t add_balanced(const bl_frontier_request_t *request, const bl_schedule_t *schedule,
                                const bl_costs_t *costs, const bl_frontier_point_t *plain, bl_frontier_t *frontier,
                                bl_error_t *err) {
  double weight = bl_schedule_block_weight(schedule);
  bl_status_t status = BL_OK;
  for (uint32_t cap = (uint32_t)lround(plain->memory / weight); cap-- > 1 && status == BL_OK;) {
    bl_balance_result_t balanced;
    if (bl_balance_cap(schedule, cap, false, request->mode, &balanced, NULL) != BL_OK) {
      break; // a smaller cap does not work either
    }
    bl_frontier_point_t point = *plain;
    point.cap = point.memory = cap * weight;
    for (uint32_t s = 0; s < balanced.stages; s++) {
      point.evictions += balanced.evictions[s];
    }
    status = measure(balanced.schedule, costs, &point, err);
    if (status == BL_OK) {
      status = add(frontier, &point);
    }
    bl_balance_result_cleanup(&balanced);
  }
  return status;
}

// Returns the costs of operations on this share of a device-micro-batch.
static bl_costs_t share_costs(const bl_costs_t *costs, double weight) {
  bl_costs_t made = *costs;
  made.every = (bl_chunk_costs_t){costs->every.forward * weight, costs->every.input * weight,
                                  costs->every.weight * weight, costs->every.recompute * weight};
  made.path *= weight;
  return made;
}

// Returns the weight of a schedule before it is generated. Slices are left out, because sliced orders do not depend on
// costs.
static double weight_of(const bl_schedule_info_t *info) {
  return info->placement == BL_PLACEMENT_BIDIRECTIONAL ? 1 : 1.0 / info->default_chunks;
}

static bl_status_t add_schedule(const bl_frontier_request_t *request, const bl_schedule_t *schedule,
                                bl_frontier_point_t point, bl_frontier_t *frontier, bl_error_t *err) {
  const bl_costs_t costs = share_costs(request->costs, bl_schedule_block_weight(schedule));
  point.chunks = schedule->chunks;
  bl_status_t status = measure(schedule, &costs, &point, err);
  if (status == BL_OK && point.pooled && point.asked > 0 && point.memory <= point.asked + NEAR) {
    return BL_OK; // it needs no balancing, so it equals the order that is not pooled
  }
  const size_t before = frontier->count;
  if (status == BL_OK) {
    status = add(frontier, &point);
  }
  if (status == BL_OK) {
    status = add_balanced(request, schedule, &costs, &point, frontier, err);
  }
  if (status == BL_OK && point.pooled && frontier->count == before + 1) {
    frontier->count = before; // there was nothing to balance
  }
  return status;
}

static bl_status_t add_built_in(const bl_frontier_request_t *request, const bl_schedule_info_t *info,
                                bl_frontier_point_t point, bl_frontier_t *frontier, bl_error_t *err) {
  const bl_costs_t costs = share_costs(request->costs, weight_of(info));
  bl_schedule_request_t wanted = {.name = info->name,
                                  .stages = request->stages,
                                  .micro_batches = request->micro_batches,
                                  .group = point.group,
                                  .memory = point.asked,
                                  .pooled = point.pooled,
                                  .costs = &costs,
                                  .effort = request->effort};
  bl_schedule_t *schedule;
  bl_status_t status = bl_schedule_generate(&wanted, &schedule, err);
  if (status != BL_OK) {
    return status == BL_INVALID && request->name_count == 0 ? BL_OK : status; // the shape does not allow it
  }
  snprintf(point.schedule, sizeof point.schedule, "%s", info->name);
  point.runs = schedule->placement == info->placement;
  status = add_schedule(request, schedule, point, frontier, err);
  bl_schedule_destroy(schedule);
  return status;
}

// Adds the schedule, and its order for balancing.
static bl_status_t add_both(const bl_frontier_request_t *request, const bl_schedule_info_t *info,
                            bl_frontier_point_t point, bl_frontier_t *frontier, bl_error_t *err) {
  bl_status_t status = add_built_in(request, info, point, frontier, err);
  point.pooled = true;
  return status == BL_OK ? add_built_in(request, info, point, frontier, err) : status;
}

// Returns whether the schedule is tried under every limit. These represent all schedules that are searched within a
// limit: v-half and v-min are zb-v under their limits.
static bool under_every_limit(const char *name) {
  return strcmp(name, "adaptive") == 0 || strcmp(name, "zb-h1") == 0 || strcmp(name, "zb-v") == 0;
}

// Adds the named schedule; grouped-interleaved with groups of every size.
static bl_status_t add_named(const bl_frontier_request_t *request, const char *name, bl_frontier_t *frontier,
                             bl_error_t *err) {
  const bl_schedule_info_t *info = bl_schedule_info_find(name);
  if (info == NULL) {
    return bl_error_set(err, BL_NOT_FOUND, "no schedule '%.40s'", name);
  }
  const uint32_t p = request->stages;
  bl_status_t status = BL_OK;
  if (under_every_limit(info->name)) {
    for (uint32_t blocks = info->default_chunks; blocks <= p * info->default_chunks && status == BL_OK; blocks++) {
      const double asked = (double)blocks / info->default_chunks;
      status = add_both(request, info, (bl_frontier_point_t){.asked = asked}, frontier, err);
    }
  } else if (strcmp(info->name, "grouped-interleaved") == 0) {
    for (uint32_t group = p; group >= (p + 1) / 2 && group > 0 && status == BL_OK; group--) {
      status = add_both(request, info, (bl_frontier_point_t){.group = group}, frontier, err);
    }
  } else if (strcmp(info->name, "1f1b-v") == 0) {
    status = add_both(request, info, (bl_frontier_point_t){0}, frontier, err);
  } else {
    status = add_built_in(request, info, (bl_frontier_point_t){0}, frontier, err);
  }
  return status;
}

static bool dominates(const bl_frontier_point_t *a, const bl_frontier_point_t *b) {
  bool no_worse = a->t_end <= b->t_end * (1 + NEAR) && a->memory <= b->memory + NEAR;
  return no_worse && (a->t_end < b->t_end * (1 - NEAR) || a->memory < b->memory - NEAR);
}

static void mark_best(bl_frontier_t *frontier) {
  for (size_t i = 0; i < frontier->count; i++) {
    bl_frontier_point_t *point = &frontier->points[i];
    point->best = true;
    point->best_plain = point->cap == 0;
    for (size_t k = 0; k < frontier->count; k++) {
      if (dominates(&frontier->points[k], point)) {
        point->best = false;
        point->best_plain = point->best_plain && frontier->points[k].cap > 0;
      }
    }
  }
}

// Adds all schedules that plans use and that have whole sequences, adaptive last.
static bl_status_t add_all(const bl_frontier_request_t *request, bl_frontier_t *frontier, bl_error_t *err) {
  size_t names;
  const bl_schedule_info_t *infos = bl_schedule_infos(&names);
  bl_status_t status = BL_OK;
  for (size_t n = 0; n < names && status == BL_OK; n++) {
    const bool whole = infos[n].not_planned == NULL && infos[n].default_slices == 1;
    if (whole && strcmp(infos[n].name, "adaptive") != 0) {
      status = add_named(request, infos[n].name, frontier, err);
    }
  }
  return status == BL_OK ? add_named(request, "adaptive", frontier, err) : status;
}

bl_status_t bl_frontier_init(const bl_frontier_request_t *request, bl_frontier_t *frontier, bl_error_t *err) {
  bl_status_t status = BL_OK;
  *frontier = (bl_frontier_t){0};
  if (request->name_count + request->given_count == 0) {
    status = add_all(request, frontier, err);
  }
  for (size_t n = 0; n < request->name_count && status == BL_OK; n++) {
    status = add_named(request, request->names[n], frontier, err);
  }
  for (size_t n = 0; n < request->given_count && status == BL_OK; n++) {
    bl_frontier_point_t point = {0};
    snprintf(point.schedule, sizeof point.schedule, "%s", request->given[n]->name);
    status = add_schedule(request, request->given[n], point, frontier, err);
  }
  if (status == BL_OK && frontier->count == 0) {
    status = BL_INVALID; // err has the reason of the last one
  }
  if (status != BL_OK) {
    bl_frontier_cleanup(frontier);
    return status;
  }
  mark_best(frontier);
  return BL_OK;
}

void bl_frontier_cleanup(bl_frontier_t *frontier) {
  free(frontier->points);
  *frontier = (bl_frontier_t){0};
}
