// SPDX-License-Identifier: Apache-2.0
// Chimera (Li and Hoefler, SC 2021): two pipes in opposite directions on the same stages, each with a copy of the
// model. A unit sends p/2 micro-batches through each of them by 1F1B; in slots of one operation the two never want a
// stage at the same time. Units follow each other; the order is then improved with real costs, within its memory.
#include "schedule/generators.h"
#include "schedule/peaks.h"
#include "schedule/portfolio.h"

#include <stdlib.h>

// Slot of the operation of a unit's micro-batch `i` at depth `d` of its pipe of p stages.
static uint32_t forward_slot(uint32_t p, uint32_t d, uint32_t i) {
  return i < p - d ? d + i : d + 2 * i;
}

static uint32_t backward_slot(uint32_t p, uint32_t d, uint32_t i) {
  return 2 * i + 2 * p - 1 - d;
}

// Micro-batches of one direction in one unit.
typedef struct share {
  uint32_t first, count;
} share_t;

static bl_status_t fill_unit(bl_schedule_t *base, const share_t shares[2]) {
  uint32_t p = base->stages, last_slot = 2 * p + p;
  bl_status_t status = BL_OK;
  for (uint32_t stage = 0; stage < p; stage++) {
    for (uint32_t slot = 0; slot < last_slot; slot++) {
      for (uint32_t pipe = 0; pipe < 2; pipe++) {
        uint32_t depth = pipe == 0 ? stage : p - 1 - stage;
        for (uint32_t i = 0; i < shares[pipe].count && status == BL_OK; i++) {
          if (forward_slot(p, depth, i) == slot) {
            status = bl__schedule_emit(base, BL_VERB_F, pipe * p + depth, shares[pipe].first + i);
          } else if (backward_slot(p, depth, i) == slot) {
            status = bl__schedule_emit(base, BL_VERB_B, pipe * p + depth, shares[pipe].first + i);
          }
        }
      }
    }
  }
  return status;
}

static uint32_t smaller(uint32_t a, uint32_t b) {
  return a < b ? a : b;
}

static bl_status_t fill_base(bl_schedule_t *base) {
  uint32_t m = base->micro_batches, unit = base->stages / 2, down = (m + 1) / 2; // the others go up
  bl_status_t status = BL_OK;
  for (uint32_t first = 0; first < down && status == BL_OK; first += unit) {
    share_t shares[2] = {{first, smaller(unit, down - first)}, {down + first, 0}};
    shares[1].count = first < m - down ? smaller(unit, m - down - first) : 0;
    status = fill_unit(base, shares);
  }
  return status;
}

bl_status_t bl__generate_chimera(const bl_schedule_request_t *request, bl_schedule_t *schedule, bl_error_t *err) {
  uint32_t p = request->stages;
  if (p % 2 != 0 || request->micro_batches < 2) {
    return bl_error_set(err, BL_INVALID,
                        "schedule chimera: needs an even number of stages and a micro-batch for each direction, not %u "
                        "and %u",
                        p, request->micro_batches);
  }
  bl_schedule_t *base = NULL;
  uint32_t *limits = malloc(p * sizeof *limits);
  bl_status_t status = limits != NULL ? bl__schedule_like(schedule, &base) : BL_EXHAUSTED;
  if (status == BL_OK) {
    status = fill_base(base);
  }
  if (status == BL_OK) {
    status = bl__worst_peak(base, limits);
  }
  if (status == BL_OK) {
    status = bl__improve(&base, 1, request, limits, schedule);
  }
  bl_schedule_destroy(base);
  free(limits);
  return status;
}
