// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/restore.h"

bl_status_t bl_chunk_restore(bl_chunk_t *chunk, const bl_checkpoint_t *checkpoint, bl_error_t *err) {
  bl_status_t status = BL_OK;
  for (uint32_t i = 0; i < bl_chunk_parameter_count(chunk) && status == BL_OK; i++) {
    bl_chunk_parameter_t p = bl_chunk_parameter(chunk, i);
    float *parts[BL_CHECKPOINT_PARTS] = {[BL_CHECKPOINT_WEIGHT] = p.weight,
                                         [BL_CHECKPOINT_FIRST_MOMENT] = p.first_moment,
                                         [BL_CHECKPOINT_SECOND_MOMENT] = p.second_moment};
    for (int part = 0; part < BL_CHECKPOINT_PARTS && status == BL_OK; part++) {
      status = bl_checkpoint_read(checkpoint, &p.parameter, (bl_checkpoint_part_t)part, parts[part], err);
    }
  }
  if (status == BL_OK) {
    bl_chunk_weights_changed(chunk);
  }
  return status;
}
