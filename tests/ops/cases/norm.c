// SPDX-License-Identifier: Apache-2.0
// norm dims: rows, width. IN_PLACE: dx over dy; OVER_X: dx over x; RESIDUAL: the residual's gradient is added. head_norm
// dims: rows, heads, kv_heads, head_dim. IN_PLACE: dqkv over qkv. OFFSET: gains from 1.
#include "ops/cases/op_case.h"
#include "ops/reference/reference.h"

#include <stdlib.h>
#include <string.h>

enum { X, GAIN, BIAS, Y, STATS, DY, RESIDUAL, DX, DGAIN, DBIAS };
#define EPSILON 1e-5f

static void tensors(const op_case_t *c, op_tensor_t *t) {
  const size_t rows = c->dims[0], width = c->dims[1];
  const bool rms = c->flags & OP_RMS;
  t[X] = (op_tensor_t){"x", rows * width, OP_INPUT, 0, false, false};
  t[GAIN] = (op_tensor_t){"gain", width, OP_INPUT, 0, false, false};
  t[BIAS] = (op_tensor_t){"bias", rms ? 0 : width, OP_INPUT, 0, false, false};
  t[Y] = (op_tensor_t){"y", rows * width, OP_OUTPUT, 0, false, false};
  t[STATS] = (op_tensor_t){"stats", rms ? rows : 2 * rows, OP_OUTPUT, 0, false, false};
  t[DY] = (op_tensor_t){"dy", rows * width, OP_INPUT, 0, false, false};
  t[RESIDUAL] = (op_tensor_t){"residual", c->flags & OP_RESIDUAL ? rows * width : 0, OP_INPUT, 0, false, false};
  t[DX] = (op_tensor_t){"dx", rows * width, OP_OUTPUT, 0, false, false};
  t[DGAIN] = (op_tensor_t){"dgain", rms ? width : 2 * width, OP_OUTPUT, 0, false, false}; // and dbias behind it
  t[DBIAS] = (op_tensor_t){"dbias", 0, OP_OUTPUT, 0, false, false};
  op_set_typed(t, 1u << X | 1u << Y | 1u << DY | 1u << RESIDUAL | 1u << DX);
}

static float offset_of(const op_case_t *c) {
  return c->flags & OP_OFFSET ? 1.0f : 0.0f;
}

static void host(const op_host_t *h, const op_case_t *c, float **t) {
  const bl_norm_shape_t shape = {.rows = c->dims[0],
                                 .width = c->dims[1],
                                 .rms = c->flags & OP_RMS,
                                 .epsilon = EPSILON,
                                 .gain_offset = offset_of(c),
                                 .dtype = op_dtype(c)};
  h->ops->norm_forward(h->compute, &shape, t[X], t[GAIN], t[BIAS], t[Y], t[STATS]);
  const size_t bytes = c->dims[0] * c->dims[1] * (c->flags & OP_BF16 ? sizeof(uint16_t) : sizeof(float));
  const float *dy = t[DY], *x = t[X];
  if (c->flags & OP_IN_PLACE) {
    op_move(h, t[DX], t[DY], bytes);
    dy = t[DX];
  }
  if (c->flags & OP_OVER_X) {
    op_move(h, t[DX], t[X], bytes);
    x = t[DX];
  }
  h->ops->norm_backward(h->compute, &shape, dy, x, t[GAIN], t[STATS], t[RESIDUAL], t[DX], t[DGAIN]);
}

static void forward(const op_case_t *c, double **t) {
  reference_norm_forward(c->dims[0], c->dims[1], (double)EPSILON, (double)offset_of(c), t[X], t[GAIN], t[BIAS], t[Y],
                         t[STATS]);
}

static void reference(const op_case_t *c, double **t) {
  forward(c, t);
  // The residual's gradient is not a derivative of y: left out for finite differences, see `slopes` of the table.
  reference_norm_backward(c->dims[0], c->dims[1], c->flags & OP_RMS, (double)EPSILON, (double)offset_of(c), t[DY], t[X],
                          t[GAIN], t[RESIDUAL], t[DX], t[DGAIN], t[DGAIN] + c->dims[1]);
}

const op_kind_t op_norm = {
    .name = "norm",
    .tolerance = 4e-6,
    .tensors = tensors,
    .host = host,
    .reference = reference,
    .forward = forward,
    .y = Y,
    .dy = DY,
    .slopes = {{X, DX}, {GAIN, DGAIN}},
    .slopes_count = 2,
};

enum { QKV, QUERY_GAIN, KEY_GAIN, NORMALISED, DNORMALISED, DQKV, DQUERY_GAIN, DKEY_GAIN };

