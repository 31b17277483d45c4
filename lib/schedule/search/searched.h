// SPDX-License-Identifier: Apache-2.0
// Private to lib/schedule: the generators that search for orders, with the costs and limits of a request.
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

// The limits of v-half and v-min in device-micro-batches.
uint32_t bl__v_half_memory(uint32_t stages);
uint32_t bl__v_min_memory(uint32_t stages);

// With recomputation, 1f1b cut in two chunks after its R's were placed differs from the order whose R's are placed
// after the cut: the former recomputes both blocks before the whole backward, the latter each block directly before its
// own. Replaces *made, which has its R's, by the former if that ends earlier within the memory of the request. Leaves
// orders over slices unchanged. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__adaptive_take_1f1b(const bl_schedule_request_t *request, bl_schedule_t **made);

// Sets *bound so that no order of adaptive ends before it, on any placement and with any memory. `made` is a schedule
// of the request's shape. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__adaptive_bound(const bl_schedule_request_t *request, const bl_costs_t *costs,
                                           const bl_schedule_t *made, double *bound);

// Fills `base` with the timetable of grouped-interleaved, which does not depend on costs. BL_INVALID: groups of that
// size cannot run. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__grouped_interleaved_base(bl_schedule_t *base, uint32_t group);

#endif
