// SPDX-License-Identifier: Apache-2.0
#include "schedule/search/steady_state.h"

#include "schedule/ir/timing.h"
#include "schedule/ir/validate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PERIOD_MAX     4    // maximum of micro-batches after which an order repeats itself
#define SHORTER_EFFORT 1    // share of the search for the shorter schedule
#define EFFORT_LEAST   0.05 // minimum effort of a search for which a shorter schedule is worth making
#define MOMENTS_MAX    24   // the step is divided into so many parts; a piece is looked for at each division

// An order and the times of its operations.
typedef struct timed {
  const bl_schedule_t *schedule;
  bl__timing_t timing;
} timed_t;

// Returns the first operation of a stage that starts at `moment` or later.
static size_t first_from(const timed_t *timed, uint32_t stage, double moment) {
  size_t low = 0, high = timed->schedule->lists[stage].count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (timed->timing.starts[stage][middle] < moment) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// Returns whether the stage, from `first` on, runs every pass `period` times before it runs any pass once more.
// `counts` is scratch, zero on entry and on return.
static bool repeats(const bl_schedule_t *schedule, uint32_t stage, size_t first, uint32_t period, uint32_t *counts) {
  const bl_op_list_t *list = &schedule->lists[stage];
  size_t length = list->count / schedule->micro_batches * period;
  if (first + length > list->count) {
    return false;
  }
  bool even = true;
  for (size_t i = first; i < first + length; i++) {
    even = even && ++counts[(size_t)list->ops[i].virtual_stage * BL_OP_TYPES + list->ops[i].type] <= period;
  }
  for (size_t i = first; i < first + length; i++) {
    counts[(size_t)list->ops[i].virtual_stage * BL_OP_TYPES + list->ops[i].type] = 0;
  }
  return even;
}

// Finds the piece of a stage's order that can be repeated and starts nearest to operation `near`. False if none starts
// within the length of a piece.
static bool find_piece(const bl_schedule_t *schedule, uint32_t stage, size_t near, uint32_t period, uint32_t *counts,
                       size_t *first) {
  size_t length = schedule->lists[stage].count / schedule->micro_batches * period;
  for (size_t away = 0; away <= length; away++) {
    *first = near + away;
    if (repeats(schedule, stage, *first, period, counts)) {
      return true;
    }
    *first = near - away;
    if (near >= away && repeats(schedule, stage, *first, period, counts)) {
      return true;
    }
  }
  return false;
}

static bl_status_t emit(bl_schedule_t *base, uint32_t stage, const bl_op_t *ops, size_t count, uint32_t *counts) {
  bl_status_t status = BL_OK;
  for (size_t i = 0; i < count && status == BL_OK; i++) {
    bl_op_t op = ops[i];
    op.micro_batch = counts[(size_t)op.virtual_stage * BL_OP_TYPES + op.type]++;
    status = bl_schedule_append(base, stage, op);
  }
  return status;
}

// Fills `base` with the order, in which every stage repeats a piece near `moment` as often as needed. Sets *possible to
// false if the stages do not repeat themselves there.
static bl_status_t fill(const timed_t *timed, double moment, uint32_t period, uint32_t *counts, size_t *pieces,
                        bl_schedule_t *base, bool *possible) {
  const bl_schedule_t *schedule = timed->schedule;
  size_t count_bytes = (size_t)schedule->virtual_stages * BL_OP_TYPES * sizeof *counts;
  uint32_t repetitions = (base->micro_batches - schedule->micro_batches) / period;
  bl_status_t status = BL_OK;
  memset(counts, 0, count_bytes);
  *possible = true;
  for (uint32_t s = 0; s < schedule->stages && *possible; s++) {
    *possible = find_piece(schedule, s, first_from(timed, s, moment), period, counts, &pieces[s]);
  }
  for (uint32_t s = 0; s < schedule->stages && *possible && status == BL_OK; s++) {
    const bl_op_list_t *list = &schedule->lists[s];
    size_t first = pieces[s], length = list->count / schedule->micro_batches * period;
    base->lists[s].count = 0;
    memset(counts, 0, count_bytes);
    status = emit(base, s, list->ops, first, counts);
    for (uint32_t k = 0; k < repetitions && status == BL_OK; k++) {
      status = emit(base, s, list->ops + first, length, counts);
    }
    if (status == BL_OK) {
      status = emit(base, s, list->ops + first, list->count - first, counts);
    }
  }
  memset(counts, 0, count_bytes);
  return status;
}

static bl_status_t try_all(bl__portfolio_t *portfolio, const timed_t *timed, uint32_t *counts, size_t *pieces,
                           bl_schedule_t *base) {
  uint32_t more = base->micro_batches - timed->schedule->micro_batches;
  bl_status_t status = BL_OK;
  for (uint32_t period = 1; period <= PERIOD_MAX; period++) {
    if (more % period != 0) {
      continue;
    }
    size_t count = bl_schedule_op_count(timed->schedule) / timed->schedule->micro_batches * base->micro_batches;
    for (uint32_t k = 1; k < MOMENTS_MAX && status == BL_OK && bl__portfolio_wants(portfolio, count); k++) {
      bool possible;
      status = fill(timed, timed->timing.t_end * k / MOMENTS_MAX, period, counts, pieces, base, &possible);
      if (status == BL_OK && possible && bl_schedule_validate(base, NULL, NULL) == BL_OK) {
        status = bl__portfolio_try(portfolio, base);
      }
    }
  }
  return status;
}

// Tries the extensions of `shorter`, a valid schedule of the same shape for fewer micro-batches, as bases.
static bl_status_t extend(bl__portfolio_t *portfolio, const bl_schedule_t *shorter, bl_schedule_t *base) {
  timed_t timed = {.schedule = shorter};
  uint32_t *counts = calloc((size_t)shorter->virtual_stages * BL_OP_TYPES, sizeof *counts);
  size_t *pieces = malloc(shorter->stages * sizeof *pieces);
  bl_status_t status = counts != NULL && pieces != NULL ? BL_OK : BL_EXHAUSTED;
  if (status == BL_OK) {
    status = bl__timing_init(&timed.timing, shorter, portfolio->costs);
  }
  if (status == BL_OK) {
    status = try_all(portfolio, &timed, counts, pieces, base);
  }
  bl__timing_cleanup(&timed.timing);
  free(pieces);
  free(counts);
  return status;
}

// Returns the micro-batches of the shorter schedule to make first; 0: none.
static uint32_t fewer_micro_batches(uint32_t stages, uint32_t micro_batches) {
  // The largest is just enough for a steady middle, the others lead up to it: short orders are easier to find.
  const uint32_t steps[] = {2 * stages, stages + (stages + 1) / 2, stages + (stages + 3) / 4};
  for (size_t k = 0; k < sizeof steps / sizeof steps[0] && stages > 1; k++) {
    if (micro_batches > steps[k]) {
      return steps[k];
    }
  }
  return 0;
}

bl_status_t bl__portfolio_from_shorter(bl__portfolio_t *portfolio, bl__generator_t *generate,
                                       const bl_schedule_request_t *request, bl_schedule_t *base) {
  bl_schedule_request_t shorter = *request;
  bl_schedule_t *made;
  shorter.micro_batches = fewer_micro_batches(request->stages, request->micro_batches);
  shorter.effort = request->effort * SHORTER_EFFORT;
  shorter.keep_placement = true;
  // F, I and W of every block
  bool huge = 3 * bl_schedule_block_count(base) > BL__PORTFOLIO_HUGE;
  if (shorter.micro_batches == 0 || huge || request->effort < EFFORT_LEAST) {
    return BL_OK;
  }
  bl_status_t status = bl__generate_with(generate, base->placement, &shorter, &made, NULL);
  if (status != BL_OK) {
    return status == BL_EXHAUSTED ? status : BL_OK;
  }
  bl__portfolio_renew(portfolio, PERIOD_MAX * MOMENTS_MAX);
  status = extend(portfolio, made, base);
  bl_schedule_destroy(made);
  return status;
}
