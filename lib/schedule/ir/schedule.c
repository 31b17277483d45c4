// SPDX-License-Identifier: Apache-2.0
#include "schedule/ir/schedule.h"

#include "base/words.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint16_t place(bl_placement_t placement, uint32_t stages, uint32_t chunks, uint32_t virtual_stage) {
  uint32_t round = virtual_stage / stages, rest = virtual_stage % stages;
  switch (placement) {
  case BL_PLACEMENT_LOOPED:
    return (uint16_t)rest;
  case BL_PLACEMENT_CONTIGUOUS:
    return (uint16_t)(virtual_stage / chunks);
  case BL_PLACEMENT_V:
  case BL_PLACEMENT_BIDIRECTIONAL:
    return (uint16_t)(round % 2 == 0 ? rest : stages - 1 - rest);
  default:
    return 0;
  }
}

static bl_status_t check_shape(bl_placement_t placement, uint32_t stages, uint32_t chunks, uint32_t micro_batches,
                               bl_error_t *err) {
  if (stages < 1 || stages > BL_STAGES_MAX) {
    return bl_error_set(err, BL_INVALID, "stages: must be from 1 to %d, is %u", BL_STAGES_MAX, stages);
  }
  if (chunks < 1 || chunks > BL_VIRTUAL_STAGES_MAX / stages) {
    return bl_error_set(err, BL_INVALID, "chunks: must be from 1 to %u with %u stage%s, is %u",
                        BL_VIRTUAL_STAGES_MAX / stages, stages, bl_plural(stages), chunks);
  }
  if (micro_batches < 1 || micro_batches > BL_MICRO_BATCHES_MAX) {
    return bl_error_set(err, BL_INVALID, "micro-batches: must be from 1 to %d, is %u", BL_MICRO_BATCHES_MAX,
                        micro_batches);
  }
  if (placement == BL_PLACEMENT_BIDIRECTIONAL && chunks != 2) {
    return bl_error_set(err, BL_INVALID, "chunks: a bidirectional schedule has 2, one of each direction, not %u",
                        chunks);
  }
  if ((uint64_t)stages * chunks * micro_batches > BL_SCHEDULE_OPS_MAX) {
    return bl_error_set(err, BL_INVALID,
                        "%u stage%s with %u chunk%s each and %u micro-batch%s are too many operations for one schedule",
                        stages, bl_plural(stages), chunks, bl_plural(chunks), micro_batches,
                        bl_one_or_many(micro_batches, "", "es"));
  }
  return BL_OK;
}

bl_status_t bl_schedule_create(const char *name, bl_placement_t placement, uint32_t stages, uint32_t chunks,
                               uint32_t micro_batches, bl_schedule_t **schedule, bl_error_t *err) {
  bl_status_t status = check_shape(placement, stages, chunks, micro_batches, err);
  if (status != BL_OK) {
    return status;
  }
  bl_schedule_t *made = calloc(1, sizeof *made);
  if (made != NULL) {
    made->stage_of = calloc((size_t)stages * chunks, sizeof made->stage_of[0]);
    made->lists = calloc(stages, sizeof made->lists[0]);
  }
  if (made == NULL || made->stage_of == NULL || made->lists == NULL) {
    bl_schedule_destroy(made);
    return bl_error_set(err, BL_EXHAUSTED, "out of memory for a schedule of %u stages", stages);
  }
  snprintf(made->name, sizeof made->name, "%s", name);
  made->stages = stages;
  made->chunks = chunks;
  made->micro_batches = micro_batches;
  made->slices = 1;
  made->pipes = placement == BL_PLACEMENT_BIDIRECTIONAL ? 2 : 1;
  made->virtual_stages = stages * chunks;
  made->placement = placement;
  for (uint32_t s = 0; s < made->virtual_stages; s++) {
    made->stage_of[s] = place(placement, stages, chunks, s);
  }
  *schedule = made;
  return BL_OK;
}

bl_status_t bl_schedule_create_like(const bl_schedule_t *like, bl_schedule_t **schedule, bl_error_t *err) {
  bl_schedule_t *made;
  bl_status_t status =
      bl_schedule_create(like->name, BL_PLACEMENT_OTHER, like->stages, like->chunks, like->micro_batches, &made, err);
  if (status != BL_OK) {
    return status;
  }
  uint16_t *stage_of = made->stage_of;
  bl_op_list_t *lists = made->lists;
  memcpy(stage_of, like->stage_of, like->virtual_stages * sizeof *stage_of);
  *made = *like;
  made->stage_of = stage_of;
  made->lists = lists;
  *schedule = made;
  return BL_OK;
}

void bl_schedule_destroy(bl_schedule_t *schedule) {
  if (schedule == NULL) {
    return;
  }
  for (uint32_t s = 0; schedule->lists != NULL && s < schedule->stages; s++) {
    free(schedule->lists[s].ops);
  }
  free(schedule->lists);
  free(schedule->stage_of);
  free(schedule);
}

bl_status_t bl_schedule_reserve(bl_schedule_t *schedule, uint32_t stage, size_t count) {
  bl_op_list_t *list = &schedule->lists[stage];
  if (list->capacity < count) {
    bl_op_t *ops = realloc(list->ops, count * sizeof *ops);
    if (ops == NULL) {
      return BL_EXHAUSTED;
    }
    list->ops = ops;
    list->capacity = count;
  }
  return BL_OK;
}

bl_status_t bl_schedule_append(bl_schedule_t *schedule, uint32_t stage, bl_op_t op) {
  bl_op_list_t *list = &schedule->lists[stage];
  if (list->count == list->capacity) {
    bl_status_t status = bl_schedule_reserve(schedule, stage, list->capacity == 0 ? 64 : list->capacity * 2);
    if (status != BL_OK) {
      return status;
    }
  }
  list->ops[list->count++] = op;
  return BL_OK;
}

bl_status_t bl_schedule_copy_lists(const bl_schedule_t *from, bl_schedule_t *to) {
  bl_status_t status = BL_OK;
  for (uint32_t s = 0; s < from->stages && status == BL_OK; s++) {
    const bl_op_list_t *list = &from->lists[s];
    to->lists[s].count = 0;
    status = bl_schedule_reserve(to, s, list->count);
    if (status == BL_OK && list->count > 0) {
      memcpy(to->lists[s].ops, list->ops, list->count * sizeof *list->ops);
      to->lists[s].count = list->count;
    }
  }
  return status;
}

const char *bl_store_format(uint32_t stages, uint32_t store, char text[BL_STORE_TEXT]) {
  const bool of_host = store >= stages;
  snprintf(text, BL_STORE_TEXT, "%s %u", of_host ? "host store" : "store of device", of_host ? store - stages : store);
  return text;
}

double bl_schedule_block_weight(const bl_schedule_t *schedule) {
  return (double)schedule->pipes / ((double)schedule->chunks * schedule->slices);
}

size_t bl_schedule_op_count(const bl_schedule_t *schedule) {
  size_t count = 0;
  for (uint32_t s = 0; s < schedule->stages; s++) {
    count += schedule->lists[s].count;
  }
  return count;
}

size_t bl_schedule_block_count(const bl_schedule_t *schedule) {
  return (size_t)schedule->virtual_stages * schedule->micro_batches * schedule->slices;
}
