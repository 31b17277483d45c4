// SPDX-License-Identifier: Apache-2.0
// Private to lib/schedule: what named.h does, over slices of sequences. The caller makes the orders of the other names,
// complete with slices and R's; these functions tell whether one is worth making, and take it if it is faster.
#ifndef BALLAST_SCHEDULE_NAMED_SLICED_H
#define BALLAST_SCHEDULE_NAMED_SLICED_H

#include "schedule/ir/request.h"

// Both take a request for `best`, an order over slices with its R's. request->memory and memory_of_stage limit the
// blocks of `best`, request->costs are those of its chunks.

typedef struct bl__sliced_name {
  const bl_costs_t *costs; // of its chunks
  bool fused;              // its kind of backward
  double memory;           // its own limit, in device-micro-batches; INFINITY: none
} bl__sliced_name_t;

// Sets *may: by its lower bound an order of the name may end before `best` within the limits. `shape` is an empty
// schedule with the placement of the name; it is filled. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__sliced_may_be_faster(const bl_schedule_request_t *request, const bl__sliced_name_t *name,
                                                 const bl_schedule_t *best, bl_schedule_t *shape, bool *may);
// Replaces *best by `named`, as an order with as many chunks a stage as *best, if that ends earlier within the limits.
// BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__sliced_adopt_if_faster(const bl_schedule_request_t *request, const bl_schedule_t *named,
                                                   bl_schedule_t **best);

#endif
