// SPDX-License-Identifier: Apache-2.0
#include "schedule/search/drain.h"

#include <stdlib.h>

uint32_t bl__filled_most(const bl_schedule_t *schedule, bl__recompute_options_t recompute) {
  uint32_t most = 0;
  for (uint32_t s = 0; s < schedule->stages; s++) {
    uint32_t filled = 0;
    for (size_t i = 0; i < schedule->lists[s].count; i++) {
      bl_op_t op = schedule->lists[s].ops[i];
      bl_op_type_t type = (bl_op_type_t)op.type;
      bool kept = bl__chunk_kept(schedule, recompute, op.virtual_stage);
      filled += kept ? type == BL_OP_F : bl_op_type_starts_backward(type);
      most = filled > most ? filled : most;
      filled -= bl_op_type_ends_block(type);
    }
  }
  return most;
}

// The list of a stage and the positions of the W's that are due.
typedef struct drain {
  const bl_op_list_t *list;
  uint32_t *weight_of; // [blocks] position of the W
  uint8_t *done;       // [positions] 1: appended before its position
  uint32_t *due;       // positions of W's whose I has run
  uint32_t due_count;
} drain_t;

static uint32_t take_earliest(drain_t *d) {
  uint32_t first = 0;
  for (uint32_t k = 1; k < d->due_count; k++) {
    first = d->due[k] < d->due[first] ? k : first;
  }
  uint32_t place = d->due[first];
  d->due[first] = d->due[--d->due_count];
  return place;
}

static void forget(drain_t *d, uint32_t place) {
  for (uint32_t k = 0; k < d->due_count; k++) {
    if (d->due[k] == place) {
      d->due[k] = d->due[--d->due_count];
      return;
    }
  }
}

static bl_status_t drain_stage(drain_t *d, const bl_schedule_t *base, uint32_t stage, uint32_t slots,
                               bl_schedule_t *made) {
  bl_status_t status = BL_OK;
  d->due_count = 0;
  made->lists[stage].count = 0;
  for (uint32_t i = 0; i < d->list->count; i++) {
    d->done[i] = 0;
    if (d->list->ops[i].type == BL_OP_W) {
      d->weight_of[bl_schedule_block(base, d->list->ops[i])] = i;
    }
  }
  for (uint32_t i = 0; i < d->list->count && status == BL_OK; i++) {
    bl_op_t op = d->list->ops[i];
    while (bl_op_type_starts_backward((bl_op_type_t)op.type) && d->due_count >= slots && status == BL_OK) {
      uint32_t place = take_earliest(d);
      d->done[place] = 1;
      status = bl_schedule_append(made, stage, d->list->ops[place]);
    }
    if (status != BL_OK || d->done[i] != 0) {
      continue;
    }
    if (op.type == BL_OP_I) {
      d->due[d->due_count++] = d->weight_of[bl_schedule_block(base, op)];
    } else if (op.type == BL_OP_W) {
      forget(d, i);
    }
    status = bl_schedule_append(made, stage, op);
  }
  return status;
}

bl_status_t bl__drain(const bl_schedule_t *base, uint32_t slots, bl_schedule_t *made) {
  size_t longest = 0;
  for (uint32_t s = 0; s < base->stages; s++) {
    longest = base->lists[s].count > longest ? base->lists[s].count : longest;
  }
  drain_t d = {.weight_of = calloc(bl_schedule_block_count(base) + 1, sizeof *d.weight_of),
               .done = calloc(longest + 1, 1),
               .due = calloc(longest + 1, sizeof *d.due)};
  bl_status_t status = d.weight_of != NULL && d.done != NULL && d.due != NULL ? BL_OK : BL_EXHAUSTED;
  for (uint32_t s = 0; s < base->stages && status == BL_OK; s++) {
    d.list = &base->lists[s];
    status = drain_stage(&d, base, s, slots, made);
  }
  free(d.due);
  free(d.done);
  free(d.weight_of);
  return status;
}
