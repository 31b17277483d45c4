// SPDX-License-Identifier: Apache-2.0
// 1F1B-V (Qi et al., NeurIPS 2024, appendix): a V with fused backward that takes two thirds of 1F1B's memory. The cells
// of the timetable are the paper's. The order is then improved with real costs, within its memory.
#include "schedule/generate/squeeze.h"
#include "schedule/generate/timetable.h"
#include "schedule/search/search.h"
#include "schedule/search/searched.h"

#include <stdlib.h>

#define PERIOD 6 // cells: two F of one cell, two B of two
#define PASSES 4 // of a stage

// Timetables that are tried: STARTS start cells of the first backward, PHASES positions in the rhythm of
// backward_clock_t.
#define STARTS   6
#define PHASES   3
#define VARIANTS (STARTS * PHASES)

// Start cells of backwards: two cells later per stage, and three more after every third one, because otherwise they
// collide with the cells of the next period.
typedef struct backward_clock {
  uint32_t now, phase;
} backward_clock_t;

static uint32_t next_backward(backward_clock_t *clock) {
  uint32_t at = clock->now;
  clock->now += 2;
  if (++clock->phase == PHASES) {
    clock->phase = 0;
    clock->now += 3;
  }
  return at;
}

static bool collides(const bl__timetable_entry_t *passes) {
  uint32_t used = 0;
  for (int k = 0; k < PASSES; k++) {
    for (uint32_t cell = 0; cell < (passes[k].type == BL_OP_B ? 2u : 1u); cell++) {
      uint32_t bit = 1u << ((passes[k].at + cell) % PERIOD);
      if (used & bit) {
        return true;
      }
      used |= bit;
    }
  }
  return false;
}

// Returns one timetable, which the caller frees. Sets *possible to false if its passes collide. NULL without memory.
static bl__timetable_entry_t *make_passes(uint32_t p, backward_clock_t clock, bool *possible) {
  bl__timetable_entry_t *passes = calloc(PASSES * (size_t)p, sizeof *passes);
  for (uint32_t k = 0; passes != NULL && k < 2 * p; k++) { // k-th backward: down the second chunk, up the first
    uint32_t s = k < p ? k : 2 * p - 1 - k, at = next_backward(&clock);
    bl__timetable_entry_t *of = passes + (size_t)PASSES * s;
    if (k < p) {
      of[0] = (bl__timetable_entry_t){BL_OP_F, s, s, 0};
      of[1] = (bl__timetable_entry_t){BL_OP_F, 2 * p - 1 - s, 2 * p - 1 - s, 0};
      of[2] = (bl__timetable_entry_t){BL_OP_B, 2 * p - 1 - s, at, 0};
    } else {
      of[3] = (bl__timetable_entry_t){BL_OP_B, s, at, 0};
    }
  }
  *possible = true;
  for (uint32_t s = 0; passes != NULL && s < p && *possible; s++) {
    *possible = !collides(passes + (size_t)PASSES * s);
  }
  return passes;
}

// Fills `base` with one timetable and `squeezed`, unless NULL, with the same timetable squeezed.
static bl_status_t fill_base(bl_schedule_t *base, backward_clock_t clock, bl_schedule_t *squeezed, bool *possible) {
  uint32_t p = base->stages;
  bl__timetable_entry_t *passes = make_passes(p, clock, possible);
  bl_status_t status = passes != NULL ? BL_OK : BL_EXHAUSTED;
  for (uint32_t s = 0; s < p && status == BL_OK && *possible; s++) {
    status = bl__timetable_fill(base, s, passes + (size_t)PASSES * s, PASSES, PERIOD, 1);
  }
  if (status == BL_OK && *possible && squeezed != NULL) {
    status = bl__squeeze(squeezed, passes, PASSES, PERIOD);
  }
  free(passes);
  return status;
}

bl_status_t bl__generate_1f1b_v(const bl_schedule_request_t *request, bl_schedule_t *schedule, bl_error_t *err) {
  (void)err;
  uint32_t p = request->stages, count = 0;
  bl_schedule_t *bases[1 + VARIANTS + 1] = {NULL};
  bl_status_t status = BL_OK;
  // Squeezing a large schedule takes too long and gains little.
  const bool squeezes = PASSES * (size_t)p * schedule->micro_batches <= BL__PORTFOLIO_HUGE;
  if (squeezes) {
    status = bl_schedule_create_like(schedule, &bases[count++], NULL);
  }
  for (uint32_t k = 0; k <= VARIANTS && status == BL_OK; k++) {
    // The published timetable is first: its memory is the limit for all.
    backward_clock_t published = {2 * p + (p % 3 == 0 ? 3 : 0), (3 - (p + 2) % 3) % 3};
    backward_clock_t other = {2 * p + (k - 1) / PHASES, (k - 1) % PHASES};
    bool possible = false;
    if (bases[count] == NULL) {
      status = bl_schedule_create_like(schedule, &bases[count], NULL);
    }
    if (status == BL_OK) {
      status = fill_base(bases[count], k == 0 ? published : other, k == 0 && squeezes ? bases[0] : NULL, &possible);
    }
    count += possible || k == 0;
  }
  if (status == BL_OK) {
    status = bl__improve_within(bases[squeezes ? 1 : 0], request->pooled,
                                (bl__orders_t){bases, count, bl__generate_1f1b_v}, request, schedule);
  }
  for (uint32_t k = 0; k <= VARIANTS + 1; k++) {
    bl_schedule_destroy(bases[k]);
  }
  return status;
}
