// SPDX-License-Identifier: Apache-2.0
#include "schedule/balance/drop.h"

#include "schedule/balance/eviction.h"
#include "schedule/ir/recompute.h"

#include <stdlib.h>
#include <string.h>

static bl_status_t no_memory(const bl_schedule_t *schedule, bl_error_t *err) {
  return bl_error_set(err, BL_EXHAUSTED, "out of memory for giving up blocks of schedule %s", schedule->name);
}

// Chooses the blocks of a stage that have no slot until their backward.
static bl_status_t choose(const bl_schedule_t *schedule, uint32_t stage, uint32_t own, bl__evictions_t *gone,
                          uint32_t *failed_at) {
  if (own == UINT32_MAX) {
    *gone = (bl__evictions_t){0};
    return BL_OK;
  }
  return bl__evictions_plan(schedule, stage, own, BL_BALANCE_FEWEST, NULL, gone, failed_at);
}

// Returns the minimum of slots that works for every stage; `own` is too few for `stage`.
static uint32_t find_fewest(const bl_schedule_t *schedule, uint32_t stage, uint32_t own) {
  uint32_t fewest = own + 1;
  for (uint32_t s = stage; s < schedule->stages;) { // `own` is enough for the stages before
    bl__evictions_t gone = {0};
    uint32_t ignored;
    if (choose(schedule, s, fewest, &gone, &ignored) == BL_EXHAUSTED) {
      fewest++;
    } else {
      s++;
    }
    bl__evictions_cleanup(&gone);
  }
  return fewest;
}

static bl_status_t refuse(const bl_schedule_t *schedule, uint32_t stage, uint32_t own, uint32_t failed_at,
                          bl_error_t *err) {
  char cell[BL_OP_TEXT];
  const uint32_t fewest = find_fewest(schedule, stage, own);
  return bl_error_set(err, BL_EXHAUSTED,
                      "stage %u, operation %u (%s): no slot is free among the stage's own %u and no block can be "
                      "dropped; the smallest that works is %u",
                      stage, failed_at, bl_op_format(schedule->lists[stage].ops[failed_at], cell), own, fewest);
}

// Appends the list of a stage, with an R before the backward of every chosen block.
static bl_status_t weave(const bl_schedule_t *schedule, uint32_t stage, const bl__evictions_t *gone, uint8_t *chosen,
                         bl_schedule_t *made) {
  const bl_op_list_t *list = &schedule->lists[stage];
  bl_status_t status = BL_OK;
  for (size_t i = 0; i < gone->count; i++) {
    chosen[bl_schedule_block(schedule, gone->transfers[i].op)] = 1;
  }
  for (size_t i = 0; i < list->count && status == BL_OK; i++) {
    bl_op_t op = list->ops[i];
    if (bl_op_type_starts_backward((bl_op_type_t)op.type) && chosen[bl_schedule_block(schedule, op)] != 0) {
      op.type = BL_OP_R;
      status = bl_schedule_append(made, stage, op);
    }
    status = status == BL_OK ? bl_schedule_append(made, stage, list->ops[i]) : status;
  }
  return status;
}

bl_status_t bl_schedule_drop(const bl_schedule_t *schedule, uint32_t slots, bl_schedule_t **made, uint32_t *dropped,
                             bl_error_t *err) {
  bl_schedule_t *copy = NULL;
  uint8_t *chosen = NULL;
  bl_status_t status = bl_schedule_check_plain(schedule, err);
  if (status == BL_OK) {
    status = bl_schedule_create_like(schedule, &copy, err);
  }
  if (status == BL_OK) {
    copy->forward_slots = true;
    chosen = calloc(bl_schedule_block_count(schedule), 1);
    status = chosen != NULL ? BL_OK : no_memory(schedule, err);
  }
  for (uint32_t s = 0; s < schedule->stages && status == BL_OK; s++) {
    bl__evictions_t gone = {0};
    uint32_t failed_at = 0;
    status = choose(schedule, s, slots, &gone, &failed_at);
    if (status == BL_EXHAUSTED) {
      status = refuse(schedule, s, slots, failed_at, err);
    } else if (status != BL_OK || weave(schedule, s, &gone, chosen, copy) != BL_OK) {
      status = no_memory(schedule, err);
    }
    if (dropped != NULL) {
      dropped[s] = gone.evicted;
    }
    bl__evictions_cleanup(&gone);
  }
  free(chosen);
  if (status != BL_OK) {
    bl_schedule_destroy(copy);
    return status;
  }
  *made = copy;
  return BL_OK;
}
