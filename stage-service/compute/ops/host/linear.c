// SPDX-License-Identifier: Apache-2.0
// Linear layers as planned products. A plan holds up to five: forward, input gradient (plain and accumulating), weight
// gradient (plain and accumulating).
#include "compute/ops/host/compute.h"

#include <stdlib.h>
#include <string.h>

enum { FORWARD, INPUT, INPUT_ACCUMULATE, WEIGHT, WEIGHT_ACCUMULATE, PRODUCTS };

struct bl_linear_op {
  bl_linear_op_t *next;
  bl_compute_t *compute;
  bl_linear_shape_t shape;
  bl__product_t *products[PRODUCTS]; // NULL where not used
  size_t packed_forward_bytes;       // W packed for forward, then W packed for the input gradient
  size_t packed_bytes;
  size_t workspace_bytes;
};

static bool same_shape(const bl_linear_shape_t *a, const bl_linear_shape_t *b) {
  return a->rows == b->rows && a->in == b->in && a->out == b->out && a->order == b->order && a->uses == b->uses &&
         a->bias == b->bias && a->residual == b->residual && a->prepack == b->prepack && a->x_stride == b->x_stride &&
         a->y_stride == b->y_stride && a->dtype == b->dtype;
}

// oneDNN reads B of a wide product from memory again and again. Weight gradients that are wider than high are cut into
// equal parts of at most this many columns: measured on oneDNN 2.6, one Zen 5 core, 182 to 210 GFLOP/s for
// 768 x 3072 x 1024, 201 to 212 for 768 x 768 x 1024.
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

static bl__product_shape_t product_shape(const bl_linear_shape_t *shape, int which) {
  const int64_t rows = (int64_t)shape->rows, in = (int64_t)shape->in, out = (int64_t)shape->out;
  const int64_t x_stride = shape->x_stride ? (int64_t)shape->x_stride : in;
  const int64_t y_stride = shape->y_stride ? (int64_t)shape->y_stride : out;
  const bool in_out = shape->order == BL_WEIGHT_IN_OUT;
  const int64_t w_in = in_out ? out : 1, w_out = in_out ? 1 : in; // strides of W along in and out
  switch (which) {
  case FORWARD: // y = x W
    return (bl__product_shape_t){.m = rows,
                                 .n = out,
                                 .k = in,
                                 .a_row = x_stride,
                                 .a_column = 1,
                                 .b_row = w_in,
                                 .b_column = w_out,
                                 .c_row = y_stride,
                                 .pack_b = shape->prepack,
                                 .bias = shape->bias,
                                 .residual = shape->residual};
  case INPUT:
  case INPUT_ACCUMULATE: // dx = dy W^T
    return (bl__product_shape_t){.m = rows,
                                 .n = in,
                                 .k = out,
                                 .a_row = y_stride,
                                 .a_column = 1,
                                 .b_row = w_out,
                                 .b_column = w_in,
                                 .c_row = x_stride,
                                 .pack_b = shape->prepack,
                                 .accumulate = which == INPUT_ACCUMULATE};
  default: // dW = x^T dy, or its transposition dy^T x; one part of its columns
    return (bl__product_shape_t){.m = in_out ? in : out,
                                 .n = (in_out ? out : in) / weight_parts(shape),
                                 .k = rows,
                                 .a_row = 1,
                                 .a_column = in_out ? x_stride : y_stride,
                                 .b_row = in_out ? y_stride : x_stride,
                                 .b_column = 1,
                                 .c_row = in_out ? out : in,
                                 .accumulate = which == WEIGHT_ACCUMULATE};
  }
}

static bool used(unsigned uses, int which) {
  static const unsigned bits[PRODUCTS] = {BL_LINEAR_FORWARD, BL_LINEAR_INPUT, BL_LINEAR_INPUT_ACCUMULATE,
                                          BL_LINEAR_WEIGHT, BL_LINEAR_WEIGHT};
  return uses & bits[which];
}

