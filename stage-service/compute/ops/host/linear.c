// SPDX-License-Identifier: Apache-2.0
// Linear layers as planned products. A plan holds up to five: forward, input gradient (plain and accumulating), weight
// gradient (plain and accumulating).
//
// In bf16, products read a rounded copy of the master weight, which linear_pack writes. If the CPU has instructions for
// bf16, operands are multiplied directly. Otherwise they are widened into workspace and multiplied as floats, which is
// exact, and the result is rounded (widened.c).
//
// Weight gradients of floats are a kernel of ours: oneDNN 2.6 takes 1.07 times as long (Zen 5), with AVX2 1.5 times.
#include "compute/ops/host/linear.h"
#include "compute/ops/shapes.h"

#include "base/minmax.h"

#include <stdlib.h>

#define WEIGHT_GRAIN 64 // rows or columns of a weight's gradient

// oneDNN reads B of a wide product from memory repeatedly. Weight gradients of bf16 at least as wide as high are cut into
// equal column blocks of at most this many columns, if one fits cache lines: measured on oneDNN 2.6, one Zen 5 core, eight
// layers of hidden 256 take 30.6 ms, 32.8 uncut.
#define WEIGHT_COLUMNS 512

static int64_t weight_parts(const bl_linear_shape_t *shape) {
  const bool in_out = shape->order == BL_WEIGHT_IN_OUT;
  const int64_t height = (int64_t)(in_out ? shape->in : shape->out), width = (int64_t)(in_out ? shape->out : shape->in);
  if (width < height) {
    return 1;
  }
  const int64_t fewest = (width + WEIGHT_COLUMNS - 1) / WEIGHT_COLUMNS;
  for (int64_t parts = fewest; parts <= 2 * fewest; parts++) {
    if (width % (parts * BL_CACHE_LINE_BYTES / (int64_t)sizeof(float)) == 0) {
      return parts;
    }
  }
  return 1;
}

// Returns the shape of a plan's product for oneDNN. Widened operands are dense copies, and a residual is already in C.
static bl__product_shape_t product_shape(const bl_linear_op_t *op, int which) {
  const bl_linear_shape_t *shape = &op->shape;
  const bool widened = op->mode == BL__WIDENED, native = op->mode == BL__NATIVE_BF16;
  const int64_t rows = (int64_t)shape->rows, in = (int64_t)shape->in, out = (int64_t)shape->out;
  const int64_t x_stride = widened ? in : (int64_t)bl__linear_x_stride(shape);
  const int64_t y_stride = widened ? out : (int64_t)bl__linear_y_stride(shape);
  const int64_t dy_stride = widened ? out : (int64_t)bl__linear_dy_stride(shape);
  const bool in_out = shape->order == BL_WEIGHT_IN_OUT;
  const int64_t w_in = in_out ? out : 1, w_out = in_out ? 1 : in; // strides of W along in and out
  switch (which) {
  case BL__FORWARD: // y = x W
    return (bl__product_shape_t){.m = rows,
                                 .n = out,
                                 .k = in,
                                 .a_row = x_stride,
                                 .a_column = 1,
                                 .b_row = w_in,
                                 .b_column = w_out,
                                 .c_row = y_stride,
                                 .pack_b = shape->prepack && !widened,
                                 .bias = shape->bias,
                                 .residual = shape->residual && !widened,
                                 .accumulate = shape->residual && widened,
                                 .bf16 = native,
                                 .float_c = shape->float_y};
  case BL__INPUT:
  case BL__INPUT_ACCUMULATE: // dx = dy W^T
    return (bl__product_shape_t){.m = rows,
                                 .n = in,
                                 .k = out,
                                 .a_row = dy_stride,
                                 .a_column = 1,
                                 .b_row = w_out,
                                 .b_column = w_in,
                                 .c_row = x_stride,
                                 .pack_b = shape->prepack && !widened,
                                 .accumulate = which == BL__INPUT_ACCUMULATE,
                                 .bf16 = native};
  default: // dW = x^T dy, or its transpose dy^T x; one block of its columns
    return (bl__product_shape_t){.m = in_out ? in : out,
                                 .n = (in_out ? out : in) / weight_parts(shape),
                                 .k = rows,
                                 .a_row = 1,
                                 .a_column = in_out ? x_stride : dy_stride,
                                 .b_row = in_out ? dy_stride : x_stride,
                                 .b_column = 1,
                                 .c_row = in_out ? out : in,
                                 .accumulate = which == BL__WEIGHT_ACCUMULATE,
                                 .bf16 = native,
                                 .float_c = true};
  }
}

static bool used(const bl_linear_op_t *op, int which) {
  static const unsigned bits[BL__PRODUCTS_OF_LINEAR] = {BL_LINEAR_FORWARD, BL_LINEAR_INPUT, BL_LINEAR_INPUT_ACCUMULATE,
                                                        BL_LINEAR_WEIGHT, BL_LINEAR_WEIGHT};
  return (op->shape.uses & bits[which]) && (op->mode == BL__NATIVE_BF16 || bits[which] != BL_LINEAR_WEIGHT);
}

