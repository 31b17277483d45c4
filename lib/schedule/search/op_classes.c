// SPDX-License-Identifier: Apache-2.0
#include "schedule/search/op_classes.h"

#include "schedule/ir/dependency.h"

#include <math.h>
#include <stdlib.h>

static bl__op_class_t class_of(const bl_schedule_t *schedule, const bl_costs_t *costs,
                               bl__recompute_options_t recompute, bl_op_t op) {
  bl_op_type_t type = (bl_op_type_t)op.type;
  bool kept = bl__chunk_kept(schedule, recompute, op.virtual_stage);
  bl__op_class_t op_class = {
      .cost = bl_costs_op(costs, type, op.virtual_stage), .needs = BL__NO_OP_CLASS, .feeds = BL__NO_OP_CLASS};
  op_class.recompute =
      recompute.on && !kept && bl_op_type_starts_backward(type) ? bl_costs_op(costs, BL_OP_R, op.virtual_stage) : 0;
  op_class.takes_slot = kept ? type == BL_OP_F : bl_op_type_starts_backward(type);
  bl_op_t needed;
  if (bl__op_dependency(schedule, op, &needed)) {
    op_class.needs = needed.virtual_stage;
    op_class.latency =
        schedule->stage_of[needed.virtual_stage] != schedule->stage_of[op.virtual_stage] ? costs->boundary : 0;
  }
  if (type == BL_OP_F && !bl_schedule_is_last(schedule, op.virtual_stage)) {
    op_class.feeds = op.virtual_stage + 1u;
  } else if (bl_op_type_starts_backward(type) && !bl_schedule_is_first(schedule, op.virtual_stage)) {
    op_class.feeds = op.virtual_stage - 1u;
  }
  return op_class;
}

bl_status_t bl__op_classes_create(const bl_schedule_t *schedule, const bl_costs_t *costs,
                                  bl__recompute_options_t recompute, bl__op_class_t **classes) {
  bl__op_class_t *made = malloc((size_t)schedule->virtual_stages * BL__OP_CLASS_TYPES * sizeof *made);
  if (made == NULL) {
    return BL_EXHAUSTED;
  }
  for (uint32_t s = 0; s < schedule->virtual_stages; s++) {
    for (uint32_t type = 0; type < BL__OP_CLASS_TYPES; type++) {
      bl_op_t op = {.type = (uint8_t)type, .virtual_stage = (uint16_t)s};
      made[s * BL__OP_CLASS_TYPES + type] = class_of(schedule, costs, recompute, op);
    }
  }
  *classes = made;
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
