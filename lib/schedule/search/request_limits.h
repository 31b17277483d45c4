// SPDX-License-Identifier: Apache-2.0
// Private to lib/schedule: limits and options of a request as a search needs them, in blocks.
#ifndef BALLAST_SCHEDULE_REQUEST_LIMITS_H
#define BALLAST_SCHEDULE_REQUEST_LIMITS_H

#include "schedule/ir/request.h"
#include "schedule/search/dispatch.h"

// Sets *merged to the costs for making base orders of a schedule that recomputes: those of I include the R before it.
// Without recomputation *merged is a copy of `costs`. Otherwise merged->chunks is on the heap if chunks differ.
// BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__costs_merge(const bl_costs_t *costs, bl__recompute_options_t recompute,
                                        const bl_schedule_t *shape, bl_costs_t *merged);
void bl__costs_merge_cleanup(const bl_costs_t *costs, bl_costs_t *merged);

// Sets `limits` [stages], in blocks, from the limits of a request, in device-micro-batches.
void bl__memory_limits(const bl_schedule_t *shape, double memory, const double *memory_of_stage, uint32_t *limits);
// BL_INVALID names the stage whose limit is below `least` blocks, which are one device-micro-batch.
BL_MUST_USE bl_status_t bl__memory_limits_check(const bl_schedule_request_t *request, double memory,
                                                const uint32_t *limits, uint32_t least, bl_error_t *err);
// Returns the recomputation options of the request for a schedule of that shape.
bl__recompute_options_t bl__recompute_options_of(const bl_schedule_request_t *request, const bl_schedule_t *shape);

// Sets *bound so that no order of these operations, which have no R, ends before it within `limits` [stages] and with
// the R's of `recompute`. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__bound_within(const bl_schedule_t *schedule, const bl_costs_t *costs, const uint32_t *limits,
                                         bl__recompute_options_t recompute, double *bound);

#endif
