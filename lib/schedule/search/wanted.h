// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/schedule: what a request asks of a search, in blocks.
#ifndef BALLAST_SCHEDULE_WANTED_H
#define BALLAST_SCHEDULE_WANTED_H

#include "schedule/ir/request.h"
#include "schedule/search/dispatch.h"

// Costs for who makes base orders of a schedule that recomputes: I with the R before it. `merged` is `costs` itself
// without recomputation; otherwise merged->chunks is on the heap, if chunks differ. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__costs_merge(const bl_costs_t *costs, bl__recompute_options_t recompute,
                                        const bl_schedule_t *shape, bl_costs_t *merged);
void bl__costs_merge_cleanup(const bl_costs_t *costs, bl_costs_t *merged);

// Limits in blocks from those of a request, in device-micro-batches: `limits` has room for [stages].
void bl__memory_limits(const bl_schedule_t *shape, double memory, const double *memory_of_stage, uint32_t *limits);
// BL_INVALID names the stage whose limit holds fewer than `least` blocks, which is one device-micro-batch.
BL_MUST_USE bl_status_t bl__memory_limits_check(const bl_schedule_request_t *request, double memory,
                                                const uint32_t *limits, uint32_t least, bl_error_t *err);
// What the request says of recomputation, for a schedule of that shape.
bl__recompute_options_t bl__recompute_options_of(const bl_schedule_request_t *request, const bl_schedule_t *shape);

// No order of these operations, which have no R, ends earlier within `limits` [stages], with the R's of `again`.
// BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__bound_within(const bl_schedule_t *schedule, const bl_costs_t *costs, const uint32_t *limits,
                                         bl__recompute_options_t recompute, double *bound);

#endif
