// SPDX-License-Identifier: Apache-2.0
#include "schedule/ir/recompute.h"

#include <stdlib.h>

static bool same_block(bl_op_t a, bl_op_t b) {
  return a.virtual_stage == b.virtual_stage && a.micro_batch == b.micro_batch && a.slice == b.slice;
}

// Returns whether the operation at `index` starts a backward that needs an R.
static bool needs_again(const bl_op_list_t *list, size_t index, const uint8_t *keeps) {
  bl_op_t op = list->ops[index];
  if (!bl_op_type_starts_backward((bl_op_type_t)op.type) || keeps[op.virtual_stage] != 0) {
    return false;
  }
  return index == 0 || list->ops[index - 1].type != BL_OP_F || !same_block(list->ops[index - 1], op);
}

bl_status_t bl_schedule_check_plain(const bl_schedule_t *schedule, bl_error_t *err) {
  for (uint32_t s = 0; s < schedule->stages; s++) {
    for (size_t i = 0; i < schedule->lists[s].count; i++) {
      bl_op_t op = schedule->lists[s].ops[i];
      if (op.type == BL_OP_R || !bl_op_type_computes((bl_op_type_t)op.type)) {
        char cell[BL_OP_TEXT];
        return bl_error_set(err, BL_INVALID,
                            "stage %u, operation %zu (%s): only a schedule that does not recompute, evict or load yet "
                            "can be recomputed",
                            s, i, bl_op_format(op, cell));
      }
    }
  }
  return BL_OK;
}

// Sets *made to a new list: `list` with an R before each operation that needs one.
static bl_status_t with_recomputation(const bl_op_list_t *list, const uint8_t *keeps, bl_op_list_t *made) {
  size_t count = list->count;
  for (size_t i = 0; i < list->count; i++) {
    count += needs_again(list, i, keeps);
  }
  *made = (bl_op_list_t){.ops = malloc((count + 1) * sizeof *made->ops), .capacity = count + 1};
  if (made->ops == NULL) {
    return BL_EXHAUSTED;
  }
  for (size_t i = 0; i < list->count; i++) {
    if (needs_again(list, i, keeps)) {
      made->ops[made->count] = list->ops[i];
      made->ops[made->count++].type = BL_OP_R;
    }
    made->ops[made->count++] = list->ops[i];
  }
  return BL_OK;
}

// Returns [virtual stages], not 0 if the virtual stage keeps its blocks. The caller frees it; NULL without memory.
static uint8_t *kept_ones(const bl_schedule_t *schedule, uint32_t chunks) {
  uint32_t *before = calloc(schedule->stages, sizeof *before); // virtual stages of each stage so far
  uint8_t *keeps = calloc(schedule->virtual_stages, 1);
  for (uint32_t s = 0; before != NULL && keeps != NULL && chunks > 0 && s < schedule->virtual_stages; s++) {
    keeps[s] = before[schedule->stage_of[s]]++ >= chunks;
  }
  if (before == NULL) {
    free(keeps);
    keeps = NULL;
  }
  free(before);
  return keeps;
}

bl_status_t bl_schedule_recompute(bl_schedule_t *schedule, bl_error_t *err) {
  return bl_schedule_recompute_chunks(schedule, 0, err);
}

bl_status_t bl_schedule_recompute_chunks(bl_schedule_t *schedule, uint32_t chunks, bl_error_t *err) {
  bl_status_t status = bl_schedule_check_plain(schedule, err);
  if (status == BL_OK && chunks > schedule->chunks) {
    status = bl_error_set(err, BL_INVALID, "schedule %s: cannot recompute %u chunks of a stage, it has %u",
                          schedule->name, chunks, schedule->chunks);
  }
  if (status != BL_OK) {
    return status;
  }
  bl_op_list_t *lists = calloc(schedule->stages, sizeof *lists);
  uint8_t *keeps = kept_ones(schedule, chunks);
  for (uint32_t s = 0; lists != NULL && keeps != NULL && s < schedule->stages && status == BL_OK; s++) {
    status = with_recomputation(&schedule->lists[s], keeps, &lists[s]);
  }
  if (lists == NULL || keeps == NULL || status != BL_OK) {
    status = bl_error_set(err, BL_EXHAUSTED, "out of memory for the recomputation of schedule %s", schedule->name);
  }
  // Free the old lists on success, otherwise the new ones.
  for (uint32_t s = 0; lists != NULL && s < schedule->stages; s++) {
    bl_op_list_t made = lists[s];
    free(status == BL_OK ? schedule->lists[s].ops : made.ops);
    if (status == BL_OK) {
      schedule->lists[s] = made;
    }
  }
  free(keeps);
  free(lists);
  return status;
}
