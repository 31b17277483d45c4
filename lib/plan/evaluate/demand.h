// SPDX-License-Identifier: Apache-2.0
// The memory that a schedule needs on every device of our executor, to the byte. The planner's limit applies to it. The
// schedule is complete, with its evictions, loads and recomputations.
//
//   bl_footprint_t stages[8];
//   if (bl_demand_of_schedule(&request, stages, &err) == BL_OK) {
//     bl_footprint_total(&stages[0]), stages[0].activations: own and lent slots together
//   }
//
// Pure. Thread: any.
#ifndef BALLAST_PLAN_DEMAND_H
#define BALLAST_PLAN_DEMAND_H

#include "plan/evaluate/footprint.h"
#include "schedule/ir/schedule.h"

typedef struct bl_demand_request {
  const bl_schedule_t *schedule;
  const bl_chunk_span_t *spans;    // [virtual stages]
  bl_stage_memory_request_t stage; // any of them: spans, micro_batches and pipes are those of the schedule
  bl_footprint_image_fn image;     // as in bl_footprint_request_t
} bl_demand_request_t;

// Sets `stages` [schedule->stages]. BL_INVALID: a block that is larger than any memory, or a schedule that cannot run.
// BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_demand_of_schedule(const bl_demand_request_t *request, bl_footprint_t *stages,
                                              bl_error_t *err);

#endif
