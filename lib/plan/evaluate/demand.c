// SPDX-License-Identifier: Apache-2.0
#include "plan/evaluate/demand.h"

#include "schedule/balance/device_slots.h"
#include "schedule/ir/stage_plan.h"

#include <stdlib.h>

// Counts of what a stage needs.
typedef struct counts {
  uint32_t slots, edges, pages, page_gradients;
} counts_t;

static bl_status_t fill_stage(const bl_demand_request_t *r, uint32_t stage, counts_t counts, bl_chunk_span_t *spans,
                              bl_footprint_t *footprint, bl_error_t *err) {
  bl_footprint_request_t one = {.stage = r->stage,
                                .slots = counts.slots,
                                .edges = counts.edges,
                                .pages = counts.pages,
                                .page_gradients = counts.page_gradients,
                                .image = r->image};
  one.stage.spans = spans;
  one.stage.span_count = 0;
  one.stage.micro_batches = r->schedule->micro_batches;
  one.stage.copies.pipes = r->schedule->pipes;
  for (uint32_t v = 0; v < r->schedule->virtual_stages; v++) {
    if (r->schedule->stage_of[v] == stage) {
      spans[one.stage.span_count++] = r->spans[v];
    }
  }
  return bl_footprint_of_executor(&one, footprint) == BL_OK
             ? BL_OK
             : bl_error_set(err, BL_INVALID, "an activation block of stage %u would exceed all memory", stage);
}

bl_status_t bl_demand_of_schedule(const bl_demand_request_t *request, bl_footprint_t *stages, bl_error_t *err) {
  const bl_schedule_t *schedule = request->schedule;
  const uint32_t p = schedule->stages;
  uint32_t *edges = calloc(3 * (size_t)p, sizeof *edges); // then pages, and pages of gradients
  bl_chunk_span_t *spans = calloc(schedule->virtual_stages, sizeof *spans);
  bl_device_slots_t device_slots = {0};
  bl_status_t status = edges != NULL && spans != NULL
                           ? bl_device_slots_init(&device_slots, schedule, err)
                           : bl_error_set(err, BL_EXHAUSTED, "no memory for what %u stages take", schedule->stages);
  if (status == BL_OK) {
    status = bl_plan_counts(schedule, NULL, edges, err);
  }
  if (status == BL_OK) {
    status = bl_plan_pages(schedule, edges + p, edges + 2 * (size_t)p, err);
  }
  for (uint32_t s = 0; s < p && status == BL_OK; s++) {
    const counts_t counts = {.slots = device_slots.own[s] + device_slots.lent[s],
                             .edges = edges[s],
                             .pages = edges[p + s],
                             .page_gradients = edges[2 * (size_t)p + s]};
    status = fill_stage(request, s, counts, spans, &stages[s], err);
  }
  bl_device_slots_cleanup(&device_slots);
  free(spans);
  free(edges);
  return status;
}