static void destroy(bl_linear_op_t *op) {
  for (int i = 0; i < BL__PRODUCTS_OF_LINEAR; i++) {
    bl__product_destroy(op->products[i]);
  }
  free(op);
}

void bl__linear_destroy_all(bl_compute_t *compute) {
  while (compute->linears) {
    bl_linear_op_t *op = compute->linears;
    compute->linears = op->next;
    destroy(op);
  }
}

static bl_status_t create_products(bl_linear_op_t *op, bl_error_t *err) {
  for (int i = 0; i < BL__PRODUCTS_OF_LINEAR; i++) {
    if (!used(op, i)) {
      continue;
    }
    bl__product_shape_t product = product_shape(op, i);
    bl_status_t status = bl__product_create(op->compute->engine, &product, &op->products[i], err);
    if (status != BL_OK) {
      return status;
    }
    size_t bytes = bl__product_workspace_bytes(op->products[i]);
    op->scratch_bytes = bytes > op->scratch_bytes ? bytes : op->scratch_bytes;
  }
  return BL_OK;
}

static bl__product_t *input_product(const bl_linear_op_t *op) {
  return op->products[BL__INPUT] ? op->products[BL__INPUT] : op->products[BL__INPUT_ACCUMULATE];
}

static size_t packed_bytes_of(const bl__product_t *product) {
  return product ? bl_align_up(bl__product_packed_bytes(product), BL_CACHE_LINE_BYTES) : 0;
}

// The plain and the accumulating input-gradient product share one packed weight. They differ only in whether they
// accumulate.
static void size_packed(bl_linear_op_t *op) {
  const size_t weight = op->shape.in * op->shape.out;
  if (op->mode == BL__WIDENED) {
    op->packed_bytes = weight * sizeof(float);
  } else if (op->mode == BL__NATIVE_BF16 && !op->shape.prepack) {
    op->packed_bytes = weight * bl__element_bytes(BL_COMPUTE_BF16);
  } else {
    op->packed_input_at = packed_bytes_of(op->products[BL__FORWARD]);
    op->packed_bytes = op->packed_input_at + packed_bytes_of(input_product(op));
  }
}

bl_status_t bl__linear_plan(bl_compute_t *compute, const bl_linear_shape_t *shape, bl_linear_op_t **op,
                            bl_error_t *err) {
  bl_status_t status = bl_linear_shape_check(shape, err);
  if (status != BL_OK) {
    return status;
  }
  for (bl_linear_op_t *known = compute->linears; known; known = known->next) {
    if (bl_linear_shapes_match(&known->shape, shape)) {
      *op = known;
      return BL_OK;
    }
  }
  bl_linear_op_t *made = calloc(1, sizeof *made);
  if (!made) {
    return bl_error_set(err, BL_EXHAUSTED, "linear: out of memory");
  }
  made->compute = compute;
  made->shape = *shape;
  made->mode = shape->dtype == BL_COMPUTE_FP32 ? BL__FLOATS : compute->bf16_products ? BL__NATIVE_BF16 : BL__WIDENED;
  status = create_products(made, err);
  if (status != BL_OK) {
    destroy(made);
    return status;
  }
  size_packed(made);
  if (made->mode != BL__NATIVE_BF16 && (shape->uses & BL_LINEAR_WEIGHT)) {
    made->scratch_bytes = bl_max_u64(made->scratch_bytes, compute->threads * BL_GRADIENT_SCRATCH * sizeof(float));
  }
  made->scratch_bytes = bl_align_up(made->scratch_bytes, BL_CACHE_LINE_BYTES);
  made->workspace_bytes = made->scratch_bytes + (made->mode == BL__WIDENED ? bl__widened_bytes(shape) : 0);
  bl__compute_want(compute, made->workspace_bytes);
  made->next = compute->linears;
  compute->linears = made;
  *op = made;
  return BL_OK;
}

size_t bl__linear_packed_bytes(const bl_linear_op_t *op) {
  return op->packed_bytes;
}

void bl__linear_execute(bl_linear_op_t *op, int which, const char *name, const void *a, const void *b,
                        const float *bias, const void *residual, void *c) {
  bl_compute_t *compute = op->compute;
  void *workspace = bl__compute_workspace(compute, op->workspace_bytes, name);
  if (!workspace && op->workspace_bytes > 0) {
    return;
  }
  if (!op->products[which] || bl__product_execute(op->products[which], a, b, bias, residual, c, workspace) != BL_OK) {
    bl__compute_fail(compute, BL_INTERNAL, "%s of %llu rows, %llu in, %llu out: %s", name,
                     (unsigned long long)op->shape.rows, (unsigned long long)op->shape.in,
                     (unsigned long long)op->shape.out, op->products[which] ? "oneDNN failed" : "not planned");
  }
}

// Rounds the weight without reordering it; back to floats if products are widened.
static void round_weight(bl_linear_op_t *op, const float *w, void *packed) {
  const bl_typed_kernels_t *kernels = bl__typed(op->compute, BL_COMPUTE_BF16);
  BL__PARALLEL(op->compute, op->shape.in * op->shape.out, BL_CACHE_LINE_BYTES, range) {
    if (op->mode == BL__NATIVE_BF16) {
      kernels->narrow(range.last - range.first, w + range.first, (uint16_t *)packed + range.first);
    } else {
      bl__round_floats(kernels, range.last - range.first, w + range.first, (float *)packed + range.first);
    }
  }
}

