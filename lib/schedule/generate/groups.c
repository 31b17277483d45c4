// SPDX-License-Identifier: Apache-2.0
#include "schedule/generate/groups.h"

#include "schedule/generate/generators.h"

static bl_status_t emit_group(bl_schedule_t *base, bl_op_type_t type, uint32_t virtual_stage, uint32_t first,
                              uint32_t end) {
  bl_status_t status = BL_OK;
  for (uint32_t i = first; i < end && status == BL_OK; i++) {
    status = bl__schedule_emit(base, type, virtual_stage, i);
  }
  return status;
}

bl_status_t bl__groups_fill(bl_schedule_t *base, uint32_t group) {
  uint32_t m = base->micro_batches;
  bl_status_t status = BL_OK;
  for (uint32_t s = 0; s < base->stages; s++) {
    base->lists[s].count = 0;
  }
  for (uint32_t first = 0; first < m; first += group) {
    uint32_t end = m - first < group ? m : first + group;
    for (uint32_t s = 0; s < base->virtual_stages && status == BL_OK; s++) {
      status = emit_group(base, BL_OP_F, s, first, end);
    }
    for (uint32_t s = base->virtual_stages; s-- > 0 && status == BL_OK;) {
      status = emit_group(base, BL_OP_I, s, first, end);
      if (status == BL_OK) {
        status = emit_group(base, BL_OP_W, s, first, end);
      }
    }
  }
  return status;
}
