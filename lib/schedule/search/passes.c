// SPDX-License-Identifier: Apache-2.0
#include "schedule/search/passes.h"

#include "schedule/ir/dependency.h"

#include <math.h>
#include <stdlib.h>

static bl__pass_t pass_of(const bl_schedule_t *schedule, const bl_costs_t *costs, bl__recompute_options_t recompute,
                          bl_op_t op) {
  bl_op_type_t type = (bl_op_type_t)op.type;
  bool kept = bl__chunk_kept(schedule, recompute, op.virtual_stage);
  bl__pass_t pass = {
      .cost = bl_costs_op(costs, type, op.virtual_stage), .needs = BL__PASS_NONE, .feeds = BL__PASS_NONE};
  pass.recompute =
      recompute.on && !kept && bl_op_type_starts_backward(type) ? bl_costs_op(costs, BL_OP_R, op.virtual_stage) : 0;
  pass.fills = kept ? type == BL_OP_F : bl_op_type_starts_backward(type);
  bl_op_t needed;
  if (bl__op_dependency(schedule, op, &needed)) {
    pass.needs = needed.virtual_stage;
    pass.latency =
        schedule->stage_of[needed.virtual_stage] != schedule->stage_of[op.virtual_stage] ? costs->boundary : 0;
  }
  if (type == BL_OP_F && !bl_schedule_is_last(schedule, op.virtual_stage)) {
    pass.feeds = op.virtual_stage + 1u;
  } else if (bl_op_type_starts_backward(type) && !bl_schedule_is_first(schedule, op.virtual_stage)) {
    pass.feeds = op.virtual_stage - 1u;
  }
  return pass;
}

bl_status_t bl__passes_create(const bl_schedule_t *schedule, const bl_costs_t *costs, bl__recompute_options_t recompute,
                              bl__pass_t **passes) {
  bl__pass_t *made = malloc((size_t)schedule->virtual_stages * BL__PASS_TYPES * sizeof *made);
  if (made == NULL) {
    return BL_EXHAUSTED;
  }
  for (uint32_t s = 0; s < schedule->virtual_stages; s++) {
    for (uint32_t type = 0; type < BL__PASS_TYPES; type++) {
      bl_op_t op = {.type = (uint8_t)type, .virtual_stage = (uint16_t)s};
      made[s * BL__PASS_TYPES + type] = pass_of(schedule, costs, recompute, op);
    }
  }
  *passes = made;
  return BL_OK;
}

void bl__ends_forget(const bl_schedule_t *schedule, double *ends) {
  size_t count = BL__ENDS_FIRST + 2 * bl_schedule_block_count(schedule);
  ends[BL__END_ZERO] = 0;
  for (size_t i = BL__END_OTHER; i < count; i++) {
    ends[i] = INFINITY;
  }
}

double *bl__ends_create(const bl_schedule_t *schedule) {
  double *ends = malloc((BL__ENDS_FIRST + 2 * bl_schedule_block_count(schedule)) * sizeof *ends);
  if (ends != NULL) {
    bl__ends_forget(schedule, ends);
  }
  return ends;
}