static void destroy(bl_linear_op_t *op) {
  for (int i = 0; i < PRODUCTS; i++) {
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

bl_status_t bl__linear_plan(bl_compute_t *compute, const bl_linear_shape_t *shape, bl_linear_op_t **op,
                            bl_error_t *err) {
  if (shape->dtype != BL_COMPUTE_FP32) {
    return bl_error_set(err, BL_UNIMPLEMENTED, "linear: the host back end computes in fp32 only");
  }
  if (shape->rows == 0 || shape->in == 0 || shape->out == 0 || (shape->x_stride && shape->x_stride < shape->in) ||
      (shape->y_stride && shape->y_stride < shape->out)) {
    return bl_error_set(err, BL_INVALID, "linear: %llu rows, %llu in, %llu out: nothing may be 0, strides not shorter",
                        (unsigned long long)shape->rows, (unsigned long long)shape->in, (unsigned long long)shape->out);
  }
  for (bl_linear_op_t *known = compute->linears; known; known = known->next) {
    if (same_shape(&known->shape, shape)) {
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
  for (int i = 0; i < PRODUCTS; i++) {
    if (!used(shape->uses, i)) {
      continue;
    }
    bl__product_shape_t product = product_shape(shape, i);
    bl_status_t status = bl__product_create(compute->engine, &product, &made->products[i], err);
    if (status != BL_OK) {
      destroy(made);
      return status;
    }
    size_t bytes = bl__product_workspace_bytes(made->products[i]);
    made->workspace_bytes = bytes > made->workspace_bytes ? bytes : made->workspace_bytes;
  }
  // Both input products read one packed copy: they differ in the sum alone.
  bl__product_t *input = made->products[INPUT] ? made->products[INPUT] : made->products[INPUT_ACCUMULATE];
  made->packed_forward_bytes =
      made->products[FORWARD] ? bl_align_up(bl__product_packed_bytes(made->products[FORWARD]), BL_CACHE_LINE_BYTES) : 0;
  made->packed_bytes =
      made->packed_forward_bytes + (input ? bl_align_up(bl__product_packed_bytes(input), BL_CACHE_LINE_BYTES) : 0);
  bl__compute_want(compute, made->workspace_bytes);
  made->next = compute->linears;
  compute->linears = made;
  *op = made;
  return BL_OK;
}

size_t bl__linear_packed_bytes(const bl_linear_op_t *op) {
  return op->packed_bytes;
}

// Runs one product of the plan; a plan that lacks it is a bug of the caller.
static void execute(bl_linear_op_t *op, int which, const char *name, const float *a, const void *b, const float *bias,
                    const float *residual, float *c) {
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

static const void *packed_for_input(const bl_linear_op_t *op, const void *packed) {
  return (const char *)packed + op->packed_forward_bytes;
}

void bl__linear_pack(bl_linear_op_t *op, const void *w, void *packed) {
  bl_compute_t *compute = op->compute;
  void *workspace = bl__compute_workspace(compute, op->workspace_bytes, "linear pack");
  if (!workspace && op->workspace_bytes > 0) {
    return;
  }
  bl__product_t *input = op->products[INPUT] ? op->products[INPUT] : op->products[INPUT_ACCUMULATE];
  bl_status_t status = BL_OK;
  if (op->products[FORWARD]) {
    status = bl__product_pack(op->products[FORWARD], w, packed, workspace);
  }
  if (status == BL_OK && input) {
    status = bl__product_pack(input, w, (char *)packed + op->packed_forward_bytes, workspace);
  }
  if (status != BL_OK) {
    bl__compute_fail(compute, status, "linear pack of %llu x %llu: oneDNN failed", (unsigned long long)op->shape.in,
                     (unsigned long long)op->shape.out);
  }
}

void bl__linear_forward(bl_linear_op_t *op, const void *x, const void *w, const void *packed, const float *bias,
                        const void *residual, void *y) {
  execute(op, FORWARD, "linear forward", x, op->packed_bytes ? packed : w, bias, residual, y);
}

void bl__linear_backward_input(bl_linear_op_t *op, const void *dy, const void *w, const void *packed, bool accumulate,
                               void *dx) {
  execute(op, accumulate ? INPUT_ACCUMULATE : INPUT, "linear backward input", dy,
          op->packed_bytes ? packed_for_input(op, packed) : w, NULL, NULL, dx);
}

void bl__linear_backward_weight(bl_linear_op_t *op, const void *x, const void *dy, bool accumulate, float *dw,
                                float *dbias) {
  const bool in_out = op->shape.order == BL_WEIGHT_IN_OUT;
  const float *a = in_out ? x : dy, *b = in_out ? dy : x;
  const int64_t parts = weight_parts(&op->shape), columns = (int64_t)(in_out ? op->shape.out : op->shape.in) / parts;
  for (int64_t part = 0; part < parts; part++) {
    execute(op, accumulate ? WEIGHT_ACCUMULATE : WEIGHT, "linear backward weight", a, b + part * columns, NULL, NULL,
            dw + part * columns);
  }
  if (!dbias) {
    return;
  }
  const size_t stride = op->shape.y_stride ? op->shape.y_stride : op->shape.out;
  BL__PARALLEL(op->compute, op->shape.out, 16, range) {
    const size_t count = range.last - range.first;
    if (!accumulate) {
      memset(dbias + range.first, 0, count * sizeof(float));
    }
    op->compute->kernels->column_sums(op->shape.rows, count, stride, (const float *)dy + range.first,
                                      dbias + range.first);
  }
}
