// SPDX-License-Identifier: Apache-2.0
#include "schedule/generate/generators.h"

bl_status_t bl__schedule_emit(bl_schedule_t *schedule, bl_op_type_t type, uint32_t virtual_stage,
                              uint32_t micro_batch) {
  return bl_schedule_append(
      schedule, schedule->stage_of[virtual_stage],
      (bl_op_t){.type = (uint8_t)type, .virtual_stage = (uint16_t)virtual_stage, .micro_batch = micro_batch});
}

bl_status_t bl__generate_with(bl__generator_t *generate, bl_placement_t placement, const bl_schedule_request_t *request,
                              bl_schedule_t **schedule, bl_error_t *err) {
  bl_schedule_t *made;
  bl_status_t status = bl_schedule_create(request->name, placement, request->stages, request->chunks,
                                          request->micro_batches, &made, err);
  if (status == BL_OK) {
    status = generate(request, made, err);
    if (status == BL_OK) {
      *schedule = made;
    } else {
      bl_schedule_destroy(made);
    }
  }
  return status;
}
