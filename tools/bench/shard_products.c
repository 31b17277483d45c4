// SPDX-License-Identifier: Apache-2.0
#include "model/workspace.h"
#include "shard.h"

typedef struct {
  float *w, *dw;
  // dy is y, except for logits: their floats would be arbitrary bits as a gradient.
  void *x, *dx, *y, *dy, *packed, *workspace;
} operands_t;

// Repeats the numbers of the stage's weights: operations on equal numbers can be faster than usual.
static bl_status_t spread(bl_shard_t *bench, void *to, uint64_t bytes, const void *from, uint64_t from_bytes,
                          bl_error_t *err) {
  bl_status_t status = BL_OK;
  for (uint64_t at = 0; at < bytes && status == BL_OK; at += from_bytes) {
    status = bl_device_copy(bench->device, bench->stream, (char *)to + at, from,
                            bytes - at < from_bytes ? bytes - at : from_bytes, err);
  }
  return status;
}

static bl_status_t prepare_product(bl_shard_t *bench, const bl_linear_shape_t *shape, bl_linear_op_t *op, operands_t *o,
                                   bl_error_t *err) {
  const uint64_t element = shape->dtype == BL_COMPUTE_BF16 ? 2 : 4, weights = shape->in * shape->out * sizeof(float);
  const uint64_t ops_bytes = bench->ops->workspace_bytes(bench->compute), x_bytes = shape->rows * shape->in * element;
  const uint64_t y_bytes =
      shape->rows * (shape->y_stride > 0 ? shape->y_stride : shape->out) * (shape->float_y ? sizeof(float) : element);
  const struct {
    uint64_t bytes;
    void *place;
  } wanted[] = {{weights, &o->w},
                {weights, &o->dw},
                {x_bytes, &o->x},
                {x_bytes, &o->dx},
                {y_bytes, &o->y},
                {shape->float_y ? y_bytes : 0, &o->dy},
                {bench->ops->linear_packed_bytes(op), &o->packed},
                {ops_bytes, &o->workspace}};
  bl_status_t status = BL_OK;
  for (size_t i = 0; i < sizeof wanted / sizeof wanted[0] && status == BL_OK; i++) {
    status = bl_shard_take(bench, wanted[i].bytes, wanted[i].place, err);
  }
  if (status == BL_OK) {
    bench->ops->use_workspace(bench->compute, o->workspace, ops_bytes);
    status = spread(bench, o->w, weights, bl_chunk_parameter(bench->chunk, 0).weight, bench->sizes.weight_bytes, err);
  }
  if (status == BL_OK) {
    status = spread(bench, o->x, x_bytes, bench->kept, bench->sizes.edge_bytes, err);
  }
  if (status == BL_OK && shape->float_y) {
    status = spread(bench, o->dy, y_bytes, bench->kept, bench->sizes.edge_bytes, err);
  } else {
    o->dy = o->y;
  }
  if (status == BL_OK && o->packed != NULL) {
    bench->ops->linear_pack(op, o->w, NULL, o->packed);
  }
  return status;
}

// Measures the minimum seconds of forward, input and weight together.
static bl_status_t time_product(bl_shard_t *bench, const bl_linear_shape_t *shape, double *seconds, bl_error_t *err) {
  bl_linear_op_t *op;
  operands_t o = {0};
  double best[3] = {0};
  const size_t before = bench->arena_count;
  bl_status_t status = bench->ops->linear_plan(bench->compute, shape, &op, err);
  status = status == BL_OK ? prepare_product(bench, shape, op, &o, err) : status;
  for (int64_t run = 0; run <= bench->settings->samples && status == BL_OK; run++) {
    for (int part = 0; part < 3 && status == BL_OK; part++) {
      double took = 0;
      status = bl_shard_start(bench, err);
      if (status == BL_OK && part == 0) {
        bench->ops->linear_forward(op, o.x, o.w, o.packed, NULL, NULL, o.y);
      } else if (status == BL_OK && part == 1) {
        bench->ops->linear_backward_input(op, o.dy, o.w, o.packed, false, o.dx);
      } else if (status == BL_OK) {
        bench->ops->linear_backward_weight(op, o.x, o.dy, false, o.dw);
      }
      status = status == BL_OK ? bl_shard_stop(bench, &took, err) : status;
      best[part] = run <= 1 || took < best[part] ? took : best[part]; // the first run warms up
    }
  }
  while (bench->arena_count > before) {
    bl_arena_destroy(&bench->arenas[--bench->arena_count]);
  }
  *seconds = best[0] + best[1] + best[2];
  return status;
}

bl_status_t bl_shard_time_products(bl_shard_t *bench, bl_shard_result_t *result, bl_error_t *err) {
  const bl_model_t *m = &bench->model;
  const uint32_t query = m->heads * m->head_dim, qkv = query + 2 * m->kv_heads * m->head_dim;
  const uint32_t pre = m->family == BL_FAMILY_LLAMA ? 2 * m->ffn : m->ffn;
  const uint32_t shapes[][2] = {{m->hidden, qkv}, {query, m->hidden}, {m->hidden, pre}, {m->ffn, m->hidden}};
  const bl_compute_dtype_t dtype = bench->settings->dtype == BL_DTYPE_BF16 ? BL_COMPUTE_BF16 : BL_COMPUTE_FP32;
  const double rows = (double)bench->micro_batch * m->seq;
  double seconds = 0, flops = 0, head_seconds = 0, head_flops = 0;
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
    const bl_linear_shape_t shape = {
        .rows = (uint64_t)bench->micro_batch * m->seq,
        .in = shapes[i][0],
        .out = shapes[i][1],
        .order = m->family == BL_FAMILY_LLAMA ? BL_WEIGHT_OUT_IN : BL_WEIGHT_IN_OUT,
        .uses = BL_LINEAR_FORWARD | BL_LINEAR_INPUT | BL_LINEAR_WEIGHT,
        .prepack = true,
        .dtype = dtype,
    };
    double one = 0;
    bl_status_t status = time_product(bench, &shape, &one, err);
    if (status != BL_OK) {
      return status;
    }
    seconds += one;
    flops += 3 * 2.0 * (double)shape.rows * (double)shape.in * (double)shape.out;
  }
  if (bench->settings->head) { // a piece of its rows, times the number of pieces
    const bl_workspace_t plan = bl_workspace_plan(bl_chunk_layout(bench->chunk));
    const bl_linear_shape_t shape = {.rows = plan.head_rows,
                                     .in = m->hidden,
                                     .out = m->vocab,
                                     .order = BL_WEIGHT_OUT_IN,
                                     .uses = BL_LINEAR_FORWARD | BL_LINEAR_INPUT | BL_LINEAR_WEIGHT,
                                     .prepack = true,
                                     .float_y = true,
                                     .y_stride = plan.logits_stride,
                                     .dtype = dtype};
    bl_status_t status = time_product(bench, &shape, &head_seconds, err);
    if (status != BL_OK) {
      return status;
    }
    head_seconds *= rows / (double)plan.head_rows;
    head_flops = 3 * 2.0 * rows * m->hidden * m->vocab;
  }
  result->products = seconds * m->layers + head_seconds;
  result->rate = (flops * m->layers + head_flops) / result->products;
  return BL_OK;
}
