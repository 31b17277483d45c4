// SPDX-License-Identifier: Apache-2.0
#include "plan/evaluate/demand.h"

#include "schedule/balance/device_slots.h"
#include "schedule/ir/slots.h"

#include <stdlib.h>

static bl_status_t fill_stage(const bl_demand_request_t *r, uint32_t stage, uint32_t slots, uint32_t edges,
                              bl_chunk_span_t *spans, bl_footprint_t *footprint, bl_error_t *err) {
  bl_footprint_request_t one = {.model = r->model,
                                .spans = spans,
                                .slots = slots,
                                .edges = edges,
                                .options = r->options,
                                .post_validation = r->post_validation,
                                .optimizer_on_host = r->optimizer_on_host,
                                .asynchronous = r->asynchronous,
                                .micro_batches = r->schedule->micro_batches,
                                .replicas = r->replicas,
                                .pipes = r->schedule->pipes,
                                .fold_levels = r->fold_levels,
                                .operations = r->operations,
                                .image = r->image};
  for (uint32_t v = 0; v < r->schedule->virtual_stages; v++) {
    if (r->schedule->stage_of[v] == stage) {
      spans[one.span_count++] = r->spans[v];
    }
  }
  if (r->schedule->slices > 1) {
    bl_stage_plan_t plan;
    bl_status_t status = bl_stage_plan_init(r->schedule, stage, (bl_plan_limits_t){0}, &plan, err);
    if (status != BL_OK) {
      return status;
    }
    one.pages = plan.pages;
    one.page_gradients = plan.page_gradients;
    bl_stage_plan_cleanup(&plan);
  }
  return bl_footprint_of_executor(&one, footprint) == BL_OK
             ? BL_OK
             : bl_error_set(err, BL_INVALID, "an activation block of stage %u would exceed all memory", stage);
}

bl_status_t bl_demand_of_schedule(const bl_demand_request_t *request, bl_footprint_t *stages, bl_error_t *err) {
  const bl_schedule_t *schedule = request->schedule;
  uint32_t *edges = calloc(schedule->stages, sizeof *edges);
  bl_chunk_span_t *spans = calloc(schedule->virtual_stages, sizeof *spans);
  bl_device_slots_t device_slots = {0};
  bl_status_t status = edges != NULL && spans != NULL
                           ? bl_device_slots_init(&device_slots, schedule, err)
                           : bl_error_set(err, BL_EXHAUSTED, "no memory for what %u stages take", schedule->stages);
  if (status == BL_OK) {
    status = bl_plan_counts(schedule, 1, NULL, edges, NULL, err);
  }
  for (uint32_t s = 0; s < schedule->stages && status == BL_OK; s++) {
    status = fill_stage(request, s, device_slots.own[s] + device_slots.lent[s], edges[s], spans, &stages[s], err);
  }
  bl_device_slots_cleanup(&device_slots);
  free(spans);
  free(edges);
  return status;
}
