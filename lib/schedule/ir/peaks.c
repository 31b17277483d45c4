// SPDX-License-Identifier: Apache-2.0
#include "schedule/ir/peaks.h"

#include "schedule/ir/slot_walk.h"

#include <stdlib.h>

void bl_schedule_mark_recomputed(const bl_schedule_t *schedule, uint8_t *recomputed) {
  for (uint32_t s = 0; s < schedule->stages; s++) {
    for (size_t i = 0; i < schedule->lists[s].count; i++) {
      bl_op_t op = schedule->lists[s].ops[i];
      if (op.type == BL_OP_R) {
        recomputed[bl_schedule_block(schedule, op)] = 1;
      }
    }
  }
}

static uint32_t peak_of_list(const bl_schedule_t *schedule, const bl_op_list_t *list, const uint8_t *recomputed) {
  bl_slot_walk_t walk = {.schedule = schedule, .recomputed = recomputed};
  uint32_t peak = 0;
  for (size_t i = 0; i < list->count; i++) {
    bl_slot_walk_next(&walk, list->ops[i]);
    peak = walk.during > peak ? walk.during : peak;
  }
  return peak;
}

bl_status_t bl_schedule_peak_slots(const bl_schedule_t *schedule, uint32_t *peak_slots) {
  uint8_t *recomputed = calloc(bl_schedule_block_count(schedule), 1);
  if (recomputed == NULL) {
    return BL_EXHAUSTED;
  }
  bl_schedule_mark_recomputed(schedule, recomputed);
  for (uint32_t s = 0; s < schedule->stages; s++) {
    peak_slots[s] = peak_of_list(schedule, &schedule->lists[s], recomputed);
  }
  free(recomputed);
  return BL_OK;
}

void bl_schedule_peak_blocks(const bl_schedule_t *schedule, uint32_t *peak_blocks) {
  for (uint32_t s = 0; s < schedule->stages; s++) {
    uint32_t held = 0;
    peak_blocks[s] = 0;
    for (size_t i = 0; i < schedule->lists[s].count; i++) {
      bl_op_type_t type = (bl_op_type_t)schedule->lists[s].ops[i].type;
      held += type == BL_OP_F;
      peak_blocks[s] = held > peak_blocks[s] ? held : peak_blocks[s];
      held -= bl_op_type_ends_block(type) || (type == BL_OP_F && schedule->forward_only);
    }
  }
}
