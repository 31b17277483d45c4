// SPDX-License-Identifier: Apache-2.0
// Causal attention: packs heads densely into workspace and runs the tile kernels. Threads split pairs of (sequence,
// key head), so that gradients of a key head, which its query heads share, are summed by one thread in head order. More
// threads than batch x kv_heads find nothing to do.
#include "compute/ops/host/compute.h"
#include "compute/ops/shapes.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

#define LOG2_E 1.4426950408889634

struct bl_attention_op {
  bl_attention_op_t *next;
  bl_compute_t *compute;
  bl_attention_shape_t shape;
  size_t packed_floats;  // of one packed tensor [seq_padded, width]
  size_t scratch_floats; // of the kernels
  size_t thread_floats;  // workspace of one thread
};

// Workspace of one thread: packed tensors, then deltas [seq_padded], then kernel scratch.
enum { PACKED_Q, PACKED_K, PACKED_V, PACKED_KT, PACKED_VT, PACKED_DATT, PACKED_DQ, PACKED_DK, PACKED_DV, PACKED_COUNT };

void bl__attention_destroy_all(bl_compute_t *compute) {
  while (compute->attentions) {
    bl_attention_op_t *op = compute->attentions;
    compute->attentions = op->next;
    free(op);
  }
}

bl_status_t bl__attention_plan(bl_compute_t *compute, const bl_attention_shape_t *shape, bl_attention_op_t **op,
                               bl_error_t *err) {
  bl_status_t status = bl_attention_shape_check(shape, err);
  if (status != BL_OK) {
    return status;
  }
  for (bl_attention_op_t *known = compute->attentions; known; known = known->next) {
    if (bl_attention_shapes_match(&known->shape, shape)) {
      *op = known;
      return BL_OK;
    }
  }
  bl_attention_op_t *made = calloc(1, sizeof *made);
  if (!made) {
    return bl_error_set(err, BL_EXHAUSTED, "attention: out of memory");
  }
  made->compute = compute;
  made->shape = *shape;
  made->packed_floats = bl__tiles(shape->seq) * BL_TILE * bl__head_width(shape->head_dim);
  made->scratch_floats = bl__attention_scratch_floats(shape->seq, shape->head_dim, shape->flash, shape->cap != 0.0f);
  made->thread_floats = PACKED_COUNT * made->packed_floats + bl__tiles(shape->seq) * BL_TILE + made->scratch_floats;
  bl__compute_want(compute, compute->threads * made->thread_floats * sizeof(float));
  made->next = compute->attentions;
  compute->attentions = made;
  *op = made;
  return BL_OK;
}

// Where the parts of one thread's workspace and of one key head lie.
typedef struct bl__pair {
  float *packed[PACKED_COUNT];
  float *deltas, *scratch;
  size_t sequence, key_head; // which pair
  size_t qkv_stride, att_stride;
  size_t q_column, k_column, v_column; // of the first query head of the group, the key head, the value head
  size_t first_row;
  bl__head_t head;
} bl__pair_t;

static bl__pair_t pair_of(const bl_attention_op_t *op, float *workspace, size_t index) {
  const bl_attention_shape_t *shape = &op->shape;
  const size_t group = shape->heads / shape->kv_heads;
  bl__pair_t pair = {.sequence = index / shape->kv_heads, .key_head = index % shape->kv_heads};
  for (int i = 0; i < PACKED_COUNT; i++) {
    pair.packed[i] = workspace + (size_t)i * op->packed_floats;
  }
  pair.deltas = workspace + PACKED_COUNT * op->packed_floats;
  pair.scratch = pair.deltas + bl__tiles(shape->seq) * BL_TILE;
  pair.qkv_stride = (shape->heads + 2 * shape->kv_heads) * shape->head_dim;
  pair.att_stride = shape->heads * shape->head_dim;
  pair.q_column = pair.key_head * group * shape->head_dim;
  pair.k_column = (shape->heads + pair.key_head) * shape->head_dim;
  pair.v_column = pair.k_column + shape->kv_heads * shape->head_dim;
  pair.first_row = pair.sequence * shape->seq;
  pair.head = (bl__head_t){
      .seq = shape->seq,
      .head_dim = shape->head_dim,
      .width = bl__head_width(shape->head_dim),
      .window = shape->window < shape->seq ? shape->window : 0,
      .cap = (float)(LOG2_E * (double)shape->cap),
      .keys = {pair.packed[PACKED_K], pair.packed[PACKED_V], pair.packed[PACKED_KT], pair.packed[PACKED_VT]},
      .q = pair.packed[PACKED_Q]};
  return pair;
}

// Scale that queries carry, and what it leaves in gradients of keys.
static float query_scale(const bl_attention_op_t *op) {
  return (float)(LOG2_E * bl_attention_scale(&op->shape));
}

static const bl_typed_kernels_t *typed(const bl_attention_op_t *op) {
  return bl__typed(op->compute, op->shape.dtype);
}

static const void *element(const bl_attention_op_t *op, const void *x, size_t index) {
  return bl__element(op->shape.dtype, x, index);
}

// What is saved of one query head: float log-sum-exps, or elements of probabilities.
static const void *saved_of(const bl_attention_op_t *op, const void *saved, size_t head) {
  const size_t seq = op->shape.seq;
  return op->shape.flash ? (const float *)saved + head * seq : element(op, saved, head * seq * seq);
}

