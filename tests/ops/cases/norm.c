// SPDX-License-Identifier: Apache-2.0
// dims: rows, width. IN_PLACE: dx over dy; OVER_X: dx over x; RESIDUAL: the residual's gradient is added.
#include "ops/cases/op_case.h"
#include "ops/reference/reference.h"

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

static void host(const op_host_t *h, const op_case_t *c, float **t) {
  const bl_norm_shape_t shape = {
      .rows = c->dims[0], .width = c->dims[1], .rms = c->flags & OP_RMS, .epsilon = EPSILON, .dtype = op_dtype(c)};
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
  reference_norm_forward(c->dims[0], c->dims[1], (double)EPSILON, t[X], t[GAIN], t[BIAS], t[Y], t[STATS]);
}

static void reference(const op_case_t *c, double **t) {
  forward(c, t);
  // The residual's gradient is not a derivative of y: left out for finite differences, see `slopes` of the table.
  reference_norm_backward(c->dims[0], c->dims[1], c->flags & OP_RMS, (double)EPSILON, t[DY], t[X], t[GAIN], t[RESIDUAL],
                          t[DX], t[DGAIN], t[DGAIN] + c->dims[1]);
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
