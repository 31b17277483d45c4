// SPDX-License-Identifier: Apache-2.0
// dims: rows, in, out, x stride, y stride.
#include "ops/cases/op_case.h"
#include "ops/reference/reference.h"

#include <stdlib.h>
#include <string.h>

enum { X, W, BIAS, RESIDUAL, Y, DY, DX, DW };

static size_t x_stride(const op_case_t *c) {
  return c->dims[3] ? c->dims[3] : c->dims[1];
}

static size_t y_stride(const op_case_t *c) {
  return c->dims[4] ? c->dims[4] : c->dims[2];
}

static void tensors(const op_case_t *c, op_tensor_t *t) {
  const size_t rows = c->dims[0], in = c->dims[1], out = c->dims[2];
  const op_role_t dx_role = c->flags & OP_ADD_INPUT ? OP_ADDED : OP_OUTPUT;
  const op_role_t dw_role = c->flags & OP_ADD_WEIGHT ? OP_ADDED : OP_OUTPUT;
  t[X] = (op_tensor_t){"x", rows * x_stride(c), OP_INPUT, 0, false, false};
  t[W] = (op_tensor_t){"w", in * out, OP_INPUT, 0, false, false};
  t[BIAS] = (op_tensor_t){"bias", c->flags & OP_BIAS ? out : 0, OP_INPUT, 0, false, false};
  t[RESIDUAL] = (op_tensor_t){"residual", c->flags & OP_RESIDUAL ? rows * y_stride(c) : 0, OP_INPUT, 0, false, false};
  t[Y] = (op_tensor_t){"y", rows * y_stride(c), OP_OUTPUT, 0, false, false};
  t[DY] = (op_tensor_t){"dy", rows * y_stride(c), OP_INPUT, 0, false, false};
  t[DX] = (op_tensor_t){"dx", rows * x_stride(c), dx_role, 0, false, false};
  t[DW] = (op_tensor_t){"dw", in * out, dw_role, 0, false, false};
  op_set_typed(t, 1u << X | 1u << RESIDUAL | 1u << DY | 1u << DX | (c->flags & OP_FLOAT_Y ? 0 : 1u << Y));
}

// Masters are floats: products of bf16 read them rounded, and so does the reference.
static double weight_value(const op_case_t *c, double value) {
  return c->flags & OP_BF16 ? (double)op_from_bf16(op_to_bf16((float)value)) : value;
}

// Rows of dy where rows of float y start.
static void *spread(const op_host_t *h, const op_case_t *c, const float *dy) {
  const size_t row_bytes = y_stride(c) * (c->flags & OP_BF16 ? sizeof(uint16_t) : sizeof(float));
  char *made = op_block(h, BL_ARENA_PRIVATE, c->dims[0] * y_stride(c) * sizeof(float));
  for (size_t row = 0; row < c->dims[0]; row++) {
    op_move(h, made + row * y_stride(c) * sizeof(float), (const char *)dy + row * row_bytes, row_bytes);
  }
  return made;
}

static void host(const op_host_t *h, const op_case_t *c, float **t) {
  const bool add_input = c->flags & OP_ADD_INPUT, add_weight = c->flags & OP_ADD_WEIGHT;
  const bl_linear_shape_t shape = {
      .rows = c->dims[0],
      .in = c->dims[1],
      .out = c->dims[2],
      .order = c->flags & OP_OUT_IN ? BL_WEIGHT_OUT_IN : BL_WEIGHT_IN_OUT,
      .uses = BL_LINEAR_FORWARD | BL_LINEAR_WEIGHT | (add_input ? BL_LINEAR_INPUT_ACCUMULATE : BL_LINEAR_INPUT),
      .bias = t[BIAS] != NULL,
      .residual = t[RESIDUAL] != NULL,
      .prepack = c->flags & OP_PREPACK,
      .x_stride = c->dims[3],
      .y_stride = c->dims[4],
      .float_y = c->flags & OP_FLOAT_Y,
      .dtype = op_dtype(c),
  };
  bl_linear_op_t *op;
  bl_error_t err = {0};
  if (h->ops->linear_plan(h->compute, &shape, &op, &err) != BL_OK) {
    return; // the poisoned outputs fail the comparison
  }
  op_host_workspace(h);
  void *packed = NULL, *dy = c->flags & OP_FLOAT_Y ? spread(h, c, t[DY]) : t[DY];
  if (h->ops->linear_packed_bytes(op) > 0) {
    packed = op_block(h, BL_ARENA_PRIVATE, h->ops->linear_packed_bytes(op));
    h->ops->linear_pack(op, t[W], t[BIAS], packed);
  }
  h->ops->linear_forward(op, t[X], t[W], packed, t[BIAS], t[RESIDUAL], t[Y]);
  h->ops->linear_backward_input(op, dy, t[W], packed, add_input, t[DX]);
  h->ops->linear_backward_weight(op, t[X], dy, add_weight, t[DW]);
}

static reference_linear_t shape_of(const op_case_t *c) {
  const size_t in = c->dims[1], out = c->dims[2];
  const bool out_in = c->flags & OP_OUT_IN;
  return (reference_linear_t){
      .rows = c->dims[0],
      .in = in,
      .out = out,
      .w_in = out_in ? 1 : out,
      .w_out = out_in ? in : 1,
      .x_stride = x_stride(c),
      .y_stride = y_stride(c),
  };
}

// Works on the weight as it is when it is differentiated: rounding has no slope.
static void forward(const op_case_t *c, double **t) {
  const reference_linear_t shape = shape_of(c);
  reference_linear_forward(&shape, t[X], t[W], t[BIAS], t[RESIDUAL], t[Y]);
}

static void reference(const op_case_t *c, double **t) {
  const reference_linear_t shape = shape_of(c);
  for (size_t i = 0; i < shape.in * shape.out; i++) {
    t[W][i] = weight_value(c, t[W][i]);
  }
  forward(c, t);
  for (size_t row = 0; !(c->flags & OP_ADD_INPUT) && row < shape.rows; row++) {
    for (size_t i = 0; i < shape.in; i++) {
      t[DX][row * shape.x_stride + i] = 0;
    }
  }
  for (size_t i = 0; !(c->flags & OP_ADD_WEIGHT) && i < shape.in * shape.out; i++) {
    t[DW][i] = 0;
  }
  reference_linear_input(&shape, t[DY], t[W], t[DX]);
  reference_linear_weight(&shape, t[X], t[DY], t[DW]);
}

const op_kind_t op_linear = {
    .name = "linear",
    .tolerance = 4e-6,
    .tensors = tensors,
    .host = host,
    .reference = reference,
    .forward = forward,
    .y = Y,
    .dy = DY,
    .slopes = {{X, DX}, {W, DW}},
    .slopes_count = 2,
};
