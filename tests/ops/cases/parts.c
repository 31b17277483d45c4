// SPDX-License-Identifier: Apache-2.0
// sum_parts dims: rows, width, parts. BIAS, RESIDUAL: adds one. IN_PLACE: y over the residual, or over the last part.
// embedding_parts dims: batch, rows of a sequence, width, vocab, parts, first position. BIAS: with learned positions.
// SCALE: of tokens' rows. The tables are cut as those of a model.
// cross_entropy_parts dims: rows, vocab, parts, multiple of floats between rows (0: dense). SOFTCAP: logits are
// softcapped first.
#include "model/layer_parts.h"
#include "ops/cases/op_case.h"
#include "ops/reference/reference.h"

#include <stdlib.h>
#include <string.h>

static size_t element_bytes(const op_case_t *c) {
  return c->flags & OP_BF16 ? sizeof(uint16_t) : sizeof(float);
}

static void *element_at(const op_case_t *c, const float *t, size_t index) {
  return (char *)(uintptr_t)t + index * element_bytes(c);
}

// ---- sums

enum { PARTS, BIAS, RESIDUAL, Y };

static void sum_tensors(const op_case_t *c, op_tensor_t *t) {
  const size_t count = c->dims[0] * c->dims[1];
  t[PARTS] = (op_tensor_t){"parts", c->dims[2] * count, OP_INPUT, 0, false, false};
  t[BIAS] = (op_tensor_t){"bias", c->flags & OP_BIAS ? c->dims[1] : 0, OP_INPUT, 0, false, false};
  t[RESIDUAL] = (op_tensor_t){"residual", c->flags & OP_RESIDUAL ? count : 0, OP_INPUT, 0, false, false};
  t[Y] = (op_tensor_t){"y", count, OP_OUTPUT, 0, false, false};
  op_set_typed(t, 1u << PARTS | 1u << RESIDUAL | 1u << Y);
}

static void sum_host(const op_host_t *h, const op_case_t *c, float **t) {
  const size_t count = c->dims[0] * c->dims[1], parts = c->dims[2];
  const void *addends[BL_LAYER_PARTS_MAX], *residual = t[RESIDUAL];
  for (size_t i = 0; i < parts; i++) {
    addends[i] = element_at(c, t[PARTS], i * count);
  }
  if (c->flags & OP_IN_PLACE) {
    const void **over = residual != NULL ? &residual : &addends[parts - 1];
    op_move(h, t[Y], *over, count * element_bytes(c));
    *over = t[Y];
  }
  h->ops->sum_parts(h->compute, c->dims[0], c->dims[1], op_dtype(c), (uint32_t)parts, addends, t[BIAS], residual, t[Y]);
  memset(addends, 0, sizeof addends); // the array is read during the call
}

static void sum_reference(const op_case_t *c, double **t) {
  const size_t count = c->dims[0] * c->dims[1];
  for (size_t i = 0; i < count; i++) {
    t[Y][i] = (t[BIAS] ? t[BIAS][i % c->dims[1]] : 0) + (t[RESIDUAL] ? t[RESIDUAL][i] : 0);
    for (size_t part = 0; part < c->dims[2]; part++) {
      t[Y][i] += t[PARTS][part * count + i];
    }
  }
}

const op_kind_t op_sum_parts = {
    .name = "sum_parts",
    .tolerance = 1e-6,
    .tensors = sum_tensors,
    .host = sum_host,
    .reference = sum_reference,
};

// ---- embedding

#define POSITIONS_BEHIND 3 // of the table, after the last that is read

enum { TOKENS, WTE, WPE, X, DX, DWTE, DWPE };

static size_t positions_of(const op_case_t *c) {
  return c->flags & OP_BIAS ? c->dims[5] + c->dims[1] + POSITIONS_BEHIND : 0;
}

static void embedding_tensors(const op_case_t *c, op_tensor_t *t) {
  const size_t count = c->dims[0] * c->dims[1] * c->dims[2], width = c->dims[2], vocab = c->dims[3];
  t[TOKENS] = (op_tensor_t){"tokens", c->dims[0] * c->dims[1], OP_INDEX, vocab, false, false};
  t[WTE] = (op_tensor_t){"wte", vocab * width, OP_INPUT, 0, false, false};
  t[WPE] = (op_tensor_t){"wpe", positions_of(c) * width, OP_INPUT, 0, false, false};
  t[X] = (op_tensor_t){"x", c->dims[4] * count, OP_OUTPUT, 0, false, false};
  t[DX] = (op_tensor_t){"dx", count, OP_INPUT, 0, false, false};
  t[DWTE] = (op_tensor_t){"dwte", vocab * width, OP_ADDED, 0, false, false};
  t[DWPE] = (op_tensor_t){"dwpe", positions_of(c) * width, OP_ADDED, 0, false, false};
  op_set_typed(t, 1u << X | 1u << DX);
}

