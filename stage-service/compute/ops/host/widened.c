// SPDX-License-Identifier: Apache-2.0
// bf16 products as products of floats. Widening is exact, so the result differs from that of a bf16 product only by the
// order of its sums.
#include "compute/ops/host/linear.h"

#define PIECE 256 // elements rounded and widened at a time

// Dense copies in the workspace: of operands with rows of `in`, then of operands with rows of `out`.
typedef struct {
  float *x, *y;
} copies_t;

static size_t copy_bytes(uint64_t rows, uint64_t columns) {
  return bl_align_up(rows * columns * sizeof(float), BL_CACHE_LINE_BYTES);
}

size_t bl__widened_bytes(const bl_linear_shape_t *shape) {
  return copy_bytes(shape->rows, shape->in) + copy_bytes(shape->rows, shape->out);
}

// Both are NULL if there is no workspace; the failure is recorded.
static copies_t copies_of(const bl_linear_op_t *op, const char *name) {
  char *workspace = bl__compute_workspace(op->compute, op->workspace_bytes, name);
  if (!workspace) {
    return (copies_t){0};
  }
  float *x = (float *)(void *)(workspace + op->scratch_bytes);
  return (copies_t){x, x + copy_bytes(op->shape.rows, op->shape.in) / sizeof(float)};
}

void bl__round_floats(const bl_typed_kernels_t *kernels, size_t count, const float *x, float *y) {
  uint16_t piece[PIECE];
  for (size_t first = 0; first < count; first += PIECE) {
    const size_t length = count - first < PIECE ? count - first : PIECE;
    kernels->narrow(length, x + first, piece);
    kernels->widen(length, piece, y + first);
  }
}

static void widen(const bl_linear_op_t *op, size_t columns, size_t stride, const void *from, float *to) {
  BL__PARALLEL(op->compute, op->shape.rows, 1, rows) {
    for (size_t row = rows.first; row < rows.last; row++) {
      bl__typed(op->compute, BL_COMPUTE_BF16)
          ->widen(columns, (const uint16_t *)from + row * stride, to + row * columns);
    }
  }
}

// Writes rows of bf16, or of floats for logits.
static void narrow(const bl_linear_op_t *op, bl_compute_dtype_t dtype, size_t columns, size_t stride, const float *from,
                   void *to) {
  BL__PARALLEL(op->compute, op->shape.rows, 1, rows) {
    for (size_t row = rows.first; row < rows.last; row++) {
      bl__typed(op->compute, dtype)->narrow(columns, from + row * columns, bl__element_to(dtype, to, row * stride));
    }
  }
}

void bl__widened_forward(bl_linear_op_t *op, const void *x, const float *w, const float *bias, const void *residual,
                         void *y) {
  const bl_linear_shape_t *shape = &op->shape;
  const copies_t copies = copies_of(op, "linear forward");
  if (!copies.x) {
    return;
  }
  widen(op, shape->in, bl__linear_x_stride(shape), x, copies.x);
  if (shape->residual) {
    widen(op, shape->out, bl__linear_y_stride(shape), residual, copies.y);
  }
  bl__linear_execute(op, BL__FORWARD, "linear forward", copies.x, w, bias, NULL, copies.y);
  narrow(op, shape->float_y ? BL_COMPUTE_FP32 : BL_COMPUTE_BF16, shape->out, bl__linear_y_stride(shape), copies.y, y);
}

void bl__widened_backward_input(bl_linear_op_t *op, const void *dy, const float *w, bool accumulate, void *dx) {
  const bl_linear_shape_t *shape = &op->shape;
  const copies_t copies = copies_of(op, "linear backward input");
  if (!copies.x) {
    return;
  }
  widen(op, shape->out, bl__linear_dy_stride(shape), dy, copies.y);
  if (accumulate) {
    widen(op, shape->in, bl__linear_x_stride(shape), dx, copies.x);
  }
  bl__linear_execute(op, accumulate ? BL__INPUT_ACCUMULATE : BL__INPUT, "linear backward input", copies.y, w, NULL,
                     NULL, copies.x);
  narrow(op, BL_COMPUTE_BF16, shape->in, bl__linear_x_stride(shape), copies.x, dx);
}
