// SPDX-License-Identifier: Apache-2.0
#include "plan/candidate/slices.h"

#include "base/words.h"
#include "model/layer_parts.h"
#include "schedule/ir/schedule.h"

#include <stdio.h>
#include <string.h>

bool bl__slices_possible(const bl_model_t *model, const bl_plan_candidate_t *candidate, char why[BL_PLAN_WHY]) {
  const uint32_t slices = candidate->slices;
  bl_error_t err = {0};
  if (slices > BL_SLICES_MAX) {
    (void)bl_error_set(&err, BL_INVALID, "there are at most %d", BL_SLICES_MAX);
  } else if (model->seq % slices != 0) {
    (void)bl_error_set(&err, BL_INVALID, "%u slices do not divide sequences of %u tokens", slices, model->seq);
  } else {
    const uint64_t rows = (uint64_t)candidate->micro_batch * model->seq / slices;
    (void)!bl_layer_parts_check(model, candidate->parallel.tensor, rows, &err);
  }
  if (why != NULL) {
    snprintf(why, BL_PLAN_WHY, "%.*s", BL_PLAN_WHY - 1, err.text);
  }
  return err.text[0] == '\0';
}

static bool has(const bl_plan_request_t *request, const char *schedule) {
  for (uint32_t i = 0; i < request->schedule_count; i++) {
    if (strcmp(request->schedules[i], schedule) == 0) {
      return true;
    }
  }
  return request->schedule_count == 0;
}

bool bl__slices_apply(const bl_plan_request_t *request, const bl_schedule_info_t *info, uint32_t slices) {
  if (slices == 1) {
    return info->default_slices == 1;
  }
  return strcmp(info->name, "1f1b") != 0 || !has(request, "seq1f1b");
}
