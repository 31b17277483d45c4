// SPDX-License-Identifier: Apache-2.0
// Private to ops/host: what linear.c and widened.c share, the plan, and bf16 products on CPUs without instructions for
// them. Thread: the compute thread.
#ifndef BALLAST_COMPUTE_OPS_HOST_LINEAR_H
#define BALLAST_COMPUTE_OPS_HOST_LINEAR_H

#include "compute/ops/host/compute.h"

enum { BL__FORWARD, BL__INPUT, BL__INPUT_ACCUMULATE, BL__WEIGHT, BL__WEIGHT_ACCUMULATE, BL__PRODUCTS_OF_LINEAR };

typedef enum bl__linear_mode {
  BL__FLOATS,
  BL__NATIVE_BF16, // products of bf16
  BL__WIDENED,     // products of floats that are bf16 in value
} bl__linear_mode_t;

struct bl_linear_op {
  bl_linear_op_t *next;
  bl_compute_t *compute;
  bl_linear_shape_t shape;
  bl__linear_mode_t mode;
  bl__product_t *products[BL__PRODUCTS_OF_LINEAR]; // NULL if not used
  size_t packed_input_at; // offset of W packed for the input gradient, after W packed for forward
  size_t packed_bytes;
  size_t scratch_bytes;   // of the products, at the start of the workspace
  size_t workspace_bytes; // including widened operands
};

// Elements between rows, with or without a stride in the shape.
static inline size_t bl__linear_x_stride(const bl_linear_shape_t *shape) {
  return shape->x_stride ? shape->x_stride : shape->in;
}
static inline size_t bl__linear_y_stride(const bl_linear_shape_t *shape) {
  return shape->y_stride ? shape->y_stride : shape->out;
}
static inline size_t bl__linear_dy_stride(const bl_linear_shape_t *shape) {
  const size_t stride = bl__linear_y_stride(shape);
  return shape->float_y ? stride * sizeof(float) / bl__element_bytes(shape->dtype) : stride;
}

// linear.c: runs one product. If the plan lacks it, that is a bug of the caller.
void bl__linear_execute(bl_linear_op_t *op, int which, const char *name, const void *a, const void *b,
                        const float *bias, const void *residual, void *c);
// widened.c
size_t bl__widened_bytes(const bl_linear_shape_t *shape);
void bl__round_floats(const bl_typed_kernels_t *kernels, size_t count, const float *x, float *y); // to bf16 values
void bl__widened_forward(bl_linear_op_t *op, const void *x, const float *w, const float *bias, const void *residual,
                         void *y);
void bl__widened_backward_input(bl_linear_op_t *op, const void *dy, const float *w, bool accumulate, void *dx);

#endif
