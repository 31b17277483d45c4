// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/schedule: the generators of orders that are searched, with the costs and limits of a request.
#ifndef BALLAST_SCHEDULE_SEARCHED_H
#define BALLAST_SCHEDULE_SEARCHED_H

#include "schedule/generate/generators.h"

bl__generator_t bl__generate_zero_bubble;
bl__generator_t bl__generate_zb_v;
bl__generator_t bl__generate_v_zb;
bl__generator_t bl__generate_v_half;
bl__generator_t bl__generate_v_min;
bl__generator_t bl__generate_chimera;
bl__generator_t bl__generate_grouped_interleaved;
bl__generator_t bl__generate_1f1b_v;
bl__generator_t bl__generate_adaptive;

// With recomputation the orders of 1f1b and of the same cut in two chunks differ: one R makes both blocks before the
// backward, or each has its own directly before its part. Replaces *made, which has its R's, by the cut of what 1f1b is
// with its own, where that ends earlier within the memory of the request. Orders over slices stay. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__adaptive_take_1f1b(const bl_schedule_request_t *request, bl_schedule_t **made);

// No order of adaptive on any placement ends before *bound, whatever memory it takes. `made`: one of the request. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__adaptive_bound(const bl_schedule_request_t *request, const bl_costs_t *costs,
                                           const bl_schedule_t *made, double *bound);

// The timetable of grouped-interleaved on `base`, for any cost. BL_INVALID: a group of that size cannot run.
BL_MUST_USE bl_status_t bl__grouped_interleaved_base(bl_schedule_t *base, uint32_t group);

#endif
