// SPDX-License-Identifier: Apache-2.0
#include "compute/ops/cuda/compute.h"

#include <math.h>
#include <stdlib.h>

struct bl_rope_op {
  bl_rope_op_t *next;
  bl_compute_t *compute;
  bl_rope_shape_t shape;
  float *table; // of the device: cosines [seq, head_dim / 2], then sines
};

void bl__cuda_rope_destroy_all(bl_compute_t *compute) {
  while (compute->ropes) {
    bl_rope_op_t *op = compute->ropes;
    compute->ropes = op->next;
    bl__gpu_free(compute->gpu, op->table);
    free(op);
  }
}

static bool same_shape(const bl_rope_shape_t *a, const bl_rope_shape_t *b) {
  return a->batch == b->batch && a->seq == b->seq && a->heads == b->heads && a->kv_heads == b->kv_heads &&
         a->head_dim == b->head_dim && a->theta == b->theta && a->dtype == b->dtype;
}

// transformers computes frequency and angle in fp32; rounding alike keeps long positions in agreement.
static void fill_table(const bl_rope_shape_t *shape, float *cosines, float *sines) {
  const size_t half = shape->head_dim / 2;
  for (size_t position = 0; position < shape->seq; position++) {
    for (size_t i = 0; i < half; i++) {
      const float frequency = (float)(1.0 / pow(shape->theta, 2.0 * (double)i / (double)shape->head_dim));
      const float angle = (float)position * frequency;
      cosines[position * half + i] = (float)cos((double)angle);
      sines[position * half + i] = (float)sin((double)angle);
    }
  }
}

static bl_status_t place_table(bl_rope_op_t *op, bl_error_t *err) {
  bl_compute_t *compute = op->compute;
  const size_t count = op->shape.seq * (op->shape.head_dim / 2), bytes = 2 * count * sizeof(float);
  float *made = malloc(bytes);
  if (!made) {
    return bl_error_set(err, BL_EXHAUSTED, "rope: no memory for %llu positions", (unsigned long long)op->shape.seq);
  }
  fill_table(&op->shape, made, made + count);
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
  bl_rope_op_t *made = calloc(1, sizeof *made);
  if (!made) {
    return bl_error_set(err, BL_EXHAUSTED, "rope: out of memory");
  }
  made->compute = compute;
  made->shape = *shape;
  bl_status_t status = place_table(made, err);
  made->next = compute->ropes; // owned by the context whether it is complete or not
  compute->ropes = made;
  if (status != BL_OK) {
    made->shape.batch = 0; // never found again
    return bl_error_prefix(err, "rope");
  }
  *op = made;
  return BL_OK;
}

static void rotate(bl_rope_op_t *op, void *qkv, float sign, const char *name) {
  const bl_rope_shape_t *shape = &op->shape;
  const bl__heads_t heads = {.batch = shape->batch,
                             .seq = shape->seq,
                             .heads = shape->heads + shape->kv_heads,
                             .head_dim = shape->head_dim,
                             .row_stride = (shape->heads + 2 * shape->kv_heads) * shape->head_dim};
  bl__cuda_launched(op->compute,
                    bl__launch_rope(op->compute->stream, bl__is_bf16(shape->dtype), &heads, op->table,
                                    op->table + shape->seq * (shape->head_dim / 2), sign, qkv),
                    name);
}

void bl__cuda_rope_forward(bl_rope_op_t *op, void *qkv) {
  rotate(op, qkv, 1.0f, "rope forward");
}

void bl__cuda_rope_backward(bl_rope_op_t *op, void *dqkv) {
  rotate(op, dqkv, -1.0f, "rope backward");
}
