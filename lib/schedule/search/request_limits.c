// SPDX-License-Identifier: Apache-2.0
#include "schedule/search/request_limits.h"

#include "schedule/ir/bound.h"

#include <math.h>
#include <stdlib.h>

void bl__memory_limits(const bl_schedule_t *shape, double memory, const double *memory_of_stage, uint32_t *limits) {
  double weight = bl_schedule_block_weight(shape);
  for (uint32_t s = 0; s < shape->stages; s++) {
    double limit = memory_of_stage != NULL ? memory_of_stage[s] : memory;
    limits[s] = (uint32_t)fmin(floor(limit / weight + 1e-9), (double)bl_schedule_block_count(shape));
  }
}

bl_status_t bl__memory_limits_check(const bl_schedule_request_t *request, double memory, const uint32_t *limits,
                                    uint32_t least, bl_error_t *err) {
  for (uint32_t s = 0; s < request->stages; s++) {
    if (limits[s] < least) {
      return bl_error_set(err, BL_INVALID,
                          "schedule %s: a memory limit of %g on stage %u is below 1, the smallest that works",
                          request->name, request->memory_of_stage != NULL ? request->memory_of_stage[s] : memory, s);
    }
  }
  return BL_OK;
}

bl__recompute_options_t bl__recompute_options_of(const bl_schedule_request_t *request, const bl_schedule_t *shape) {
  bl__recompute_options_t recompute = {.on = request->recompute};
  if (request->recompute && request->recompute_chunks < shape->chunks) {
    recompute.chunks = request->recompute_chunks;
  }
  if (request->recompute && request->slots > 0) {
    double slots = floor(request->slots / bl_schedule_block_weight(shape) + 1e-9);
    recompute.slots = (uint32_t)fmin(fmax(slots, 1), (double)bl_schedule_block_count(shape));
  }
  return recompute;
}

bl_status_t bl__costs_merge(const bl_costs_t *costs, bl__recompute_options_t recompute, const bl_schedule_t *shape,
                            bl_costs_t *merged) {
  *merged = *costs;
  if (!recompute.on) {
    return BL_OK;
  }
  merged->every.input += costs->every.recompute;
  if (costs->chunks != NULL || recompute.chunks > 0) {
    bl_chunk_costs_t *chunks = malloc(shape->virtual_stages * sizeof *chunks);
    for (uint32_t s = 0; chunks != NULL && s < shape->virtual_stages; s++) {
      chunks[s] = *bl_costs_chunk(costs, s);
      chunks[s].input += bl__chunk_kept(shape, recompute, s) ? 0 : chunks[s].recompute;
    }
    merged->chunks = chunks;
    return chunks != NULL ? BL_OK : BL_EXHAUSTED;
  }
  return BL_OK;
}

void bl__costs_merge_cleanup(const bl_costs_t *costs, bl_costs_t *merged) {
  if (merged->chunks != costs->chunks) {
    free((void *)(uintptr_t)merged->chunks);
  }
}

bl_status_t bl__bound_within(const bl_schedule_t *schedule, const bl_costs_t *costs, const uint32_t *limits,
                             bl__recompute_options_t recompute, double *bound) {
  return recompute.on ? bl_schedule_bound_recomputed(schedule, costs, limits, recompute.chunks, bound)
                      : bl_schedule_bound_within(schedule, costs, limits, false, bound);
}
