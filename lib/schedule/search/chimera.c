// SPDX-License-Identifier: Apache-2.0
// Chimera (Li and Hoefler, SC 2021): two pipes in opposite directions on the same stages, each with a copy of the
// model. A basic unit (the paper's basic scheduling unit) sends p/2 micro-batches through each pipe by 1F1B. If every
// operation takes one tick, the two pipes never need a stage in the same tick. Basic units follow each other. The order
// is then improved with real costs, within its memory.
#include "base/minmax.h"
#include "schedule/search/search.h"
#include "schedule/search/searched.h"

#include <stdlib.h>

// Return the tick of a basic unit's micro-batch `i` at depth `d` of its pipe of p stages.
static uint32_t forward_tick(uint32_t p, uint32_t d, uint32_t i) {
  return i < p - d ? d + i : d + 2 * i;
}

static uint32_t backward_tick(uint32_t p, uint32_t d, uint32_t i) {
  return 2 * i + 2 * p - 1 - d;
}

// The micro-batches of one direction in one basic unit.
typedef struct share {
  uint32_t first, count;
} share_t;

// One operation of a basic unit on a stage.
typedef struct cell {
  uint32_t tick, pipe;
  bl_op_type_t type;
  uint32_t virtual_stage, micro_batch;
} cell_t;

static int by_tick(const void *a, const void *b) {
  const cell_t *x = a, *y = b;
  if (x->tick != y->tick) {
    return x->tick < y->tick ? -1 : 1;
  }
  return x->pipe != y->pipe ? (x->pipe < y->pipe ? -1 : 1) : 0;
}

// Appends one basic unit to all lists. `cells` [2 p] is scratch.
static bl_status_t fill_unit(bl_schedule_t *base, const share_t shares[2], cell_t *cells) {
  uint32_t p = base->stages;
  bl_status_t status = BL_OK;
  for (uint32_t stage = 0; stage < p && status == BL_OK; stage++) {
    uint32_t count = 0;
    for (uint32_t pipe = 0; pipe < 2; pipe++) {
      uint32_t depth = pipe == 0 ? stage : p - 1 - stage, virtual_stage = pipe * p + depth;
      for (uint32_t i = 0; i < shares[pipe].count; i++) {
        uint32_t micro_batch = shares[pipe].first + i;
        cells[count++] = (cell_t){forward_tick(p, depth, i), pipe, BL_OP_F, virtual_stage, micro_batch};
        cells[count++] = (cell_t){backward_tick(p, depth, i), pipe, BL_OP_B, virtual_stage, micro_batch};
      }
    }
    if (count > 0) {
      qsort(cells, count, sizeof *cells, by_tick);
    }
    for (uint32_t k = 0; k < count && status == BL_OK; k++) {
      status = bl__schedule_emit(base, cells[k].type, cells[k].virtual_stage, cells[k].micro_batch);
    }
  }
  return status;
}

static bl_status_t fill_base(bl_schedule_t *base) {
  uint32_t m = base->micro_batches, most = base->stages / 2, down = (m + 1) / 2; // of pipe 0; the rest are of pipe 1
  cell_t *cells = malloc(2 * (size_t)base->stages * sizeof *cells);
  bl_status_t status = cells != NULL ? BL_OK : BL_EXHAUSTED;
  for (uint32_t first = 0; first < down && status == BL_OK; first += most) {
    share_t shares[2] = {{first, bl_min_u32(most, down - first)}, {down + first, 0}};
    shares[1].count = first < m - down ? bl_min_u32(most, m - down - first) : 0;
    status = fill_unit(base, shares, cells);
  }
  free(cells);
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
  bl_schedule_t *base;
  bl_status_t status = bl_schedule_create_like(schedule, &base, err);
  if (status != BL_OK) {
    return status;
  }
  status = fill_base(base);
  if (status == BL_OK) {
    status = bl__improve_within(base, false, (bl__orders_t){&base, 1, NULL}, request, schedule);
  }
  bl_schedule_destroy(base);
  return status;
}
