// SPDX-License-Identifier: Apache-2.0
// adamw and sums dims: count. columns dims: rows, columns.
#include "ops/cases/op_case.h"
#include "ops/reference/reference.h"

#include <math.h>
#include <string.h>

enum { DW, W, M, V };

static const bl_adamw_t adamw_options = {.rate = 1e-2f,
                                         .beta1 = 0.9f,
                                         .beta2 = 0.95f,
                                         .epsilon = 1e-8f,
                                         .weight_decay = 0.1f,
                                         .correction1 = 0.271f,
                                         .correction2 = 0.142625f,
                                         .gradient_scale = 0.7f};

static void adamw_tensors(const op_case_t *c, op_tensor_t *t) {
  t[DW] = (op_tensor_t){"dw", c->dims[0], OP_INPUT, 0, false, false};
  t[W] = (op_tensor_t){"w", c->dims[0], OP_ADDED, 0, false, false};
  t[M] = (op_tensor_t){"m", c->dims[0], OP_ADDED, 0, false, false};
  t[V] = (op_tensor_t){"v", c->dims[0], OP_ADDED, 0, true, false};
}

// More tensors than a launch takes, of different lengths, which begin anywhere; every second one does not decay.
#define PIECES 41
static size_t piece_at(size_t count, size_t i) {
  return count * i * i / (PIECES * PIECES);
}

static void adamw_host(const op_host_t *h, const op_case_t *c, float **t) {
  bl_adamw_tensor_t pieces[PIECES];
  for (size_t i = 0; i < PIECES; i++) {
    const size_t first = piece_at(c->dims[0], i);
    pieces[i] = (bl_adamw_tensor_t){.options = adamw_options,
                                    .count = piece_at(c->dims[0], i + 1) - first,
                                    .dw = t[DW] + first,
                                    .w = t[W] + first,
                                    .m = t[M] + first,
                                    .v = t[V] + first};
    pieces[i].options.weight_decay *= (float)(i % 2);
  }
  h->ops->adamw(h->compute, PIECES, pieces);
}

static void adamw_reference(const op_case_t *c, double **t) {
  const bl_adamw_t *o = &adamw_options;
  const double beta1 = o->beta1, beta2 = o->beta2, rate = o->rate;
  for (size_t i = 0, piece = 0; i < c->dims[0]; i++) {
    while (i >= piece_at(c->dims[0], piece + 1)) {
      piece++;
    }
    const double g = (double)o->gradient_scale * t[DW][i];
    t[W][i] *= 1 - rate * (double)o->weight_decay * (double)(piece % 2);
    t[M][i] = beta1 * t[M][i] + (1 - beta1) * g;
    t[V][i] = beta2 * t[V][i] + (1 - beta2) * g * g;
    t[W][i] -=
        rate * (t[M][i] / (double)o->correction1) / (sqrt(t[V][i] / (double)o->correction2) + (double)o->epsilon);
  }
}

const op_kind_t op_adamw = {
    .name = "adamw",
    .tolerance = 2e-6,
    .tensors = adamw_tensors,
    .host = adamw_host,
    .reference = adamw_reference,
};

// Sums of columns, three that are asked for together: of many rows, of a line of floats, of twice as many columns of half
// the rows.
enum { ROWS, LINE, SUMS, LINE_SUMS, HALF_SUMS };

static void columns_tensors(const op_case_t *c, op_tensor_t *t) {
  t[ROWS] = (op_tensor_t){"x", c->dims[0] * c->dims[1], OP_INPUT, 0, false, true};
  t[LINE] = (op_tensor_t){"line", c->dims[1], OP_INPUT, 0, false, false};
  t[SUMS] = (op_tensor_t){"sums", c->dims[1], OP_ADDED, 0, false, false};
  t[LINE_SUMS] = (op_tensor_t){"sums of the line", c->dims[1], OP_ADDED, 0, false, false};
  t[HALF_SUMS] = (op_tensor_t){"sums of half", 2 * c->dims[1], OP_ADDED, 0, false, false};
}

