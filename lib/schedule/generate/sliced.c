// SPDX-License-Identifier: Apache-2.0
// Turns any order into one over slices of sequences, as Seq1F1B (Sun et al., 2024) does with 1F1B. The order of slices
// x m units is used, and each unit becomes a slice. A slice attends to the slices before it, so the backwards of a
// micro-batch run from its last slice to its first, and wait for the forward of the last slice. There are two ways to
// delay them:
//
//   by forwards   Every operation but the forwards is delayed by a number of forwards: slices - 1 if the forwards of a
//                 sequence follow each other. Needs least memory. Stages whose forwards are ordered differently from
//                 their neighbours' (a V) may wait for each other.
//   by units      Uses an order of slices - 1 more units: the backward of a unit becomes that of the unit slices - 1
//                 before it. The forwards of the last and the backwards of the first units are left out. All waits
//                 stay as they were, so no stage waits for ever. A stage keeps slices - 1 more blocks of each chunk.
#include "schedule/generate/sliced.h"

#include "schedule/ir/validate.h"

#include <stdlib.h>
#include <string.h>

static uint32_t slice_of(uint32_t unit, uint32_t slices, bl_op_type_t type) {
  const uint32_t slice = unit % slices;
  return type == BL_OP_F ? slice : slices - 1 - slice;
}

static bl_op_t cut(bl_op_t op, uint32_t slices) {
  const uint32_t unit = op.micro_batch;
  op.micro_batch = unit / slices;
  op.slice = (uint8_t)slice_of(unit, slices, (bl_op_type_t)op.type);
  return op;
}

// Returns the least delay, in forwards, with which every backward comes after the forwards that it needs on its own
// stage. `place` [virtual stages x units] is scratch.
static uint32_t least_delay(const bl_schedule_t *units, uint32_t slices, uint32_t *place) {
  const uint64_t m = units->micro_batches;
  uint32_t delay = 0;
  for (uint32_t s = 0; s < units->stages; s++) {
    const bl_op_list_t *list = &units->lists[s];
    uint32_t forwards = 0;
    for (size_t i = 0; i < list->count; i++) {
      const bl_op_t op = list->ops[i];
      if (op.type == BL_OP_F) {
        place[op.virtual_stage * m + op.micro_batch] = ++forwards;
      }
    }
    forwards = 0;
    for (size_t i = 0; i < list->count; i++) {
      const bl_op_t op = list->ops[i];
      forwards += op.type == BL_OP_F;
      if (bl_op_type_starts_backward((bl_op_type_t)op.type)) {
        const uint32_t of = op.micro_batch - op.micro_batch % slices + slice_of(op.micro_batch, slices, BL_OP_B);
        const uint32_t needed = place[op.virtual_stage * m + of];
        delay = needed > forwards + delay ? needed - forwards : delay;
      }
    }
  }
  return delay;
}

static size_t seek(const bl_op_list_t *list, size_t i, bool forward) {
  while (i < list->count && (list->ops[i].type == BL_OP_F) != forward) {
    i++;
  }
  return i;
}

// Appends a stage's list in which all operations but forwards are delayed by `delay` forwards.
static bl_status_t put_off(const bl_op_list_t *list, uint32_t delay, bl_schedule_t *sliced, uint32_t stage) {
  size_t forward = seek(list, 0, true), other = seek(list, 0, false), forwards = 0, others = 0;
  bl_status_t status = BL_OK;
  while (forwards + others < list->count && status == BL_OK) {
    const bool due = other < list->count && (forward == list->count || other - others + delay <= forwards);
    const size_t next = due ? other : forward;
    status = bl_schedule_append(sliced, stage, cut(list->ops[next], sliced->slices));
    forward = due ? forward : seek(list, next + 1, true);
    other = due ? seek(list, next + 1, false) : other;
    forwards += !due;
    others += due;
  }
  return status;
}

static bl_status_t put_off_all(const bl_schedule_t *units, uint32_t delay, bl_schedule_t *sliced) {
  bl_status_t status = BL_OK;
  for (uint32_t s = 0; s < units->stages && status == BL_OK; s++) {
    sliced->lists[s].count = 0;
    status = put_off(&units->lists[s], delay, sliced, s);
  }
  return status;
}

bl_status_t bl__schedule_cut(const bl_schedule_t *units, uint32_t slices, bl_schedule_t *sliced) {
  const uint32_t most = units->chunks * (slices - 1); // the delay by units
  uint32_t *place = calloc((size_t)units->virtual_stages * units->micro_batches, sizeof *place);
  bl_op_ref_t *order = malloc((bl_schedule_op_count(units) + 1) * sizeof *order);
  bl_status_t status = place != NULL && order != NULL ? BL_NOT_FOUND : BL_EXHAUSTED;
  sliced->slices = slices;
  uint32_t delay = status == BL_NOT_FOUND ? least_delay(units, slices, place) : 0;
  for (; status == BL_NOT_FOUND && delay <= most; delay++) {
    const bl_status_t made = put_off_all(units, delay, sliced);
    const bool works = made == BL_OK && bl_schedule_topological_order(sliced, order, NULL) == BL_OK;
    status = made != BL_OK ? made : works ? BL_OK : BL_NOT_FOUND;
  }
  free(place);
  free(order);
  return status;
}

bl_status_t bl__schedule_cut_by_units(const bl_schedule_t *units, uint32_t slices, bl_schedule_t *sliced) {
  const uint32_t late = slices - 1, count = sliced->micro_batches * slices;
  bl_status_t status = BL_OK;
  sliced->slices = slices;
  for (uint32_t s = 0; s < units->stages; s++) {
    sliced->lists[s].count = 0;
    for (size_t i = 0; i < units->lists[s].count && status == BL_OK; i++) {
      bl_op_t op = units->lists[s].ops[i];
      const bool forward = op.type == BL_OP_F;
      if (!forward && op.micro_batch < late) {
        continue;
      }
      op.micro_batch -= forward ? 0 : late;
      status = op.micro_batch < count ? bl_schedule_append(sliced, s, cut(op, slices)) : BL_OK;
    }
  }
  return status;
}
