// SPDX-License-Identifier: Apache-2.0
// Final norm, head and loss of the last chunk. Logits [head_rows, vocab], floats whatever the dtype, are made piece by
// piece in workspace, become their own gradient there, and are gone: they are never stored whole (EXECUTION.md 6).
#include "compute/model/chunk_internal.h"

static void *workspace_at(const bl_chunk_t *chunk, uint64_t offset_bytes) {
  return (char *)chunk->arenas.workspace + offset_bytes;
}

static void *row_of(const bl_chunk_t *chunk, const void *state, uint64_t row) {
  return (char *)(uintptr_t)state + row * chunk->model.hidden * bl_dtype_bytes(chunk->layout.options.dtype);
}

// The final norm of `rows` rows into the start of the workspace [rows, hidden]; its statistics beside it.
static void *normalise(bl_chunk_t *chunk, const void *hidden_state, uint64_t rows) {
  bl_norm_shape_t shape = chunk->norm;
  shape.rows = rows;
  void *normalised = chunk->arenas.workspace;
  chunk->ops->norm_forward(chunk->compute, &shape, hidden_state, chunk->final_norm.gain, chunk->final_norm.bias,
                           normalised, workspace_at(chunk, chunk->workspace.stats_offset_bytes));
  return normalised;
}

// Only whole pieces read the packed weight.
static const void *packed_for(const bl_chunk_t *chunk, const bl_linear_op_t *op) {
  return op == chunk->head ? chunk->head_linear.packed : chunk->head_linear.plain;
}

static void logits_of(bl_chunk_t *chunk, bl_linear_op_t *op, const void *normalised, float *logits) {
  chunk->ops->linear_forward(op, normalised, chunk->head_linear.weight, packed_for(chunk, op), NULL, NULL, logits);
}

static void sum_losses(bl_chunk_t *chunk, bl_chunk_loss_t *loss) {
  const double *row_losses = workspace_at(chunk, chunk->workspace.losses_offset_bytes);
  chunk->ops->loss_sum(chunk->compute, chunk->rows, row_losses, &loss->sum, &loss->first_bad_row);
}

double bl_chunk_loss_mean(const bl_chunk_t *chunk, const bl_chunk_loss_t *loss) {
  return loss->sum / (double)chunk->rows;
}

// Runs the pieces: losses of all rows, and with `backward` the gradient of `normalised` over it and of the weight.
static void run_pieces(bl_chunk_t *chunk, const int32_t *labels, void *normalised, bool backward, bool accumulate) {
  const bl_ops_t *ops = chunk->ops;
  float *logits = workspace_at(chunk, chunk->workspace.logits_offset_bytes);
  double *row_losses = workspace_at(chunk, chunk->workspace.losses_offset_bytes);
  for (uint64_t row = 0; row < chunk->rows; row += chunk->workspace.head_rows) {
    bool whole = chunk->rows - row >= chunk->workspace.head_rows;
    uint64_t rows = whole ? chunk->workspace.head_rows : chunk->rows - row;
    bl_linear_op_t *op = whole ? chunk->head : chunk->head_rest;
    void *piece = row_of(chunk, normalised, row);
    logits_of(chunk, op, piece, logits);
    ops->cross_entropy(chunk->compute, rows, chunk->model.vocab, chunk->dtype, labels + row, chunk->loss_scale, logits,
                       row_losses + row);
    if (backward && accumulate) {
      ops->linear_backward_weight(op, piece, logits, true, chunk->head_linear.weight_gradient, NULL);
    }
    if (backward) {
      ops->linear_backward_input(op, logits, chunk->head_linear.weight, packed_for(chunk, op), false, piece);
    }
  }
}

float *bl__final_norm_gradient(const bl_chunk_t *chunk, void *slot) {
  bl_segment_t segment;
  if (!bl_layout_segment(&chunk->layout, 0, BL_SEGMENT_FINAL_GRADIENT, &segment)) {
    return NULL;
  }
  return (float *)(void *)((char *)slot + segment.offset_bytes);
}

void bl__head_backward(bl_chunk_t *chunk, const int32_t *labels, void *slot, void *out, bool accumulate,
                       bl_chunk_loss_t *loss) {
  void *normalised = normalise(chunk, out, chunk->rows);
  run_pieces(chunk, labels, normalised, true, accumulate);
  chunk->ops->norm_backward(chunk->compute, &chunk->norm, normalised, out, chunk->final_norm.gain,
                            workspace_at(chunk, chunk->workspace.stats_offset_bytes), NULL, out,
                            bl__final_norm_gradient(chunk, slot));
  sum_losses(chunk, loss);
}

void bl_chunk_loss(bl_chunk_t *chunk, const int32_t *labels, const void *out, bl_chunk_loss_t *loss) {
  run_pieces(chunk, labels, normalise(chunk, out, chunk->rows), false, false);
  sum_losses(chunk, loss);
}

void bl_chunk_logits(bl_chunk_t *chunk, const void *out, uint64_t row, float *logits) {
  logits_of(chunk, chunk->head_row, normalise(chunk, row_of(chunk, out, row), 1), logits);
}

int32_t bl_chunk_draw(bl_chunk_t *chunk, const void *out, uint64_t row, float temperature, double uniform) {
  float *logits = workspace_at(chunk, chunk->workspace.logits_offset_bytes);
  bl_chunk_logits(chunk, out, row, logits);
  return chunk->ops->draw(chunk->compute, chunk->model.vocab, logits, temperature, uniform);
}
