// SPDX-License-Identifier: Apache-2.0
// Final norm, head and loss of the last chunk. Logits [head_rows, vocab], float whatever the dtype, rows logits_stride
// apart, are computed piece by piece in workspace and are replaced there with their own gradient. They are never stored
// whole (EXECUTION.md 6).
//
// If the vocabulary is in parts, the columns of each part are a head of their own, with logits of their own. Their rows
// are as far apart as those of a whole vocabulary would be: products and kernels want rows on whole cache lines, and the
// last part's columns are any number. Parts exchange the statistics of their columns, a few floats per row. Their
// gradients of the hidden state are summed like those of a layer.
#include "compute/model/chunk_internal.h"

#include <string.h>

static void *workspace_at(const bl_chunk_t *chunk, uint64_t offset_bytes) {
  return (char *)chunk->arenas.workspace + offset_bytes;
}

static void *row_of(const bl_chunk_t *chunk, const void *state, uint64_t row) {
  return (char *)(uintptr_t)state + row * chunk->model.hidden * bl_dtype_bytes(chunk->layout.options.dtype);
}

// Writes the final norm of own rows to the start of the workspace [own rows, hidden], and its statistics next to it.
// Returns all rows, there or in the group's window.
static void *normalise(bl_chunk_t *chunk, const void *hidden_state) {
  void *normalised = chunk->arenas.workspace;
  bl__norm_forward_rows(chunk, &chunk->final_norm, hidden_state, normalised,
                        workspace_at(chunk, chunk->workspace.stats_offset_bytes));
  return (void *)(uintptr_t)bl__all_rows(chunk, normalised); // valid until the next call of bl__all_rows
}

// The same for one row.
static const void *normalise_row(bl_chunk_t *chunk, const void *hidden_state, uint64_t row) {
  if (chunk->ranks > 1) {
    return row_of(chunk, normalise(chunk, hidden_state), row);
  }
  bl_norm_shape_t shape = chunk->norm;
  shape.rows = 1;
  void *normalised = chunk->arenas.workspace;
  chunk->ops->norm_forward(chunk->compute, &shape, row_of(chunk, hidden_state, row), chunk->final_norm.gain,
                           chunk->final_norm.bias, normalised,
                           workspace_at(chunk, chunk->workspace.stats_offset_bytes));
  return normalised;
}

// Only whole pieces read the packed weight.
static const void *packed_for(const bl__head_t *head, const bl_linear_op_t *op) {
  return op == head->whole ? head->linear.packed : head->linear.plain;
}

// Floats between rows of logits.
static uint64_t stride_of(const bl_chunk_t *chunk, const bl__head_t *head) {
  return chunk->workspace.logits_stride != 0 ? chunk->workspace.logits_stride : head->tokens.count;
}

static void logits_of(bl_chunk_t *chunk, const bl__head_t *head, bl_linear_op_t *op, const void *normalised,
                      uint64_t rows, float *logits) {
  chunk->ops->linear_forward(op, normalised, head->linear.weight, packed_for(head, op), NULL, NULL, logits);
  if (chunk->model.logit_softcap != 0) {
    chunk->ops->softcap_logits(chunk->compute, rows, head->tokens.count, stride_of(chunk, head),
                               (float)chunk->model.logit_softcap, logits);
  }
}

// The rows that the head computes. With large vocabularies it takes most of the time of a stage, so rows without a loss
// are left out where the CPU can move rows: those with one are moved to the front, which may save whole pieces. What is
// left of the last piece has no loss.
typedef struct {
  void *normalised; // [T, hidden]; `count` rows of it are computed
  const int32_t *labels;
  uint64_t count;
  bool moved;
} head_rows_t;

static uint64_t count_losses(const bl_chunk_t *chunk, const int32_t *labels) {
  uint64_t count = 0;
  for (uint64_t row = 0; row < chunk->rows; row++) {
    count += labels[row] >= 0;
  }
  return count;
}

static head_rows_t take_rows(bl_chunk_t *chunk, const int32_t *labels, void *normalised) {
  const head_rows_t all = {.normalised = normalised, .labels = labels, .count = chunk->rows};
  if (chunk->moved_labels == NULL) {
    return all;
  }
  const uint64_t piece = chunk->workspace.head_rows;
  const uint64_t needed = (count_losses(chunk, labels) + piece - 1) / piece * piece;
  if (needed >= chunk->rows) {
    return all;
  }
  uint64_t to = 0;
  for (uint64_t row = 0; row < chunk->rows; row++) {
    if (labels[row] >= 0) {
      memmove(row_of(chunk, normalised, to), row_of(chunk, normalised, row), bl__chunk_row_bytes(chunk));
      chunk->moved_labels[to++] = labels[row];
    }
  }
  while (to < needed) {
    chunk->moved_labels[to++] = -1;
  }
  return (head_rows_t){.normalised = normalised, .labels = chunk->moved_labels, .count = needed, .moved = true};
}