static size_t qkv_count(const op_case_t *c) {
  return c->dims[0] * (c->dims[1] + 2 * c->dims[2]) * c->dims[3];
}

// Gradients of both gains are one block: those of keys lie behind those of queries.
static void head_tensors(const op_case_t *c, op_tensor_t *t) {
  t[QKV] = (op_tensor_t){"qkv", qkv_count(c), OP_INPUT, 0, false, false};
  t[QUERY_GAIN] = (op_tensor_t){"query_gain", c->dims[3], OP_INPUT, 0, false, false};
  t[KEY_GAIN] = (op_tensor_t){"key_gain", c->dims[3], OP_INPUT, 0, false, false};
  t[NORMALISED] = (op_tensor_t){"y", qkv_count(c), OP_OUTPUT, 0, false, false};
  t[DNORMALISED] = (op_tensor_t){"dy", qkv_count(c), OP_INPUT, 0, false, false};
  t[DQKV] = (op_tensor_t){"dqkv", qkv_count(c), OP_OUTPUT, 0, false, false};
  t[DQUERY_GAIN] = (op_tensor_t){"dquery_gain", c->dims[3], OP_OUTPUT, 0, false, false};
  t[DKEY_GAIN] = (op_tensor_t){"dkey_gain", c->dims[3], OP_OUTPUT, 0, false, false};
  op_set_typed(t, 1u << QKV | 1u << NORMALISED | 1u << DNORMALISED | 1u << DQKV);
}

static void head_host(const op_host_t *h, const op_case_t *c, float **t) {
  const bl_head_norm_shape_t shape = {.rows = c->dims[0],
                                      .heads = c->dims[1],
                                      .kv_heads = c->dims[2],
                                      .head_dim = c->dims[3],
                                      .epsilon = EPSILON,
                                      .gain_offset = offset_of(c),
                                      .dtype = op_dtype(c)};
  float *partials = op_block(h, BL_ARENA_PRIVATE, 2 * c->dims[3] * sizeof *partials);
  h->ops->head_norm_forward(h->compute, &shape, t[QKV], t[QUERY_GAIN], t[KEY_GAIN], t[NORMALISED]);
  const float *qkv = t[QKV];
  if (c->flags & OP_IN_PLACE) {
    op_move(h, t[DQKV], t[QKV], qkv_count(c) * (c->flags & OP_BF16 ? sizeof(uint16_t) : sizeof(float)));
    qkv = t[DQKV];
  }
  op_move(h, partials, t[DQUERY_GAIN], c->dims[3] * sizeof *partials); // poison
  op_move(h, partials + c->dims[3], t[DKEY_GAIN], c->dims[3] * sizeof *partials);
  h->ops->head_norm_backward(h->compute, &shape, t[DNORMALISED], qkv, t[QUERY_GAIN], t[KEY_GAIN], t[DQKV], partials);
  op_move(h, t[DQUERY_GAIN], partials, c->dims[3] * sizeof *partials);
  op_move(h, t[DKEY_GAIN], partials + c->dims[3], c->dims[3] * sizeof *partials);
}

static reference_head_norm_t head_shape(const op_case_t *c) {
  return (reference_head_norm_t){c->dims[0], c->dims[1], c->dims[2], c->dims[3], (double)EPSILON, (double)offset_of(c)};
}

static void head_forward(const op_case_t *c, double **t) {
  const reference_head_norm_t shape = head_shape(c);
  reference_head_norm_forward(&shape, t[QKV], t[QUERY_GAIN], t[KEY_GAIN], t[NORMALISED]);
}

static void head_reference(const op_case_t *c, double **t) {
  const reference_head_norm_t shape = head_shape(c);
  double *partials = malloc(2 * c->dims[3] * sizeof *partials);
  head_forward(c, t);
  reference_head_norm_backward(&shape, t[DNORMALISED], t[QKV], t[QUERY_GAIN], t[KEY_GAIN], t[DQKV], partials);
  memcpy(t[DQUERY_GAIN], partials, c->dims[3] * sizeof *partials);
  memcpy(t[DKEY_GAIN], partials + c->dims[3], c->dims[3] * sizeof *partials);
  free(partials);
}

const op_kind_t op_head_norm = {
    .name = "head_norm",
    .tolerance = 4e-6,
    .tensors = head_tensors,
    .host = head_host,
    .reference = head_reference,
    .forward = head_forward,
    .y = NORMALISED,
    .dy = DNORMALISED,
    .slopes = {{QKV, DQKV}, {QUERY_GAIN, DQUERY_GAIN}, {KEY_GAIN, DKEY_GAIN}},
    .slopes_count = 3,
};
