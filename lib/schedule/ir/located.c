// SPDX-License-Identifier: Apache-2.0
#include "schedule/ir/located.h"

#include <stdio.h>

const char *bl__place_text(const bl__places_t *places, bl_op_ref_t at, char text[BL__PLACE_TEXT]) {
  if (places != NULL) {
    places->say(places->context, at, text);
  } else if (at.index == BL__NOWHERE) {
    snprintf(text, BL__PLACE_TEXT, "stage %u", at.stage);
  } else {
    snprintf(text, BL__PLACE_TEXT, "stage %u, operation %u", at.stage, at.index);
  }
  return text;
}

bool bl__op_find(const bl_schedule_t *schedule, bl_op_t op, bl_op_ref_t *at) {
  *at = (bl_op_ref_t){schedule->stage_of[op.virtual_stage], BL__NOWHERE};
  const bl_op_list_t *list = &schedule->lists[at->stage];
  for (size_t i = 0; i < list->count; i++) {
    bl_op_t other = list->ops[i];
    bool same = op.type == BL_OP_I ? bl_op_type_starts_backward((bl_op_type_t)other.type) : op.type == other.type;
    if (same && bl_schedule_block(schedule, op) == bl_schedule_block(schedule, other)) {
      at->index = (uint32_t)i;
      return true;
    }
  }
  return false;
}
