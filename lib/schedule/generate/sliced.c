// SPDX-License-Identifier: Apache-2.0
// Seq1F1B (Sun et al., 2024): 1F1B whose units are slices of sequences. A slice attends to those before it, so the
// forwards of a micro-batch go from the first slice to the last and its backwards back; stage s runs p - 1 - s + (k - 1)
// slices ahead before it alternates, k being the slices of a sequence.
#include "schedule/generate/generators.h"

#define SLICES_DEFAULT 2

static bl_status_t emit_slice(bl_schedule_t *schedule, uint32_t stage, bl_verb_t verb, uint32_t unit) {
  uint32_t k = schedule->slices, slice = unit % k;
  return bl_schedule_append(schedule, stage,
                            (bl_op_t){.verb = (uint8_t)verb,
                                      .virtual_stage = (uint16_t)stage,
                                      .micro_batch = unit / k,
                                      .slice = (uint8_t)(verb == BL_VERB_F ? slice : k - 1 - slice)});
}

bl_status_t bl__generate_seq1f1b(const bl_schedule_request_t *request, bl_schedule_t *schedule, bl_error_t *err) {
  uint32_t k = request->group != 0 ? request->group : SLICES_DEFAULT;
  if (k > BL_SLICES_MAX || (uint64_t)bl_schedule_block_count(schedule) * k > BL_SCHEDULE_OPS_MAX) {
    return bl_error_set(err, BL_INVALID, "schedule seq1f1b: sequences cannot be cut into %u slices (group); at most %d",
                        k, BL_SLICES_MAX);
  }
  schedule->slices = k;
  uint32_t units = request->micro_batches * k;
  bl_status_t status = BL_OK;
  for (uint32_t s = 0; s < request->stages; s++) {
    uint32_t ahead = request->stages - 1 - s + k - 1;
    ahead = ahead < units ? ahead : units;
    for (uint32_t n = 0; n < units + ahead && status == BL_OK; n++) {
      if (n < units) {
        status = emit_slice(schedule, s, BL_VERB_F, n);
      }
      if (n >= ahead && status == BL_OK) {
        status = emit_slice(schedule, s, BL_VERB_B, n - ahead);
      }
    }
  }
  return status;
}
