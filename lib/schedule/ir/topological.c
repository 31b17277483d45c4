// SPDX-License-Identifier: Apache-2.0
#include "schedule/ir/cycle.h"
#include "schedule/ir/dependency.h"
#include "schedule/ir/located.h"
#include "schedule/ir/work_list.h"

#include <stdio.h>
#include <stdlib.h>

enum { DONE_F = 1, DONE_BACKWARD = 2 };

typedef struct walk {
  const bl_schedule_t *schedule;
  uint8_t *done;  // [blocks]
  uint32_t *next; // [stages] index of the operation to look at
  bl__work_list_t work;
} walk_t;

static bool satisfied(const walk_t *w, bl_op_t op, bl_op_t *needed) {
  if (!bl__op_dependency(w->schedule, op, needed)) {
    return true;
  }
  uint8_t done = w->done[bl_schedule_block(w->schedule, *needed)];
  return (done & (needed->type == BL_OP_F ? DONE_F : DONE_BACKWARD)) != 0;
}

// Marks `op` done and adds the stage that may wait for it to the work list.
static void finish(walk_t *w, bl_op_t op) {
  const bl_schedule_t *schedule = w->schedule;
  uint8_t *done = &w->done[bl_schedule_block(schedule, op)];
  if (op.type == BL_OP_F) {
    *done |= DONE_F;
    if (!bl_schedule_is_last(schedule, op.virtual_stage)) {
      (void)bl__work_list_add(&w->work, schedule->stage_of[op.virtual_stage + 1]);
    }
  } else if (bl_op_type_starts_backward((bl_op_type_t)op.type)) {
    *done |= DONE_BACKWARD;
    if (!bl_schedule_is_first(schedule, op.virtual_stage)) {
      (void)bl__work_list_add(&w->work, schedule->stage_of[op.virtual_stage - 1]);
    }
  }
}

// Operations that wait for each other in a cycle.
typedef struct circle {
  const bl_schedule_t *schedule;
  const bl__places_t *places;
  const bl_op_ref_t *waiting; // [edges]
} circle_t;

static bl_op_t op_of(const bl_schedule_t *schedule, bl_op_ref_t at) {
  return schedule->lists[at.stage].ops[at.index];
}

// Writes "0B0 (row 1, column 2)".
static void format_operation(const void *context, uint32_t edge, bool awaited, char text[BL__CYCLE_PART]) {
  const circle_t *circle = context;
  bl_op_ref_t at = circle->waiting[edge];
  bl_op_t op = op_of(circle->schedule, at);
  if (awaited) {
    (void)bl__op_dependency(circle->schedule, op, &op);
    op = bl__op_find(circle->schedule, op, &at) ? op_of(circle->schedule, at) : op;
  }
  char cell[BL_OP_TEXT], place[BL__PLACE_TEXT];
  snprintf(text, BL__CYCLE_PART, "%s (%s)", bl_op_format(op, cell), bl__place_text(circle->places, at, place));
}

// No stage can proceed. Follows the waits from stage to stage until a stage repeats, and reports that cycle. `waiting`
// has room for every operation.
static bl_status_t name_cycle(walk_t *w, bl_op_ref_t *waiting, const bl__places_t *places, bl_error_t *err) {
  const bl_schedule_t *schedule = w->schedule;
  uint32_t stage = 0;
  while (w->next[stage] == schedule->lists[stage].count) {
    stage++;
  }
  bl_op_t needed;
  while (bl__work_list_add(&w->work, stage)) { // enter the cycle: until a stage repeats
    (void)satisfied(w, schedule->lists[stage].ops[w->next[stage]], &needed);
    stage = schedule->stage_of[needed.virtual_stage];
    if (w->next[stage] == schedule->lists[stage].count) { // possible in lists that are not validated
      char cell[BL_OP_TEXT];
      return bl_error_set(err, BL_INVALID, "the lists cannot run: %s is missing", bl_op_format(needed, cell));
    }
  }
  uint32_t edges = 0;
  for (uint32_t first = stage; edges == 0 || stage != first; edges++) {
    waiting[edges] = (bl_op_ref_t){stage, w->next[stage]};
    (void)satisfied(w, op_of(schedule, waiting[edges]), &needed);
    stage = schedule->stage_of[needed.virtual_stage];
  }
  circle_t circle = {schedule, places, waiting};
  char text[BL__CYCLE_TEXT];
  return bl_error_set(err, BL_INVALID, "the lists cannot run, a cycle: %s",
                      bl__cycle_text(&(bl__cycle_t){format_operation, &circle, edges}, text));
}

bl_status_t bl__schedule_topological_order_at(const bl_schedule_t *schedule, bl_op_ref_t *order,
                                              const bl__places_t *places, bl_error_t *err) {
  walk_t w = {.schedule = schedule};
  w.done = calloc(bl_schedule_block_count(schedule), 1);
  w.next = calloc(schedule->stages, sizeof w.next[0]);
  const bool listed = bl__work_list_init(&w.work, schedule->stages);
  bl_status_t status = BL_OK;
  if (w.done == NULL || w.next == NULL || !listed) {
    status = bl_error_set(err, BL_EXHAUSTED, "out of memory for %u stages", schedule->stages);
    goto free_walk;
  }
  size_t count = 0;
  uint32_t stage;
  while (bl__work_list_take(&w.work, &stage)) {
    const bl_op_list_t *list = &schedule->lists[stage];
    bl_op_t needed;
    while (w.next[stage] < list->count && satisfied(&w, list->ops[w.next[stage]], &needed)) {
      order[count++] = (bl_op_ref_t){stage, w.next[stage]};
      finish(&w, list->ops[w.next[stage]++]);
    }
  }
  if (count < bl_schedule_op_count(schedule)) {
    status = name_cycle(&w, order, places, err);
  }
free_walk:
  bl__work_list_cleanup(&w.work);
  free(w.next);
  free(w.done);
  return status;
}

bl_status_t bl_schedule_topological_order(const bl_schedule_t *schedule, bl_op_ref_t *order, bl_error_t *err) {
  return bl__schedule_topological_order_at(schedule, order, NULL, err);
}
