// SPDX-License-Identifier: Apache-2.0
#include "schedule/balance/mix.h"

#include "schedule/ir/recompute.h"

#include <math.h>
#include <stdlib.h>

#define RECOMPUTE_TIME 1.0 // time of an R, in forwards

static const bl_costs_t equal_costs = BL_COSTS_UNIT;

bl_status_t bl__mix_init(bl__mix_t *mix, const bl_schedule_t *schedule, bl_balance_mode_t mode, double copy,
                         bl_error_t *err) {
  bl__mix_t made = {.schedule = schedule, .mode = mode, .copy = copy, .parks = UINT32_MAX};
  bl_status_t status = bl_schedule_check_plain(schedule, err);
  if (status != BL_OK) {
    return status;
  }
  made.given_up = calloc(bl_schedule_block_count(schedule), sizeof *made.given_up);
  if (made.given_up == NULL || bl__timing_init(&made.timing, schedule, &equal_costs) != BL_OK) {
    bl__mix_cleanup(&made);
    return bl_error_set(err, BL_EXHAUSTED, "out of memory for what schedule %s parks", schedule->name);
  }
  *mix = made;
  return BL_OK;
}

void bl__mix_cleanup(bl__mix_t *mix) {
  bl__timing_cleanup(&mix->timing);
  free(mix->given_up);
  *mix = (bl__mix_t){0};
}

void bl__mix_begin(bl__mix_t *mix, uint32_t stage, uint32_t most) {
  const bl_op_list_t *list = &mix->schedule->lists[stage];
  mix->stage = stage;
  mix->most = most;
  mix->late = mix->path = 0;
  for (size_t i = 0; i < list->count; i++) {
    mix->given_up[bl_schedule_block(mix->schedule, list->ops[i])] = 0;
  }
}

static double start_of(const bl__mix_t *mix, uint32_t index) {
  return mix->timing.starts[mix->stage][index];
}

static double end_of(const bl__mix_t *mix, uint32_t index) {
  bl_op_t op = mix->schedule->lists[mix->stage].ops[index];
  return start_of(mix, index) + bl_costs_op(&equal_costs, (bl_op_type_t)op.type, op.virtual_stage);
}

// Returns when the operation before `index` ends, which is when the copies that stand before `index` may begin.
static double begin_of(const bl__mix_t *mix, uint32_t index) {
  return index > 0 ? end_of(mix, index - 1) : 0;
}

// Returns when the stage needs the end of a copy that stands before `index`.
static double until_of(const bl__mix_t *mix, uint32_t index) {
  if (mix->mode == BL_BALANCE_FEWEST) {
    return start_of(mix, index);
  }
  return index + 1 < mix->schedule->lists[mix->stage].count ? start_of(mix, index + 1) : end_of(mix, index);
}

// Returns when a copy that stands before `index` begins.
static double copy_begins(const bl__mix_t *mix, uint32_t index) {
  double begin = fmax(mix->path, begin_of(mix, index) + mix->late);
  return mix->link != NULL ? fmax(*mix->link, begin) : begin;
}

double bl__mix_time(const bl__mix_t *mix, uint32_t index) {
  return start_of(mix, index) + mix->late;
}

// Assumes that the load will wait for the link as long as a copy would now.
bool bl__mix_hides(const bl__mix_t *mix, uint32_t index, uint32_t backward) {
  uint32_t load = mix->mode == BL_BALANCE_FEWEST ? backward : backward - 1;
  double begin = copy_begins(mix, index);
  double queue = mix->link != NULL ? begin - (begin_of(mix, index) + mix->late) : 0;
  double leaving = fmax(0, begin + mix->copy - until_of(mix, index) - mix->late);
  double returning = fmax(0, queue + mix->copy - (until_of(mix, load) - begin_of(mix, load)));
  double recompute =
      fmax(0, RECOMPUTE_TIME - (start_of(mix, backward) - begin_of(mix, backward))); // R needs no gradient
  return leaving + returning <= recompute;
}

void bl__mix_move(bl__mix_t *mix, uint32_t index) {
  mix->path = copy_begins(mix, index) + mix->copy;
  if (mix->link != NULL) {
    *mix->link = mix->path;
  }
  mix->late += fmax(0, mix->path - until_of(mix, index) - mix->late);
}

void bl__mix_run(bl__mix_t *mix, uint32_t index, bool recompute) {
  mix->late = fmax(0, begin_of(mix, index) + mix->late + (recompute ? RECOMPUTE_TIME : 0) - start_of(mix, index));
}