static void columns_host(const op_host_t *h, const op_case_t *c, float **t) {
  const bl_column_sum_t sums[] = {{c->dims[0], c->dims[1], op_dtype(c), t[ROWS], t[SUMS]},
                                  {1, c->dims[1], BL_COMPUTE_FP32, t[LINE], t[LINE_SUMS]},
                                  {c->dims[0] / 2, 2 * c->dims[1], op_dtype(c), t[ROWS], t[HALF_SUMS]}};
  h->ops->add_columns(h->compute, 3, sums);
}

static void columns_reference(const op_case_t *c, double **t) {
  reference_add_columns(c->dims[0], c->dims[1], t[ROWS], t[SUMS]);
  reference_add_columns(1, c->dims[1], t[LINE], t[LINE_SUMS]);
  reference_add_columns(c->dims[0] / 2, 2 * c->dims[1], t[ROWS], t[HALF_SUMS]);
}

const op_kind_t op_columns = {
    .name = "columns",
    .tolerance = 4e-6,
    .tensors = columns_tensors,
    .host = columns_host,
    .reference = columns_reference,
};

enum { A, B, SQUARES, TOTAL, SUM, FILLED };

static void sums_tensors(const op_case_t *c, op_tensor_t *t) {
  t[A] = (op_tensor_t){"a", c->dims[0], OP_INPUT, 0, false, false};
  t[B] = (op_tensor_t){"b", c->dims[0], OP_INPUT, 0, false, false};
  t[SQUARES] = (op_tensor_t){"squares", PIECES, OP_OUTPUT, 0, false, false};
  t[TOTAL] = (op_tensor_t){"total", c->dims[0], OP_ADDED, 0, false, false};
  t[SUM] = (op_tensor_t){"sum", c->dims[0], OP_OUTPUT, 0, false, false};
  t[FILLED] = (op_tensor_t){"filled", c->dims[0], OP_OUTPUT, 0, false, false};
}

static void sums_host(const op_host_t *h, const op_case_t *c, float **t) {
  double *squares = op_block(h, BL_ARENA_STAGING, PIECES * sizeof *squares);
  bl_squares_t pieces[PIECES];
  for (size_t i = 0; i < PIECES; i++) {
    const size_t first = piece_at(c->dims[0], i);
    pieces[i] = (bl_squares_t){piece_at(c->dims[0], i + 1) - first, t[A] + first, squares + i};
  }
  h->ops->sum_squares(h->compute, PIECES, pieces);
  op_move(h, t[A], t[A], 0); // waits
  float rounded[PIECES];
  for (size_t i = 0; i < PIECES; i++) {
    rounded[i] = (float)squares[i];
  }
  op_move(h, t[SQUARES], rounded, sizeof rounded);
  h->ops->accumulate(h->compute, c->dims[0], t[A], t[TOTAL]);
  const float *a = t[A];
  if (c->flags & OP_IN_PLACE) {
    op_move(h, t[SUM], t[A], c->dims[0] * sizeof(float));
    a = t[SUM];
  }
  h->ops->add(h->compute, c->dims[0], BL_COMPUTE_FP32, a, t[B], t[SUM]);
  h->ops->fill(h->compute, c->dims[0], 0.5f, t[FILLED]);
}

static void sums_reference(const op_case_t *c, double **t) {
  for (size_t piece = 0; piece < PIECES; piece++) {
    t[SQUARES][piece] = 0;
    for (size_t i = piece_at(c->dims[0], piece); i < piece_at(c->dims[0], piece + 1); i++) {
      t[SQUARES][piece] += t[A][i] * t[A][i];
    }
  }
  for (size_t i = 0; i < c->dims[0]; i++) {
    t[TOTAL][i] += t[A][i];
    t[SUM][i] = t[A][i] + t[B][i];
    t[FILLED][i] = 0.5;
  }
}

const op_kind_t op_sums = {
    .name = "sums",
    .tolerance = 2e-7,
    .tensors = sums_tensors,
    .host = sums_host,
    .reference = sums_reference,
};