static void pack_keys(const bl_attention_op_t *op, const bl__pair_t *pair, const void *qkv, bool backward) {
  const bl_kernels_t *kernels = op->compute->kernels;
  const size_t seq = op->shape.seq, head_dim = op->shape.head_dim;
  const size_t first = pair->first_row * pair->qkv_stride;
  typed(op)->pack(seq, head_dim, pair->qkv_stride, 1.0f, element(op, qkv, first + pair->k_column),
                  pair->packed[PACKED_K]);
  typed(op)->pack(seq, head_dim, pair->qkv_stride, 1.0f, element(op, qkv, first + pair->v_column),
                  pair->packed[PACKED_V]);
  kernels->transpose(seq, pair->head.width, pair->packed[PACKED_K], pair->packed[PACKED_KT]);
  if (backward) {
    kernels->transpose(seq, pair->head.width, pair->packed[PACKED_V], pair->packed[PACKED_VT]);
  }
}

static void forward_pair(const bl_attention_op_t *op, const bl__pair_t *pair, const void *qkv, void *att, void *saved) {
  const bl_typed_kernels_t *kernels = typed(op);
  const bl_attention_shape_t *shape = &op->shape;
  const size_t group = shape->heads / shape->kv_heads;
  pack_keys(op, pair, qkv, false);
  for (size_t g = 0; g < group; g++) {
    const size_t query = pair->key_head * group + g, column = pair->q_column + g * shape->head_dim;
    kernels->pack(shape->seq, shape->head_dim, pair->qkv_stride, query_scale(op),
                  element(op, qkv, pair->first_row * pair->qkv_stride + column), pair->packed[PACKED_Q]);
    void *kept = (void *)(uintptr_t)saved_of(op, saved, pair->sequence * shape->heads + query);
    for (size_t tile = 0; tile < bl__tiles(shape->seq); tile++) {
      kernels->attention_forward(&pair->head, tile, pair->att_stride,
                                 bl__element_to(shape->dtype, att, pair->first_row * pair->att_stride + column),
                                 shape->flash ? kept : NULL, shape->flash ? NULL : kept, pair->scratch);
    }
  }
}

static void backward_pair(const bl_attention_op_t *op, const bl__pair_t *pair, const void *datt, const void *qkv,
                          const void *att, const void *saved, void *dqkv) {
  const bl_typed_kernels_t *kernels = typed(op);
  const bl_attention_shape_t *shape = &op->shape;
  const size_t group = shape->heads / shape->kv_heads;
  float *const *packed = pair->packed;
  const size_t first = pair->first_row * pair->qkv_stride; // of this sequence in qkv and dqkv
  pack_keys(op, pair, qkv, true);
  memset(packed[PACKED_DK], 0, op->packed_floats * sizeof(float));
  memset(packed[PACKED_DV], 0, op->packed_floats * sizeof(float));
  for (size_t g = 0; g < group; g++) {
    const size_t query = pair->key_head * group + g, column = pair->q_column + g * shape->head_dim;
    const size_t offset = pair->first_row * pair->att_stride + column;
    kernels->pack(shape->seq, shape->head_dim, pair->qkv_stride, query_scale(op), element(op, qkv, first + column),
                  packed[PACKED_Q]);
    kernels->pack(shape->seq, shape->head_dim, pair->att_stride, 1.0f, element(op, datt, offset), packed[PACKED_DATT]);
    kernels->row_dots(shape->seq, shape->head_dim, pair->att_stride, element(op, datt, offset),
                      element(op, att, offset), pair->deltas);
    const void *kept = saved_of(op, saved, pair->sequence * shape->heads + query);
    kernels->attention_backward(&pair->head, packed[PACKED_DATT], pair->deltas, shape->flash ? kept : NULL,
                                shape->flash ? NULL : kept, packed[PACKED_DQ], packed[PACKED_DK], packed[PACKED_DV],
                                pair->scratch);
    // Written over the query this thread has packed: dqkv may be qkv.
    kernels->unpack(shape->seq, shape->head_dim, pair->qkv_stride, (float)bl_attention_scale(shape), packed[PACKED_DQ],
                    bl__element_to(shape->dtype, dqkv, first + column));
  }
  // dK came from queries that carry log2(e) and the scale.
  kernels->unpack(shape->seq, shape->head_dim, pair->qkv_stride, 0.693147180559945309f, packed[PACKED_DK],
                  bl__element_to(shape->dtype, dqkv, first + pair->k_column));
  kernels->unpack(shape->seq, shape->head_dim, pair->qkv_stride, 1.0f, packed[PACKED_DV],
                  bl__element_to(shape->dtype, dqkv, first + pair->v_column));
}

static float *workspace_of(const bl_attention_op_t *op, const char *name) {
  return bl__compute_workspace(op->compute, op->compute->threads * op->thread_floats * sizeof(float), name);
}

void bl__attention_forward(bl_attention_op_t *op, const void *qkv, void *att, void *saved) {
  float *workspace = workspace_of(op, "attention forward");
  const size_t pairs = op->shape.batch * op->shape.kv_heads;
  if (!workspace) {
    return;
  }
#pragma omp parallel for num_threads(op->compute->threads) schedule(static)
  for (size_t i = 0; i < pairs; i++) {
    bl__pair_t pair = pair_of(op, workspace + (size_t)omp_get_thread_num() * op->thread_floats, i);
    forward_pair(op, &pair, qkv, att, saved);
  }
}

void bl__attention_backward(bl_attention_op_t *op, const void *datt, const void *qkv, const void *att,
                            const void *saved, void *dqkv) {
  float *workspace = workspace_of(op, "attention backward");
  const size_t pairs = op->shape.batch * op->shape.kv_heads;
  if (!workspace) {
    return;
  }
#pragma omp parallel for num_threads(op->compute->threads) schedule(static)
  for (size_t i = 0; i < pairs; i++) {
    bl__pair_t pair = pair_of(op, workspace + (size_t)omp_get_thread_num() * op->thread_floats, i);
    backward_pair(op, &pair, datt, qkv, att, saved, dqkv);
  }
}