// Moves the gradients of rows that were moved to where they belong. Other rows have none.
static void put_back(const bl_chunk_t *chunk, const head_rows_t *rows, const int32_t *labels) {
  if (!rows->moved) {
    return;
  }
  uint64_t from = count_losses(chunk, labels);
  for (uint64_t row = chunk->rows; row-- > 0;) {
    if (labels[row] < 0) {
      memset(row_of(chunk, rows->normalised, row), 0, bl__chunk_row_bytes(chunk));
    } else if (--from != row) {
      memcpy(row_of(chunk, rows->normalised, row), row_of(chunk, rows->normalised, from), bl__chunk_row_bytes(chunk));
    }
  }
}

// Returns where row `moved` was before rows were moved: it has as many rows with a loss before it.
static int64_t place_of(const int32_t *labels, int64_t moved) {
  int64_t row = 0;
  for (int64_t before = 0; labels[row] < 0 || before < moved; row++) {
    before += labels[row] >= 0;
  }
  return row;
}

static void sum_losses(bl_chunk_t *chunk, const head_rows_t *rows, const int32_t *labels, bl_chunk_loss_t *loss) {
  const double *row_losses = workspace_at(chunk, chunk->workspace.losses_offset_bytes);
  chunk->ops->loss_sum(chunk->compute, rows->count, row_losses, &loss->sum, &loss->first_bad_row);
  if (rows->moved && loss->first_bad_row >= 0) {
    loss->first_bad_row = place_of(labels, loss->first_bad_row);
  }
}

double bl_chunk_loss_mean(const bl_chunk_t *chunk, const bl_chunk_loss_t *losses) {
  double sum = losses[0].sum;
  for (uint32_t i = 1; i < chunk->slices; i++) {
    sum += losses[i].sum;
  }
  return sum / chunk->loss_rows;
}

void bl_chunk_set_counted(bl_chunk_t *chunk, uint64_t counted, uint64_t micro_batches) {
  chunk->loss_rows = counted > 0 ? (double)counted / (double)micro_batches : 1;
  chunk->loss_scale = counted > 0 ? (float)(1.0 / (double)counted) : 0;
}

// Rows of the hidden state whose logits exist at a time.
typedef struct piece {
  uint64_t row, rows;
  bool whole; // as many rows as planned; false: the remaining ones
  void *normalised;
  const int32_t *labels;
  double *row_losses;
} piece_t;

static piece_t piece_at(bl_chunk_t *chunk, const head_rows_t *rows, uint64_t row) {
  const uint64_t left = rows->count - row, most = chunk->workspace.head_rows;
  double *row_losses = workspace_at(chunk, chunk->workspace.losses_offset_bytes);
  return (piece_t){.row = row,
                   .rows = left >= most ? most : left,
                   .whole = left >= most,
                   .normalised = row_of(chunk, rows->normalised, row),
                   .labels = rows->labels + row,
                   .row_losses = row_losses + row};
}

static bl_linear_op_t *op_for(const bl__head_t *head, const piece_t *piece) {
  return piece->whole ? head->whole : head->rest;
}

// Logits of the columns of the chunk's `index`-th part.
static float *logits_at(const bl_chunk_t *chunk, uint32_t index) {
  float *logits = workspace_at(chunk, chunk->workspace.logits_offset_bytes);
  return logits + index * chunk->workspace.head_rows * stride_of(chunk, &chunk->head[0]);
}

// Computes the losses of the rows, and replaces logits with their gradient.
static void lose(bl_chunk_t *chunk, const piece_t *piece) {
  const bl_ops_t *ops = chunk->ops;
  if (!bl__chunk_is_in_parts(chunk)) {
    logits_of(chunk, chunk->head, op_for(chunk->head, piece), piece->normalised, piece->rows, logits_at(chunk, 0));
    ops->cross_entropy(chunk->compute, piece->rows, chunk->model.vocab, stride_of(chunk, chunk->head), chunk->dtype,
                       piece->labels, chunk->loss_scale, (float)chunk->model.logit_softcap, logits_at(chunk, 0),
                       piece->row_losses);
    return;
  }
  const uint64_t floats = piece->rows * BL_SOFTMAX_STATISTICS; // of one part
  float *statistics = bl_group_window(chunk->group, BL_EXCHANGE_BUFFER_SCORES);
  for (uint32_t i = 0; i < chunk->here; i++) {
    const bl__head_t *head = &chunk->head[i];
    logits_of(chunk, head, op_for(head, piece), piece->normalised, piece->rows, logits_at(chunk, i));
    ops->softmax_statistics(chunk->compute, piece->rows, head->tokens.count, stride_of(chunk, head), head->tokens.first,
                            piece->labels, logits_at(chunk, i), statistics + (chunk->rank * chunk->here + i) * floats);
  }
  bl_group_gather(chunk->group, BL_EXCHANGE_BUFFER_SCORES, chunk->here * floats * sizeof(float));
  for (uint32_t i = 0; i < chunk->here; i++) {
    const bl__head_t *head = &chunk->head[i];
    ops->cross_entropy_part(chunk->compute, piece->rows, head->tokens.count, stride_of(chunk, head), head->tokens.first,
                            chunk->dtype, piece->labels, chunk->loss_scale, (float)chunk->model.logit_softcap,
                            chunk->parts, statistics, logits_at(chunk, i), i == 0 ? piece->row_losses : NULL);
  }
}

