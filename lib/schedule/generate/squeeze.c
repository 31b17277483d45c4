// SPDX-License-Identifier: Apache-2.0
#include "schedule/generate/squeeze.h"

#include "base/minmax.h"
#include "schedule/generate/generators.h"
#include "schedule/ir/dependency.h"

#include <stdlib.h>
#include <string.h>

#define NOTHING UINT32_MAX

// A run is one pass for one micro-batch: (index of the pass on its stage) x micro-batches + micro-batch.
typedef struct squeeze {
  bl_schedule_t *schedule;
  const bl__timetable_entry_t *passes;
  uint32_t count, period;
  uint32_t cells;     // of a stage
  uint32_t *planned;  // [stages][cells] the run that starts there in the timetable, or NOTHING
  uint32_t *placed;   // [stages][cells] the run that starts there now
  uint8_t *busy;      // [stages][cells]
  uint32_t *held;     // [stages][cells] blocks at the end of the cell
  uint32_t *start_of; // [types F, B, I, W][blocks] the cell in which a run starts now
  uint32_t most;      // blocks of the fullest stage in the timetable
} squeeze_t;

static uint32_t length_of(bl_op_type_t type) {
  return type == BL_OP_B ? 2 : 1;
}

static bl_op_t op_of(const squeeze_t *q, uint32_t stage, uint32_t run) {
  const bl__timetable_entry_t *pass = &q->passes[stage * q->count + run / q->schedule->micro_batches];
  return (bl_op_t){.type = (uint8_t)pass->type,
                   .virtual_stage = (uint16_t)pass->virtual_stage,
                   .micro_batch = run % q->schedule->micro_batches};
}

static uint32_t *place_of(const squeeze_t *q, bl_op_t op) {
  return &q->start_of[op.type * bl_schedule_block_count(q->schedule) + bl_schedule_block(q->schedule, op)];
}

// Returns the first cell after the end of the run.
static uint32_t after(const squeeze_t *q, bl_op_t op, bl_op_type_t type) {
  op.type = (uint8_t)type;
  return *place_of(q, op) + length_of(type);
}

// Returns the first cell at which all that the operation needs has ended and the same pass of the previous micro-batch
// has started.
static uint32_t earliest(const squeeze_t *q, bl_op_t op) {
  uint32_t cell = 0;
  bl_op_t needed;
  if (op.micro_batch > 0) {
    bl_op_t before = op;
    before.micro_batch--;
    cell = *place_of(q, before) + 1;
  }
  if (bl__op_dependency(q->schedule, op, &needed)) {
    cell = bl_max_u32(cell, after(q, needed, (bl_op_type_t)op.type));
  } else if (bl_op_type_starts_backward((bl_op_type_t)op.type)) {
    cell = bl_max_u32(cell, after(q, op, BL_OP_F));
  }
  return op.type == BL_OP_W ? bl_max_u32(cell, after(q, op, BL_OP_I)) : cell;
}

static void move(squeeze_t *q, uint32_t stage, uint32_t run, uint32_t from, uint32_t to) {
  bl_op_t op = op_of(q, stage, run);
  uint32_t length = length_of((bl_op_type_t)op.type), *held = q->held + (size_t)stage * q->cells;
  memset(q->busy + (size_t)stage * q->cells + from, 0, length);
  memset(q->busy + (size_t)stage * q->cells + to, 1, length);
  for (uint32_t cell = to; cell < from; cell++) {
    held[cell] += op.type == BL_OP_F;
    held[cell + length - 1] -= bl_op_type_ends_block((bl_op_type_t)op.type);
  }
  q->placed[(size_t)stage * q->cells + to] = run;
  *place_of(q, op) = to;
}

// Moves the run that the timetable has at `cell` to its squeezed cell.
static void squeeze_run(squeeze_t *q, uint32_t stage, uint32_t run, uint32_t cell) {
  bl_op_t op = op_of(q, stage, run);
  const uint8_t *busy = q->busy + (size_t)stage * q->cells;
  const uint32_t *held = q->held + (size_t)stage * q->cells;
  uint32_t first = earliest(q, op), to = first, length = length_of((bl_op_type_t)op.type);
  if (op.type == BL_OP_F) {
    for (to = cell; to > first && held[to - 1] < q->most; to--) {
    }
  }
  while (to < cell && (busy[to] || (to + 1 < cell && length == 2 && busy[to + 1]))) {
    to++;
  }
  move(q, stage, run, cell, to < cell ? to : cell);
}

// Fills in the timetable and the blocks that its stages hold.
static void lay_out(squeeze_t *q) {
  uint32_t m = q->schedule->micro_batches;
  for (uint32_t s = 0; s < q->schedule->stages; s++) {
    uint32_t *planned = q->planned + (size_t)s * q->cells, *held = q->held + (size_t)s * q->cells, now = 0;
    for (uint32_t run = 0; run < q->count * m; run++) {
      uint32_t cell = q->passes[s * q->count + run / m].at + q->period * (run % m);
      bl_op_type_t type = (bl_op_type_t)op_of(q, s, run).type;
      planned[cell] = run;
      memset(q->busy + (size_t)s * q->cells + cell, 1, length_of(type));
      held[cell] += type == BL_OP_F; // differences first
      held[cell + length_of(type) - 1] -= bl_op_type_ends_block(type);
    }
    for (uint32_t cell = 0; cell < q->cells; cell++) {
      now += held[cell];
      held[cell] = now;
      q->most = bl_max_u32(q->most, now);
    }
  }
}

static bl_status_t emit(squeeze_t *q) {
  bl_status_t status = BL_OK;
  for (uint32_t s = 0; s < q->schedule->stages; s++) {
    q->schedule->lists[s].count = 0;
    for (uint32_t cell = 0; cell < q->cells && status == BL_OK; cell++) {
      uint32_t run = q->placed[(size_t)s * q->cells + cell];
      status = run != NOTHING ? bl_schedule_append(q->schedule, s, op_of(q, s, run)) : BL_OK;
    }
  }
  return status;
}

bl_status_t bl__squeeze(bl_schedule_t *schedule, const bl__timetable_entry_t *passes, uint32_t count, uint32_t period) {
  squeeze_t q = {.schedule = schedule, .passes = passes, .count = count, .period = period};
  for (uint32_t k = 0; k < schedule->stages * count; k++) {
    q.cells = bl_max_u32(q.cells, passes[k].at + period * schedule->micro_batches);
  }
  size_t all = (size_t)schedule->stages * q.cells, blocks = bl_schedule_block_count(schedule);
  q.planned = malloc((2 * all + 1) * sizeof *q.planned);
  q.held = calloc(all + 1, sizeof *q.held);
  q.busy = calloc(all + 1, 1);
  q.start_of = calloc(4 * blocks, sizeof *q.start_of);
  bl_status_t status =
      q.planned != NULL && q.held != NULL && q.busy != NULL && q.start_of != NULL ? BL_OK : BL_EXHAUSTED;
  if (status == BL_OK) {
    q.placed = q.planned + all;
    memset(q.planned, 0xff, 2 * all * sizeof *q.planned);
    lay_out(&q);
    for (uint32_t cell = 0; cell < q.cells; cell++) {
      for (uint32_t s = 0; s < schedule->stages; s++) {
        uint32_t run = q.planned[(size_t)s * q.cells + cell];
        if (run != NOTHING) {
          squeeze_run(&q, s, run, cell);
        }
      }
    }
    status = emit(&q);
  }
  free(q.start_of);
  free(q.busy);
  free(q.held);
  free(q.planned);
  return status;
}