static float row_scale(const op_case_t *c) {
  return c->flags & OP_SCALE ? 5.5f : 1.0f;
}

static float *from(float *table, uint64_t first, uint64_t width) {
  return table == NULL ? NULL : table + first * width;
}

static void embedding_host(const op_host_t *h, const op_case_t *c, float **t) {
  const int32_t *tokens = (const int32_t *)(const void *)t[TOKENS];
  const size_t count = c->dims[0] * c->dims[1] * c->dims[2], width = c->dims[2];
  for (uint32_t i = 0; i < c->dims[4]; i++) {
    const bl_layer_part_rows_t rows = bl_layer_part_rows(c->dims[3], (uint32_t)c->dims[4], i);
    const bl_layer_part_rows_t positions = bl_layer_part_rows(positions_of(c), (uint32_t)c->dims[4], i);
    const bl_embedding_part_t part = {.batch = c->dims[0],
                                      .seq = c->dims[1],
                                      .start = c->dims[5],
                                      .width = width,
                                      .first_token = rows.first,
                                      .tokens = rows.count,
                                      .first_position = positions.first,
                                      .positions = positions.count,
                                      .scale = row_scale(c),
                                      .dtype = op_dtype(c)};
    h->ops->embedding_part_forward(h->compute, &part, tokens, from(t[WTE], rows.first, width),
                                   from(t[WPE], positions.first, width), element_at(c, t[X], i * count));
    h->ops->embedding_part_backward(h->compute, &part, tokens, t[DX], from(t[DWTE], rows.first, width),
                                    from(t[DWPE], positions.first, width));
  }
}

static bool has(const op_case_t *c, size_t rows, size_t part, size_t row) {
  const bl_layer_part_rows_t range = bl_layer_part_rows(rows, (uint32_t)c->dims[4], (uint32_t)part);
  return row >= range.first && row - range.first < range.count;
}

static void embedding_reference(const op_case_t *c, double **t) {
  const size_t width = c->dims[2], rows = c->dims[0] * c->dims[1];
  for (size_t i = 0; i < rows * width; i++) {
    const size_t row = i / width, column = i % width;
    const size_t token = (size_t)t[TOKENS][row], position = c->dims[5] + row % c->dims[1];
    for (size_t part = 0; part < c->dims[4]; part++) {
      double *x = &t[X][part * rows * width + i];
      *x = has(c, c->dims[3], part, token) ? (double)row_scale(c) * t[WTE][token * width + column] : 0;
      *x += t[WPE] && has(c, positions_of(c), part, position) ? t[WPE][position * width + column] : 0;
    }
    t[DWTE][token * width + column] += (double)row_scale(c) * t[DX][i];
    if (t[DWPE]) {
      t[DWPE][position * width + column] += t[DX][i];
    }
  }
}

const op_kind_t op_embedding_parts = {
    .name = "embedding_parts",
    .tolerance = 1e-6,
    .tensors = embedding_tensors,
    .host = embedding_host,
    .reference = embedding_reference,
};

// ---- loss

enum { LABELS, LOGITS, LOSS, DLOGITS };
#define SCALE   0.25f
#define SOFTCAP 2.0f

static void loss_tensors(const op_case_t *c, op_tensor_t *t) {
  t[LABELS] = (op_tensor_t){"labels", c->dims[0], OP_INDEX, c->dims[1], false, false};
  t[LOGITS] = (op_tensor_t){"logits", c->dims[0] * c->dims[1], OP_INPUT, 0, false, false};
  t[LOSS] = (op_tensor_t){"loss", c->dims[0], OP_OUTPUT, 0, false, false};
  t[DLOGITS] = (op_tensor_t){"dlogits", c->dims[0] * c->dims[1], OP_OUTPUT, 0, false, false};
  op_set_typed(t, 1u << DLOGITS);
}

// The columns of one part, with logits of their own. Behind each row lie NaNs.
typedef struct {
  bl_layer_part_rows_t tokens;
  size_t stride, bytes;
  float *logits;
} columns_t;