// Computes the gradients of the weights, and those of the rows: over `normalised`, or in `sums`, where each part writes
// its addend.
static void propagate(bl_chunk_t *chunk, const piece_t *piece, bool accumulate, void *sums) {
  const bl_ops_t *ops = chunk->ops;
  for (uint32_t i = 0; i < chunk->here && accumulate; i++) {
    const bl__head_t *head = &chunk->head[i];
    ops->linear_backward_weight(op_for(head, piece), piece->normalised, logits_at(chunk, i), true,
                                head->linear.weight_gradient);
  }
  for (uint32_t i = 0; i < chunk->here; i++) {
    const bl__head_t *head = &chunk->head[i];
    bl_linear_op_t *op = op_for(head, piece);
    void *dx = sums == NULL ? piece->normalised : row_of(chunk, bl__sum_of(chunk, sums, i), piece->row);
    ops->linear_backward_input(op, logits_at(chunk, i), head->linear.weight, packed_for(head, op), false, dx);
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
  void *normalised = normalise(chunk, out), *gradient = normalised;
  void *sums = bl__chunk_is_in_parts(chunk) ? bl__sum_begin(chunk, BL_EXCHANGE_BUFFER_HEAD_SUM) : NULL;
  const head_rows_t rows = take_rows(chunk, labels, normalised);
  for (uint64_t row = 0; row < rows.count; row += chunk->workspace.head_rows) {
    const piece_t piece = piece_at(chunk, &rows, row);
    lose(chunk, &piece);
    propagate(chunk, &piece, accumulate, sums);
  }
  put_back(chunk, &rows, labels);
  if (sums != NULL) {
    gradient = chunk->arenas.workspace;
    bl__sum_end(chunk, BL_EXCHANGE_BUFFER_HEAD_SUM, NULL, NULL, gradient);
  }
  bl__norm_backward_rows(chunk, &chunk->final_norm, gradient, out,
                         workspace_at(chunk, chunk->workspace.stats_offset_bytes), NULL, out,
                         bl__final_norm_gradient(chunk, slot));
  sum_losses(chunk, &rows, labels, loss);
}

void bl_chunk_loss(bl_chunk_t *chunk, const int32_t *labels, const void *out, bl_chunk_loss_t *loss) {
  const head_rows_t rows = take_rows(chunk, labels, normalise(chunk, out));
  for (uint64_t row = 0; row < rows.count; row += chunk->workspace.head_rows) {
    const piece_t piece = piece_at(chunk, &rows, row);
    lose(chunk, &piece);
  }
  sum_losses(chunk, &rows, labels, loss);
}

static void copy(bl_chunk_t *chunk, float *to, const float *from, uint64_t count) {
  bl_error_t err;
  bl_group_fail(chunk->group,
                bl_device_copy(chunk->device, bl__chunk_stream(chunk), to, from, count * sizeof *to, &err), &err);
}

// Returns the logits of one row, of all parts, one after the other.
static float *join_row(bl_chunk_t *chunk) {
  const uint64_t columns = bl_layer_parts_table_rows(chunk->model.vocab, chunk->parts), floats = chunk->here * columns;
  float *logits = bl_group_window(chunk->group, BL_EXCHANGE_BUFFER_SCORES);
  for (uint32_t i = 0; i < chunk->here; i++) {
    copy(chunk, logits + chunk->rank * floats + i * columns, logits_at(chunk, i), chunk->head[i].tokens.count);
  }
  bl_group_gather(chunk->group, BL_EXCHANGE_BUFFER_SCORES, floats * sizeof *logits);
  return logits;
}

// Returns the logits of a row, valid until the next operation.
static float *logits_of_row(bl_chunk_t *chunk, const void *out, uint64_t row) {
  const void *normalised = normalise_row(chunk, out, row);
  for (uint32_t i = 0; i < chunk->here; i++) {
    logits_of(chunk, &chunk->head[i], chunk->head[i].row, normalised, 1, logits_at(chunk, i));
  }
  return bl__chunk_is_in_parts(chunk) ? join_row(chunk) : logits_at(chunk, 0);
}

void bl_chunk_logits(bl_chunk_t *chunk, const void *out, uint64_t row, float *logits) {
  copy(chunk, logits, logits_of_row(chunk, out, row), chunk->model.vocab);
}

int32_t bl_chunk_draw(bl_chunk_t *chunk, const void *out, uint64_t row, float temperature, double uniform) {
  return chunk->ops->draw(chunk->compute, chunk->model.vocab, logits_of_row(chunk, out, row), temperature, uniform);
}
