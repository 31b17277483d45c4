// SPDX-License-Identifier: Apache-2.0
// Linear layers as planned products. A plan has up to five: forward, input gradient (plain and accumulating), weight
// gradient (plain and accumulating).
//
// A row-major tensor is the column-major matrix of its transpose, so y = x W is Y' = W' X' with X' [in, T] and Y' [out,
// T]. W is [in, out] or [out, in] in memory, so W' is passed as it is or transposed:
//
//   forward         Y' [out, T]  = W' [out, in]  X' [in, T]       + bias down the rows, + residual
//   input gradient  dX' [in, T]  = W'^T [in, out] dY' [out, T]
//   weight gradient dW [in, out] is dY' [out, T] X'^T [T, in]; dW [out, in] is X' [in, T] dY'^T [T, out]
//
// Bias and residual are added to the fp32 sum before the single rounding. In bf16 the library takes the bias as bf16:
// its rounded copy lies after that of the weight. GELU is not fused, because a fused GELU would use the fp32 sum
// instead of the stored pre-activation that backward and recomputation read (EXECUTION.md 10). Its gradient reads the
// stored pre-activation in every mode and could be fused. It is not, because the library must not write its result over
// the pre-activation that it reads. The slot wants the result there for W (EXECUTION.md 2), and a copy to that place
// moves as much as the kernel would save.
#include "compute/ops/cuda/compute.h"
#include "compute/ops/shapes.h"

#include <stdlib.h>

enum { FORWARD, INPUT, INPUT_ACCUMULATE, WEIGHT, WEIGHT_ACCUMULATE, PRODUCTS };

struct bl_linear_op {
  bl_linear_op_t *next;
  bl_compute_t *compute;
  bl_linear_shape_t shape;
  bl__matmul_t *products[PRODUCTS]; // NULL if not used
  size_t workspace_bytes;
};

static bool rounds_bias(const bl_linear_shape_t *shape) {
  return shape->bias && bl__is_bf16(shape->dtype) && !shape->float_y;
}

static uint64_t dy_stride_of(const bl_linear_shape_t *shape) {
  const uint64_t stride = shape->y_stride ? shape->y_stride : shape->out;
  return shape->float_y ? stride * sizeof(float) / bl__element_bytes(shape->dtype) : stride;
}

static bl__matmul_shape_t product_shape(const bl_linear_shape_t *shape, int which) {
  const bool in_out = shape->order == BL_WEIGHT_IN_OUT;
  const uint64_t rows = shape->rows, in = shape->in, out = shape->out;
  const uint64_t x_ld = shape->x_stride ? shape->x_stride : in, y_ld = shape->y_stride ? shape->y_stride : out;
  const uint64_t dy_ld = dy_stride_of(shape), w_ld = in_out ? out : in;
  bl__matmul_shape_t product = {.batch = 1, .bf16 = bl__is_bf16(shape->dtype), .alignment_bytes = 16};
  switch (which) {
  case FORWARD:
    product.m = out, product.n = rows, product.k = in;
    product.transpose_a = !in_out;
    product.a_ld = w_ld, product.b_ld = x_ld, product.d_ld = y_ld;
    product.float_d = shape->float_y;
    product.add = shape->residual;
    product.bias = shape->bias;
    break;
  case INPUT:
  case INPUT_ACCUMULATE:
    product.m = in, product.n = rows, product.k = out;
    product.transpose_a = in_out;
    product.a_ld = w_ld, product.b_ld = dy_ld, product.d_ld = x_ld;
    product.add = which == INPUT_ACCUMULATE;
    break;
  default:
    product.m = in_out ? out : in, product.n = in_out ? in : out, product.k = rows;
    product.transpose_b = true;
    product.a_ld = in_out ? dy_ld : x_ld, product.b_ld = in_out ? x_ld : dy_ld, product.d_ld = w_ld;
    product.float_d = true;
    product.add = which == WEIGHT_ACCUMULATE;
    break;
  }
  return product;
}

static void destroy(bl_linear_op_t *op) {
  for (int i = 0; i < PRODUCTS; i++) {
    bl__matmul_destroy(op->products[i]);
  }
  free(op);
}

void bl__cuda_linear_destroy_all(bl_compute_t *compute) {
  while (compute->linears) {
    bl_linear_op_t *op = compute->linears;
    compute->linears = op->next;
    destroy(op);
  }
}