// `logits` and `gradients`, of all columns, are in memory of the CPU: moving row by row would take long.
static columns_t put_columns(const op_host_t *h, const op_case_t *c, const float *logits, uint32_t part) {
  const size_t rows = c->dims[0], vocab = c->dims[1], multiple = c->dims[3] == 0 ? 1 : c->dims[3];
  columns_t made = {.tokens = bl_layer_part_rows(vocab, (uint32_t)c->dims[2], part)};
  made.stride = (made.tokens.count + multiple - 1) / multiple * multiple;
  made.bytes = rows * made.stride * sizeof(float);
  made.logits = op_block(h, BL_ARENA_PRIVATE, made.bytes);
  float *here = malloc(made.bytes);
  memset(here, 0xff, made.bytes);
  for (size_t row = 0; row < rows; row++) {
    memcpy(here + row * made.stride, logits + row * vocab + made.tokens.first, made.tokens.count * sizeof *here);
  }
  op_move(h, made.logits, here, made.bytes);
  free(here);
  return made;
}

// A row of the gradient starts where its logits did.
static void take_columns(const op_host_t *h, const op_case_t *c, const columns_t *columns, float *gradients) {
  float *here = malloc(columns->bytes);
  op_move(h, here, columns->logits, columns->bytes);
  for (size_t row = 0; row < c->dims[0]; row++) {
    memcpy(element_at(c, gradients, row * c->dims[1] + columns->tokens.first), here + row * columns->stride,
           columns->tokens.count * element_bytes(c));
  }
  free(here);
}

static void loss_host(const op_host_t *h, const op_case_t *c, float **t) {
  const size_t rows = c->dims[0], vocab = c->dims[1], floats = rows * BL_SOFTMAX_STATISTICS; // of one part
  const uint32_t parts = (uint32_t)c->dims[2];
  const int32_t *labels = op_labels(h, t[LABELS], rows);
  const float softcap = c->flags & OP_SOFTCAP ? SOFTCAP : 0.0f;
  float *statistics = op_block(h, BL_ARENA_PRIVATE, parts * floats * sizeof *statistics);
  double *losses = op_block(h, BL_ARENA_STAGING, rows * sizeof *losses);
  float *here = malloc(rows * vocab * sizeof *here);
  columns_t columns[BL_LAYER_PARTS_MAX];
  op_move(h, here, t[LOGITS], rows * vocab * sizeof *here);
  for (uint32_t part = 0; part < parts; part++) {
    columns[part] = put_columns(h, c, here, part);
  }
  for (uint32_t part = 0; part < parts; part++) {
    const columns_t *of = &columns[part];
    if (c->flags & OP_SOFTCAP) {
      h->ops->softcap_logits(h->compute, rows, of->tokens.count, of->stride, SOFTCAP, of->logits);
    }
    h->ops->softmax_statistics(h->compute, rows, of->tokens.count, of->stride, of->tokens.first, labels, of->logits,
                               statistics + part * floats);
  }
  for (uint32_t part = 0; part < parts; part++) {
    const columns_t *of = &columns[part];
    h->ops->cross_entropy_part(h->compute, rows, of->tokens.count, of->stride, of->tokens.first, op_dtype(c), labels,
                               SCALE, softcap, parts, statistics, of->logits, part + 1 == parts ? losses : NULL);
  }
  for (uint32_t part = 0; part < parts; part++) {
    take_columns(h, c, &columns[part], here);
  }
  op_move(h, t[DLOGITS], here, rows * vocab * element_bytes(c));
  for (size_t row = 0; row < rows; row++) {
    here[row] = (float)losses[row];
  }
  op_move(h, t[LOSS], here, rows * sizeof *here);
  free(here);
}

static void loss_reference(const op_case_t *c, double **t) {
  const size_t vocab = c->dims[1];
  const double softcap = c->flags & OP_SOFTCAP ? (double)SOFTCAP : 0;
  double *softcapped = calloc(vocab, sizeof *softcapped);
  for (size_t row = 0; row < c->dims[0]; row++) {
    double *gradient = t[DLOGITS] + row * vocab;
    for (size_t i = 0; i < vocab; i++) {
      softcapped[i] = reference_softcap(softcap, t[LOGITS][row * vocab + i]);
    }
    t[LOSS][row] = reference_cross_entropy(vocab, softcapped, op_label(t[LABELS], row), gradient);
    for (size_t i = 0; i < vocab; i++) {
      gradient[i] *= (double)SCALE * reference_softcap_slope(softcap, softcapped[i]);
    }
  }
  free(softcapped);
}

const op_kind_t op_cross_entropy_parts = {
    .name = "cross_entropy_parts",
    .tolerance = 3e-6,
    .tensors = loss_tensors,
    .host = loss_host,
    .reference = loss_reference,
};