void bl__linear_pack(bl_linear_op_t *op, const float *w, const float *bias, void *packed) {
  (void)bias; // read directly
  bl_compute_t *compute = op->compute;
  if (op->mode == BL__WIDENED || (op->mode == BL__NATIVE_BF16 && !op->shape.prepack)) {
    round_weight(op, w, packed);
    return;
  }
  void *workspace = bl__compute_workspace(compute, op->workspace_bytes, "linear pack");
  if (!workspace && op->workspace_bytes > 0) {
    return;
  }
  bl__product_t *input = input_product(op);
  bl_status_t status = BL_OK;
  if (op->products[BL__FORWARD]) {
    status = bl__product_pack(op->products[BL__FORWARD], w, packed, workspace);
  }
  if (status == BL_OK && input) {
    status = bl__product_pack(input, w, (char *)packed + op->packed_input_at, workspace);
  }
  if (status != BL_OK) {
    bl__compute_fail(compute, status, "linear pack of %llu x %llu: oneDNN failed", (unsigned long long)op->shape.in,
                     (unsigned long long)op->shape.out);
  }
}

void bl__linear_forward(bl_linear_op_t *op, const void *x, const float *w, const void *packed, const float *bias,
                        const void *residual, void *y) {
  if (op->mode == BL__WIDENED) {
    bl__widened_forward(op, x, packed, bias, residual, y);
  } else {
    bl__linear_execute(op, BL__FORWARD, "linear forward", x, op->packed_bytes ? packed : w, bias, residual, y);
  }
}

void bl__linear_backward_input(bl_linear_op_t *op, const void *dy, const float *w, const void *packed, bool accumulate,
                               void *dx) {
  if (op->mode == BL__WIDENED) {
    bl__widened_backward_input(op, dy, packed, accumulate, dx);
  } else {
    bl__linear_execute(op, accumulate ? BL__INPUT_ACCUMULATE : BL__INPUT, "linear backward input", dy,
                       op->packed_bytes ? (const void *)((const char *)packed + op->packed_input_at) : w, NULL, NULL,
                       dx);
  }
}

// Threads share the longer side of the gradient, so that each packs its own part of that operand.
static void weight_gradient(bl_linear_op_t *op, const void *x, const void *dy, bool accumulate, float *dw) {
  bl_compute_t *compute = op->compute;
  const bl_linear_shape_t *shape = &op->shape;
  const size_t x_stride = bl__linear_x_stride(shape), dy_stride = bl__linear_dy_stride(shape);
  const bool in_out = shape->order == BL_WEIGHT_IN_OUT;
  const bl__weight_gradient_t whole = {.m = in_out ? shape->in : shape->out,
                                       .n = in_out ? shape->out : shape->in,
                                       .k = shape->rows,
                                       .a = in_out ? x : dy,
                                       .b = in_out ? dy : x,
                                       .a_row = in_out ? x_stride : dy_stride,
                                       .b_row = in_out ? dy_stride : x_stride,
                                       .accumulate = accumulate,
                                       .c_row = in_out ? shape->out : shape->in};
  float *scratch = bl__compute_workspace(compute, op->workspace_bytes, "linear backward weight");
  const bool high = whole.m > whole.n;
  if (!scratch) {
    return;
  }
  BL__PARALLEL(compute, high ? whole.m : whole.n, WEIGHT_GRAIN, range) {
    bl__weight_gradient_t part = whole;
    if (high) {
      part.m = range.last - range.first;
      part.a = bl__element(shape->dtype, whole.a, range.first);
      part.c = dw + range.first * whole.c_row;
    } else {
      part.n = range.last - range.first;
      part.b = bl__element(shape->dtype, whole.b, range.first);
      part.c = dw + range.first;
    }
    bl__typed(compute, shape->dtype)->weight_gradient(&part, scratch + bl__part * BL_GRADIENT_SCRATCH);
  }
}

static void weight_products(bl_linear_op_t *op, const void *x, const void *dy, bool accumulate, float *dw) {
  const bool in_out = op->shape.order == BL_WEIGHT_IN_OUT;
  const void *a = in_out ? x : dy, *b = in_out ? dy : x;
  const int64_t parts = weight_parts(&op->shape), columns = (int64_t)(in_out ? op->shape.out : op->shape.in) / parts;
  for (int64_t part = 0; part < parts; part++) {
    bl__linear_execute(op, accumulate ? BL__WEIGHT_ACCUMULATE : BL__WEIGHT, "linear backward weight", a,
                       bl__element(op->shape.dtype, b, (size_t)(part * columns)), NULL, NULL, dw + part * columns);
  }
}

void bl__linear_backward_weight(bl_linear_op_t *op, const void *x, const void *dy, bool accumulate, float *dw) {
  (op->mode == BL__NATIVE_BF16 ? weight_products : weight_gradient)(op, x, dy, accumulate, dw);
}
