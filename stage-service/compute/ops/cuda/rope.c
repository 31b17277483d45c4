// SPDX-License-Identifier: Apache-2.0
#include "compute/ops/cuda/compute.h"
#include "compute/ops/shapes.h"

#include <stdlib.h>

struct bl_rope_op {
  bl_rope_op_t *next;
  bl_compute_t *compute;
  bl_rope_shape_t shape;
  float *table; // on the device: cosines [rows of a sequence, bl_rope_dims / 2], then sines
};

void bl__cuda_rope_destroy_all(bl_compute_t *compute) {
  while (compute->ropes) {
    bl_rope_op_t *op = compute->ropes;
    compute->ropes = op->next;
    bl__gpu_free(compute->gpu, op->table);
    free(op);
  }
}

static uint64_t table_elements(const bl_rope_shape_t *shape) { // number of cosines
  return bl_slice_rows(shape->seq, shape->count) * (bl_rope_dims(&shape->rope, shape->head_dim) / 2);
}

static bl_status_t place_table(bl_rope_op_t *op, bl_error_t *err) {
  bl_compute_t *compute = op->compute;
  const size_t count = table_elements(&op->shape), bytes = 2 * count * sizeof(float);
  float *made = malloc(bytes);
  if (!made) {
    return bl_error_set(err, BL_EXHAUSTED, "rope: no memory for %llu positions", (unsigned long long)op->shape.seq);
  }
  bl_rope_fill(&op->shape, made, made + count);
  void *table = NULL;
  bl_status_t status = bl__gpu_allocate(compute->gpu, bytes, &table, err);
  op->table = table;
  if (status == BL_OK) {
    compute->held_bytes += bytes;
    status = bl__gpu_copy(compute->gpu, table, made, bytes, err);
  }
  free(made);
  return status;
}

bl_status_t bl__cuda_rope_plan(bl_compute_t *compute, const bl_rope_shape_t *shape, bl_rope_op_t **op,
                               bl_error_t *err) {
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
  bl_rope_op_t *made = calloc(1, sizeof *made);
  if (!made) {
    return bl_error_set(err, BL_EXHAUSTED, "rope: out of memory");
  }
  made->compute = compute;
  made->shape = *shape;
  status = place_table(made, err);
  made->next = compute->ropes; // the context owns it, complete or not
  compute->ropes = made;
  if (status != BL_OK) {
    made->shape.batch = 0; // no lookup finds it
    return bl_error_prefix(err, "rope");
  }
  *op = made;
  return BL_OK;
}

static void rotate(bl_rope_op_t *op, void *qkv, float sign, const char *name) {
  const bl_rope_shape_t *shape = &op->shape;
  const bl__heads_t heads = {.batch = shape->batch,
                             .seq = bl_slice_rows(shape->seq, shape->count),
                             .heads = shape->heads + shape->kv_heads,
                             .head_dim = shape->head_dim,
                             .row_stride = (shape->heads + 2 * shape->kv_heads) * shape->head_dim};
  bl__cuda_launched(op->compute,
                    bl__launch_rope(op->compute->stream, bl__is_bf16(shape->dtype), &heads,
                                    bl_rope_dims(&shape->rope, shape->head_dim), op->table,
                                    op->table + table_elements(shape), sign, qkv),
                    name);
}

void bl__cuda_rope_forward(bl_rope_op_t *op, void *qkv) {
  rotate(op, qkv, 1.0f, "rope forward");
}

void bl__cuda_rope_backward(bl_rope_op_t *op, void *dqkv) {
  rotate(op, dqkv, -1.0f, "rope backward");
}
