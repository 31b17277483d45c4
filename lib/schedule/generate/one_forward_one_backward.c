// SPDX-License-Identifier: Apache-2.0
// The classic orders with fused backwards: GPipe (Huang et al., NeurIPS 2019), 1F1B (PipeDream-Flush, Narayanan et
// al., ICML 2021) and eager 1F1B, whose longer warm-up hides the boundary latency.
#include "schedule/generate/generators.h"

// All forwards, then all backwards. With several chunks a stage: breadth first, chunk after chunk.
bl_status_t bl__generate_gpipe(const bl_schedule_request_t *request, bl_schedule_t *schedule, bl_error_t *err) {
  (void)err;
  bl_status_t status = BL_OK;
  for (uint32_t s = 0; s < schedule->virtual_stages; s++) {
    for (uint32_t i = 0; i < request->micro_batches && status == BL_OK; i++) {
      status = bl__schedule_emit(schedule, BL_OP_F, s, i);
    }
  }
  for (uint32_t s = schedule->virtual_stages; s-- > 0;) {
    for (uint32_t i = 0; i < request->micro_batches && status == BL_OK; i++) {
      status = bl__schedule_emit(schedule, BL_OP_B, s, i);
    }
  }
  return status;
}

// `warm_up` forwards, then one forward and one backward in turn, then the remaining backwards.
static bl_status_t alternate(bl_schedule_t *schedule, uint32_t stage, uint32_t warm_up) {
  uint32_t forwards = 0, m = schedule->micro_batches;
  bl_status_t status = BL_OK;
  for (; forwards < warm_up && forwards < m && status == BL_OK; forwards++) {
    status = bl__schedule_emit(schedule, BL_OP_F, stage, forwards);
  }
  for (uint32_t backwards = 0; backwards < m && status == BL_OK; backwards++) {
    if (forwards < m) {
      status = bl__schedule_emit(schedule, BL_OP_F, stage, forwards++);
    }
    if (status == BL_OK) {
      status = bl__schedule_emit(schedule, BL_OP_B, stage, backwards);
    }
  }
  return status;
}

bl_status_t bl__generate_1f1b(const bl_schedule_request_t *request, bl_schedule_t *schedule, bl_error_t *err) {
  (void)err;
  bl_status_t status = BL_OK;
  for (uint32_t s = 0; s < request->stages && status == BL_OK; s++) {
    status = alternate(schedule, s, request->stages - 1 - s);
  }
  return status;
}

// Twice the warm-up: stage s holds 2 (p - s) - 1 blocks.
bl_status_t bl__generate_eager_1f1b(const bl_schedule_request_t *request, bl_schedule_t *schedule, bl_error_t *err) {
  (void)err;
  bl_status_t status = BL_OK;
  for (uint32_t s = 0; s < request->stages && status == BL_OK; s++) {
    status = alternate(schedule, s, 2 * (request->stages - 1 - s));
  }
  return status;
}
