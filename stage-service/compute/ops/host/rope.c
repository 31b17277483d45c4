// SPDX-License-Identifier: Apache-2.0
#include "compute/ops/host/compute.h"
#include "compute/ops/shapes.h"

#include <stdlib.h>

struct bl_rope_op {
  bl_rope_op_t *next;
  bl_compute_t *compute;
  bl_rope_shape_t shape;
  float *cosines; // [rows of a sequence, bl_rope_dims / 2]
  float *sines;   // likewise
};

void bl__rope_destroy_all(bl_compute_t *compute) {
  while (compute->ropes) {
    bl_rope_op_t *op = compute->ropes;
    compute->ropes = op->next;
    free(op->cosines);
    free(op);
  }
}

bl_status_t bl__rope_plan(bl_compute_t *compute, const bl_rope_shape_t *shape, bl_rope_op_t **op, bl_error_t *err) {
  bl_status_t status = bl_rope_shape_check(shape, err);
  if (status != BL_OK) {
    return status;
  }
  for (bl_rope_op_t *known = compute->ropes; known; known = known->next) {
    if (bl_rope_shapes_match(&known->shape, shape)) {
      *op = known;
      return BL_OK;
    }
  }
  const size_t half = bl_rope_dims(&shape->rope, shape->head_dim) / 2, rows = bl_slice_rows(shape->seq, shape->count);
  bl_rope_op_t *made = calloc(1, sizeof *made);
  float *table = calloc(2 * rows * half, sizeof *table);
  if (!made || !table) {
    free(made);
    free(table);
    return bl_error_set(err, BL_EXHAUSTED, "rope: no memory for %llu positions", (unsigned long long)rows);
  }
  *made = (bl_rope_op_t){.compute = compute, .shape = *shape, .cosines = table, .sines = table + rows * half};
  bl_rope_fill(shape, made->cosines, made->sines);
  made->next = compute->ropes;
  compute->ropes = made;
  *op = made;
  return BL_OK;
}

static void rotate(bl_rope_op_t *op, void *qkv, float sign) {
  const bl_rope_shape_t *shape = &op->shape;
  const size_t heads = shape->heads + shape->kv_heads;
  const size_t dims = bl_rope_dims(&shape->rope, shape->head_dim), half = dims / 2;
  const size_t stride = (shape->heads + 2 * shape->kv_heads) * shape->head_dim;
  const size_t sequence = bl_slice_rows(shape->seq, shape->count);
  BL__PARALLEL(op->compute, shape->batch * sequence, 1, rows) {
    for (size_t row = rows.first; row < rows.last; row++) {
      const size_t position = row % sequence;
      bl__typed(op->compute, shape->dtype)
          ->rope(heads, shape->head_dim, dims, op->cosines + position * half, op->sines + position * half, sign,
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
