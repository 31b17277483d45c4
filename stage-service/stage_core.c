// SPDX-License-Identifier: Apache-2.0
#include "stage_core.h"

bl_stage_decision_t bl__stage_refuse(bl_error_t *err, bl_status_t status, const char *text) {
  (void)bl_error_set(err, status, "%s", text);
  return BL_STAGE_REFUSE;
}

void bl_stage_driven(bl_stage_t *stage) {
  stage->driven_ms = bl_loop_now_ms(stage->loop);
}
