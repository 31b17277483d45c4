// SPDX-License-Identifier: Apache-2.0
#include "schedule/generate/block_ramps.h"

#include "base/minmax.h"
#include "schedule/generate/generators.h"

#include <stdlib.h>
#include <string.h>

enum { F0, F1, I1, I0, W1, W0, PASSES };

// One stage's order while it is built. Each pass runs its micro-batches in ascending order, so the pass alone
// identifies the next operation.
typedef struct ramps {
  bl_schedule_t *base;
  uint32_t stage, held;
  uint8_t *steady; // passes of the repeated block, in order
  size_t count;
  uint32_t done[PASSES]; // operations emitted
  uint8_t *pending;      // W's (W1 or W0) not emitted yet, in the order of their I's
  size_t pending_first, pending_end;
  bl_status_t status;
} ramps_t;

static void emit(ramps_t *r, int pass) {
  static const bl_op_type_t types[] = {BL_OP_F, BL_OP_F, BL_OP_I, BL_OP_I, BL_OP_W, BL_OP_W};
  const bool second = pass == F1 || pass == I1 || pass == W1;
  const uint32_t virtual_stage = second ? 2 * r->base->stages - 1 - r->stage : r->stage;
  if (r->status == BL_OK && r->done[pass] < r->base->micro_batches) {
    r->status = bl__schedule_emit(r->base, types[pass], virtual_stage, r->done[pass]);
    r->done[pass]++;
    if (pass == I1 || pass == I0) {
      r->pending[r->pending_end++] = pass == I1 ? W1 : W0;
    }
  }
}

// Emits the W that has waited longest, of either chunk.
static void emit_weight(ramps_t *r) {
  if (r->pending_first < r->pending_end) {
    emit(r, r->pending[r->pending_first++]);
  }
}

static void emit_any(ramps_t *r, int pass) {
  if (pass == W1 || pass == W0) {
    emit_weight(r);
  } else {
    emit(r, pass);
  }
}

// Lays out the repeated block for at least 2 p micro-batches; emit() skips those above m.
static void repeat(ramps_t *r, const bl__block_row_t *row) {
  const uint32_t m = r->base->micro_batches, all = bl_max_u32(m, 2 * r->base->stages);
  const uint32_t end = row->at[W0] + row->at[W1] + BL__BLOCK_PERIOD * all;
  r->count = 0;
  for (uint32_t cell = 0; cell < end; cell++) {
    for (int pass = F0; pass < PASSES; pass++) {
      const uint32_t at = row->at[pass];
      if (cell >= at && (cell - at) % BL__BLOCK_PERIOD == 0 && (cell - at) / BL__BLOCK_PERIOD < all) {
        r->steady[r->count++] = (uint8_t)pass;
      }
    }
  }
}

// Emits a new beginning: the operations before the first I of the first chunk in the steady order, in another order.
// Returns their number.
static size_t begin(ramps_t *r) {
  const uint32_t p = r->base->stages, s = r->stage;
  uint32_t had[PASSES] = {0}, done[PASSES] = {0};
  size_t first = 0;
  while (first < r->count && r->steady[first] != I0) {
    had[r->steady[first++]]++;
  }
  const uint32_t second = bl_min_u32(bl_min_u32(s + 1, r->held / 2), had[F1]);
  const uint32_t whole = bl_min_u32(r->held - bl_min_u32(s + 1, r->held / 2), had[F0]);
  for (uint32_t k = 0; k < 2 * (p - 1 - s) && done[F0] < whole; k++) {
    emit(r, F0);
    done[F0]++;
  }
  for (uint32_t k = 0; k <= s; k++) {
    if (done[F0] < whole) {
      emit(r, F0);
      done[F0]++;
    }
    if (done[F1] < second) {
      emit(r, F1);
      done[F1]++;
    }
  }
  while (done[F0] < had[F0] || done[F1] < had[F1] || done[I1] < had[I1] || done[W1] < had[W1]) {
    const int passes[] = {I1, W1, done[F1] < had[F1] ? F1 : F0};
    for (size_t k = 0; k < 3; k++) {
      if (done[passes[k]] < had[passes[k]]) {
        emit_any(r, passes[k]);
        done[passes[k]]++;
      }
    }
  }
  return first;
}

// Emits the I's and W's after the last F. Cells count from the end of the last F of stage 0. The last micro-batch is on
// this stage in cell s on the path down and in cell 2 p - 1 - s on the path up; each earlier micro-batch is two cells
// before the next one.
static void end(ramps_t *r, uint32_t last_second, uint32_t last_first) {
  const uint32_t p = r->base->stages, s = r->stage, m = r->base->micro_batches;
  for (int cell = -(int)(2 * m); cell <= (int)(2 * p - 1 - s); cell++) {
    const int down = (int)s - cell, up = (int)(2 * p - 1 - s) - cell;
    if (down >= 0 && down % 2 == 0 && (uint32_t)down / 2 < last_second) {
      emit(r, I1);
    } else if (up >= 0 && up % 2 == 0 && (uint32_t)up / 2 < last_first) {
      emit(r, I0);
    } else if (cell > -(int)s) {
      emit_weight(r);
    }
  }
  while (r->pending_first < r->pending_end) {
    emit_weight(r);
  }
}

static void fill(ramps_t *r) {
  const uint32_t m = r->base->micro_batches;
  const uint32_t last_first = bl_min_u32((r->held + 1) / 2, m);
  const uint32_t last_second = bl_min_u32(bl_min_u32(r->stage + 1, r->held - (r->held + 1) / 2), m);
  r->base->lists[r->stage].count = 0;
  memset(r->done, 0, sizeof r->done);
  r->pending_first = r->pending_end = 0;
  for (size_t i = begin(r); i < r->count && (r->done[F0] < m || r->done[F1] < m); i++) {
    const int pass = r->steady[i];
    if ((pass == I0 && r->done[I0] + last_first >= m) || (pass == I1 && r->done[I1] + last_second >= m)) {
      continue;
    }
    emit_any(r, pass);
  }
  while (r->done[I1] + last_second < m || r->done[I0] + last_first < m) {
    if (r->done[I1] + last_second < m) {
      emit(r, I1);
    }
    if (r->done[I0] + last_first < m) {
      emit(r, I0);
    }
    emit_weight(r);
  }
  end(r, m - r->done[I1], m - r->done[I0]);
}

bl_status_t bl__block_ramps(const bl__block_row_t *rows, uint32_t held, bl_schedule_t *base) {
  const size_t most = (size_t)PASSES * bl_max_u32(base->micro_batches, 2 * base->stages);
  ramps_t r = {.base = base, .held = bl_min_u32(held, 2 * base->stages), .status = BL_OK};
  r.steady = malloc(most);
  r.pending = malloc(most);
  r.status = r.steady != NULL && r.pending != NULL ? BL_OK : BL_EXHAUSTED;
  for (uint32_t s = 0; s < base->stages && r.status == BL_OK; s++) {
    r.stage = s;
    repeat(&r, &rows[s]);
    fill(&r);
  }
  free(r.pending);
  free(r.steady);
  return r.status;
}
