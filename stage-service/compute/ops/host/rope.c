// SPDX-License-Identifier: Apache-2.0
#include "compute/ops/host/compute.h"

#include <math.h>
#include <stdlib.h>

struct bl_rope_op {
  bl_rope_op_t *next;
  bl_compute_t *compute;
  bl_rope_shape_t shape;
  float *cosines; // [seq, head_dim / 2]
  float *sines;   // [seq, head_dim / 2]
};

void bl__rope_destroy_all(bl_compute_t *compute) {
  while (compute->ropes) {
    bl_rope_op_t *op = compute->ropes;
    compute->ropes = op->next;
    free(op->cosines);
    free(op);
  }
}

static bool same_shape(const bl_rope_shape_t *a, const bl_rope_shape_t *b) {
  return a->batch == b->batch && a->seq == b->seq && a->heads == b->heads && a->kv_heads == b->kv_heads &&
         a->head_dim == b->head_dim && a->theta == b->theta && a->dtype == b->dtype;
}

bl_status_t bl__rope_plan(bl_compute_t *compute, const bl_rope_shape_t *shape, bl_rope_op_t **op, bl_error_t *err) {
  if (shape->head_dim % 2 || shape->head_dim == 0 || shape->seq == 0 || !(shape->theta > 0)) {
    return bl_error_set(err, BL_INVALID, "rope: head_dim %llu must be even, seq %llu at least 1, theta %g positive",
                        (unsigned long long)shape->head_dim, (unsigned long long)shape->seq, shape->theta);
  }
  for (bl_rope_op_t *known = compute->ropes; known; known = known->next) {
    if (same_shape(&known->shape, shape)) {
      *op = known;
      return BL_OK;
    }
  }
  const size_t half = shape->head_dim / 2;
  bl_rope_op_t *made = calloc(1, sizeof *made);
  float *table = calloc(2 * shape->seq * half, sizeof *table);
  if (!made || !table) {
    free(made);
    free(table);
    return bl_error_set(err, BL_EXHAUSTED, "rope: no memory for %llu positions", (unsigned long long)shape->seq);
  }
  *made = (bl_rope_op_t){.compute = compute, .shape = *shape, .cosines = table, .sines = table + shape->seq * half};
  for (size_t position = 0; position < shape->seq; position++) {
    for (size_t i = 0; i < half; i++) {
      // transformers computes frequency and angle in fp32; rounding alike keeps long positions in agreement.
      const float frequency = (float)(1.0 / pow(shape->theta, 2.0 * (double)i / (double)shape->head_dim));
      const float angle = (float)position * frequency;
      made->cosines[position * half + i] = (float)cos((double)angle);
      made->sines[position * half + i] = (float)sin((double)angle);
    }
  }
  made->next = compute->ropes;
  compute->ropes = made;
  *op = made;
  return BL_OK;
}

static void rotate(bl_rope_op_t *op, void *qkv, float sign) {
  const bl_rope_shape_t *shape = &op->shape;
  const size_t heads = shape->heads + shape->kv_heads, half = shape->head_dim / 2;
  const size_t stride = (shape->heads + 2 * shape->kv_heads) * shape->head_dim;
  BL__PARALLEL(op->compute, shape->batch * shape->seq, 1, rows) {
    for (size_t row = rows.first; row < rows.last; row++) {
      const size_t position = row % shape->seq;
      bl__typed(op->compute, shape->dtype)
          ->rope(heads, shape->head_dim, op->cosines + position * half, op->sines + position * half, sign,
                 bl__element_to(shape->dtype, qkv, row * stride));
    }
  }
}

void bl__rope_forward(bl_rope_op_t *op, void *qkv) {
  rotate(op, qkv, 1.0f);
}

void bl__rope_backward(bl_rope_op_t *op, void *dqkv) {
  rotate(op, dqkv, -1.0f);
}
