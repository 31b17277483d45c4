// SPDX-License-Identifier: Apache-2.0
#include "schedule/generate/building_block.h"

#include "schedule/generate/timetable.h"

enum { F0, F1, I1, I0, W1, W0, PASSES };

// Returns the first cell after `at` that no pass of the row uses, modulo the period, and marks it used.
static uint32_t next_free(uint32_t at, uint8_t *used) {
  do {
    at++;
  } while (used[at % BL__BLOCK_PERIOD]);
  used[at % BL__BLOCK_PERIOD] = 1;
  return at;
}

static bool place_weights(bl__block_row_t *row) {
  uint8_t used[BL__BLOCK_PERIOD] = {0};
  for (int pass = F0; pass <= I0; pass++) {
    uint8_t *cell = &used[row->at[pass] % BL__BLOCK_PERIOD];
    if (*cell) {
      return false;
    }
    *cell = 1;
  }
  row->at[W1] = next_free(row->at[I1], used);
  row->at[W0] = next_free(row->at[I0], used);
  return true;
}

// Cells from the stage to the next one on the way down.
static uint32_t down_after(const bl__block_shape_t *shape, uint32_t stage) {
  return stage < shape->first ? shape->bend : shape->down;
}

bool bl__block_rows(const bl__block_shape_t *shape, uint32_t stages, bl__block_row_t *rows) {
  uint32_t now = 0;
  for (uint32_t s = 0; s < stages; s++) {
    rows[s].at[F0] = now;
    now += s + 1 < stages ? down_after(shape, s) : shape->reversal[0];
  }
  for (uint32_t s = stages; s-- > 0;) {
    rows[s].at[F1] = now;
    now += s > 0 ? shape->up : shape->reversal[1];
  }
  for (uint32_t s = 0; s < stages; s++) {
    rows[s].at[I1] = now;
    now += s + 1 < stages ? down_after(shape, s) : shape->reversal[2];
  }
  for (uint32_t s = stages; s-- > 0;) {
    rows[s].at[I0] = now;
    now += s > 0 ? shape->up : 0;
    if (!place_weights(&rows[s])) {
      return false;
    }
  }
  return true;
}

// Returns the number of micro-batches between `from` and the end of `to` in cell `at`, in the middle of the repetition.
static uint32_t alive(uint32_t from, uint32_t to, uint32_t at) {
  uint32_t phase = (at + BL__BLOCK_PERIOD - from % BL__BLOCK_PERIOD) % BL__BLOCK_PERIOD; // since the last start
  uint32_t life = to - from;
  return life >= phase ? (life - phase) / BL__BLOCK_PERIOD + 1 : 0;
}

uint32_t bl__block_peak(const bl__block_row_t *row) {
  uint32_t peak = 0;
  for (uint32_t at = 0; at < BL__BLOCK_PERIOD; at++) {
    uint32_t held = alive(row->at[F0], row->at[W0], at) + alive(row->at[F1], row->at[W1], at);
    peak = held > peak ? held : peak;
  }
  return peak;
}

bl_status_t bl__block_repeat(const bl__block_row_t *rows, bl_schedule_t *base) {
  static const bl_op_type_t types[] = {BL_OP_F, BL_OP_F, BL_OP_I, BL_OP_I, BL_OP_W, BL_OP_W};
  bl_status_t status = BL_OK;
  for (uint32_t s = 0; s < base->stages && status == BL_OK; s++) {
    bl__timetable_entry_t passes[PASSES];
    for (int pass = F0; pass < PASSES; pass++) {
      bool second = pass == F1 || pass == I1 || pass == W1;
      passes[pass] = (bl__timetable_entry_t){types[pass], second ? 2 * base->stages - 1 - s : s, rows[s].at[pass], 0};
    }
    status = bl__timetable_fill(base, s, passes, PASSES, BL__BLOCK_PERIOD, 1);
  }
  return status;
}