static bl_status_t create_products(bl_linear_op_t *op, bl_error_t *err) {
  static const unsigned bits[PRODUCTS] = {BL_LINEAR_FORWARD, BL_LINEAR_INPUT, BL_LINEAR_INPUT_ACCUMULATE,
                                          BL_LINEAR_WEIGHT, BL_LINEAR_WEIGHT};
  for (int i = 0; i < PRODUCTS; i++) {
    if (!(op->shape.uses & bits[i])) {
      continue;
    }
    const bl__matmul_shape_t product = product_shape(&op->shape, i);
    bl_status_t status = bl__matmul_create(op->compute->matmuls, &product, &op->products[i], err);
    if (status != BL_OK) {
      return bl_error_prefix(err, "linear");
    }
    const size_t bytes = bl__matmul_workspace_bytes(op->products[i]);
    op->workspace_bytes = bytes > op->workspace_bytes ? bytes : op->workspace_bytes;
  }
  return BL_OK;
}

bl_status_t bl__cuda_linear_plan(bl_compute_t *compute, const bl_linear_shape_t *shape, bl_linear_op_t **op,
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
  status = create_products(made, err);
  if (status != BL_OK) {
    destroy(made);
    return status;
  }
  bl__cuda_want(compute, made->workspace_bytes);
  made->next = compute->linears;
  compute->linears = made;
  *op = made;
  return BL_OK;
}

// Returns the bytes of the rounded weight. Both directions read one copy in the original order, whether or not the
// shape asks for packing.
static size_t weight_bytes(const bl_linear_op_t *op) {
  return bl__is_bf16(op->shape.dtype) ? op->shape.in * op->shape.out * 2 : 0;
}

size_t bl__cuda_linear_packed_bias(const bl_linear_op_t *op) {
  return rounds_bias(&op->shape) ? bl_align_up(weight_bytes(op), BL_CACHE_LINE_BYTES) : 0;
}

size_t bl__cuda_linear_packed_bytes(const bl_linear_op_t *op) {
  return rounds_bias(&op->shape) ? bl__cuda_linear_packed_bias(op) + op->shape.out * 2 : weight_bytes(op);
}

void bl__cuda_linear_pack(bl_linear_op_t *op, const float *w, const float *bias, void *packed) {
  const bl_compute_t *compute = op->compute;
  int error = bl__launch_narrow(compute->stream, op->shape.in * op->shape.out, w, packed);
  if (error == 0 && rounds_bias(&op->shape)) {
    error = bl__launch_narrow(compute->stream, op->shape.out, bias, (char *)packed + bl__cuda_linear_packed_bias(op));
  }
  bl__cuda_launched(op->compute, error, "linear pack");
}

static void execute(bl_linear_op_t *op, int which, const char *name, const void *a, const void *b, const void *c,
                    const void *bias, void *d) {
  bl_compute_t *compute = op->compute;
  char *workspace = bl__cuda_workspace(compute, op->workspace_bytes, name);
  if (!workspace && op->workspace_bytes > 0) {
    return;
  }
  const char *fault =
      op->products[which] ? bl__matmul_execute(op->products[which], 1.0f, a, b, c, bias, d, workspace) : "not planned";
  if (fault) {
    bl__cuda_fail(compute, "%s of %llu rows, %llu in, %llu out: %s", name, (unsigned long long)op->shape.rows,
                  (unsigned long long)op->shape.in, (unsigned long long)op->shape.out, fault);
  }
}

void bl__cuda_linear_forward(bl_linear_op_t *op, const void *x, const float *w, const void *packed, const float *bias,
                             const void *residual, void *y) {
  const void *given =
      rounds_bias(&op->shape) ? (const char *)packed + bl__cuda_linear_packed_bias(op) : (const void *)bias;
  execute(op, FORWARD, "linear forward", bl__is_bf16(op->shape.dtype) ? packed : w, x, residual, given, y);
}

void bl__cuda_linear_backward_input(bl_linear_op_t *op, const void *dy, const float *w, const void *packed,
                                    bool accumulate, void *dx) {
  execute(op, accumulate ? INPUT_ACCUMULATE : INPUT, "linear backward input", bl__is_bf16(op->shape.dtype) ? packed : w,
          dy, dx, NULL, dx);
}

void bl__cuda_linear_backward_weight(bl_linear_op_t *op, const void *x, const void *dy, bool accumulate, float *dw) {
  const bool in_out = op->shape.order == BL_WEIGHT_IN_OUT;
  execute(op, accumulate ? WEIGHT_ACCUMULATE : WEIGHT, "linear backward weight", in_out ? dy : x, in_out ? x : dy, dw,
          NULL, dw);
}
