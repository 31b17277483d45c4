// SPDX-License-Identifier: Apache-2.0
// Causal attention: packs heads densely into workspace and runs the tile kernels. Threads split pairs of (sequence, key
// head), so that one thread sums the gradients of a key head, which its query heads share, in head order. More threads
// than batch x kv_heads find nothing to do.
//
// A slice is computed the same way, with its queries after the keys of the slices before it: rows are those of the
// sequence, queries begin at shape.first, keys and values come from pages. Gradients of keys wait in pages in packed
// form, without their scale.
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
  size_t rows;           // of a sequence in qkv
  size_t keys;           // keys that its last query sees
  size_t packed_floats;  // of one packed tensor [keys_padded, width]
  size_t scratch_floats; // of the kernels' scratch
  size_t thread_floats;  // workspace of one thread
};

// Workspace of one thread: packed tensors, then deltas [keys_padded], then kernel scratch.
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
  made->rows = bl_slice_rows(shape->seq, shape->count);
  made->keys = shape->first + made->rows;
  // A page that does not end with a tile is padded to the end of the tile.
  const size_t padded = (bl__tiles(made->keys) + (shape->count != 0)) * BL_TILE;
  made->packed_floats = padded * bl__head_width(shape->head_dim);
  made->scratch_floats =
      bl__attention_scratch_floats(made->keys, shape->head_dim, shape->flash, shape->softcap != 0.0f);
  made->thread_floats = PACKED_COUNT * made->packed_floats + padded + made->scratch_floats;
  bl__compute_want(compute, compute->threads * made->thread_floats * sizeof(float));
  made->next = compute->attentions;
  compute->attentions = made;
  *op = made;
  return BL_OK;
}

// Pointers to one thread's workspace, and offsets of one pair of sequence and key head.
typedef struct bl__pair {
  float *packed[PACKED_COUNT];
  float *deltas, *scratch;
  size_t sequence, key_head; // which pair
  size_t qkv_stride, att_stride, page_stride;
  size_t q_column, k_column, v_column; // of the first query head of the group, the key head, the value head
  size_t page_k, page_v;               // the columns of key and value head in a page
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
  pair.scratch = workspace + op->thread_floats - op->scratch_floats;
  pair.qkv_stride = (shape->heads + 2 * shape->kv_heads) * shape->head_dim;
  pair.att_stride = shape->heads * shape->head_dim;
  pair.q_column = pair.key_head * group * shape->head_dim;
  pair.k_column = (shape->heads + pair.key_head) * shape->head_dim;
  pair.v_column = pair.k_column + shape->kv_heads * shape->head_dim;
  pair.page_stride = 2 * shape->kv_heads * shape->head_dim;
  pair.page_k = pair.key_head * shape->head_dim;
  pair.page_v = pair.page_k + shape->kv_heads * shape->head_dim;
  pair.first_row = pair.sequence * op->rows;
  pair.head = (bl__head_t){
      .seq = op->keys,
      .first = shape->first,
      .head_dim = shape->head_dim,
      .width = bl__head_width(shape->head_dim),
      .window = shape->window < op->keys ? shape->window : 0,
      .softcap = (float)(LOG2_E * (double)shape->softcap),
      .keys = {pair.packed[PACKED_K], pair.packed[PACKED_V], pair.packed[PACKED_KT], pair.packed[PACKED_VT]},
      .q = pair.packed[PACKED_Q]};
  return pair;
}

// The scale that queries carry, and that remains in gradients of keys.
static float query_scale(const bl_attention_op_t *op) {
  return (float)(LOG2_E * bl_attention_scale(&op->shape));
}

static const bl_typed_kernels_t *typed(const bl_attention_op_t *op) {
  return bl__typed(op->compute, op->shape.dtype);
}

static const void *element(const bl_attention_op_t *op, const void *x, size_t index) {
  return bl__element(op->shape.dtype, x, index);
}

// The saved part of one query head: float log-sum-exps, or elements of probabilities.
static const void *saved_of(const bl_attention_op_t *op, const void *saved, size_t head) {
  return op->shape.flash ? (const float *)saved + head * op->rows : element(op, saved, head * op->rows * op->keys);
}

// Clears the rows of a packed tensor between `row` and the end of the last used tile.
static void clear_from(const bl_attention_op_t *op, const bl__pair_t *pair, size_t row, float *packed) {
  const size_t width = pair->head.width;
  memset(packed + row * width, 0, (bl__tiles(op->keys) * BL_TILE - row) * width * sizeof(float));
}

// Packs rows of queries, and pads before them in their first tile, and after them.
static void pack_queries(const bl_attention_op_t *op, const bl__pair_t *pair, size_t stride, float scale, const void *x,
                         float *packed) {
  const size_t first = op->shape.first, width = pair->head.width, before = first % BL_TILE;
  memset(packed + (first - before) * width, 0, before * width * sizeof(float));
  typed(op)->pack(op->rows, op->shape.head_dim, stride, scale, x, packed + first * width);
  clear_from(op, pair, op->keys, packed);
}

static size_t slices_of(const bl_attention_op_t *op) {
  return op->shape.count == 0 ? 0 : op->shape.first / op->shape.count + 1;
}

// Offset of row 0 of this sequence in a page, whose rows are pair->page_stride apart.
static size_t page_start(const bl_attention_op_t *op, const bl__pair_t *pair) {
  return pair->sequence * op->rows * pair->page_stride;
}

static void pack_key_rows(const bl_attention_op_t *op, size_t stride, const void *k, const void *v,
                          const bl__pair_t *pair, size_t row) {
  const size_t offset = row * pair->head.width;
  typed(op)->pack(op->rows, op->shape.head_dim, stride, 1.0f, k, pair->packed[PACKED_K] + offset);
  typed(op)->pack(op->rows, op->shape.head_dim, stride, 1.0f, v, pair->packed[PACKED_V] + offset);
}

// pages NULL: a whole sequence.
static void pack_keys(const bl_attention_op_t *op, const bl__pair_t *pair, const void *qkv, void *const *pages,
                      bool backward) {
  const bl_kernels_t *kernels = op->compute->kernels;
  const size_t first = pair->first_row * pair->qkv_stride, start = page_start(op, pair);
  if (pages == NULL) {
    pack_key_rows(op, pair->qkv_stride, element(op, qkv, first + pair->k_column),
                  element(op, qkv, first + pair->v_column), pair, 0);
  }
  for (size_t i = 0; pages != NULL && i < slices_of(op); i++) {
    pack_key_rows(op, pair->page_stride, element(op, pages[i], start + pair->page_k),
                  element(op, pages[i], start + pair->page_v), pair, i * op->rows);
  }
  clear_from(op, pair, op->keys, pair->packed[PACKED_K]);
  clear_from(op, pair, op->keys, pair->packed[PACKED_V]);
  kernels->transpose(op->keys, pair->head.width, pair->packed[PACKED_K], pair->packed[PACKED_KT]);
  if (backward) {
    kernels->transpose(op->keys, pair->head.width, pair->packed[PACKED_V], pair->packed[PACKED_VT]);
  }
}

// Copies this pair's keys and values to its slice's page.
static void keep_keys(const bl_attention_op_t *op, const bl__pair_t *pair, const void *qkv, void *page) {
  const size_t bytes = op->shape.head_dim * bl__element_bytes(op->shape.dtype), start = page_start(op, pair);
  for (size_t row = 0; row < op->rows; row++) {
    const size_t from = (pair->first_row + row) * pair->qkv_stride, to = start + row * pair->page_stride;
    memcpy(bl__element_to(op->shape.dtype, page, to + pair->page_k), element(op, qkv, from + pair->k_column), bytes);
    memcpy(bl__element_to(op->shape.dtype, page, to + pair->page_v), element(op, qkv, from + pair->v_column), bytes);
  }
}

static void forward_pair(const bl_attention_op_t *op, const bl__pair_t *pair, const void *qkv, void *const *pages,
                         void *att, void *saved) {
  const bl_typed_kernels_t *kernels = typed(op);
  const bl_attention_shape_t *shape = &op->shape;
  const size_t group = shape->heads / shape->kv_heads;
  if (pages != NULL) {
    keep_keys(op, pair, qkv, pages[slices_of(op) - 1]);
  }
  pack_keys(op, pair, qkv, pages, false);
  for (size_t g = 0; g < group; g++) {
    const size_t query = pair->key_head * group + g, column = pair->q_column + g * shape->head_dim;
    pack_queries(op, pair, pair->qkv_stride, query_scale(op),
                 element(op, qkv, pair->first_row * pair->qkv_stride + column), pair->packed[PACKED_Q]);
    void *kept = (void *)(uintptr_t)saved_of(op, saved, pair->sequence * shape->heads + query);
    for (size_t tile = shape->first / BL_TILE; tile < bl__tiles(op->keys); tile++) {
      kernels->attention_forward(&pair->head, tile, pair->att_stride,
                                 bl__element_to(shape->dtype, att, pair->first_row * pair->att_stride + column),
                                 shape->flash ? kept : NULL, shape->flash ? NULL : kept, pair->scratch);
    }
  }
}

// Reads the gradient sums of keys and values from later slices (`store` false), or writes them back for the slices
// before this one (`store` true).
static void move_sums(const bl_attention_op_t *op, const bl__pair_t *pair, float *const *gradients, bool store) {
  const bl_typed_kernels_t *floats = bl__typed(op->compute, BL_COMPUTE_FP32);
  const size_t columns[] = {pair->page_k, pair->page_v}, width = pair->head.width, start = page_start(op, pair);
  float *sums[] = {pair->packed[PACKED_DK], pair->packed[PACKED_DV]};
  for (size_t i = 0; i < slices_of(op) - store; i++) {
    for (size_t n = 0; n < 2; n++) {
      float *page = gradients[i] + start + columns[n], *rows = sums[n] + i * op->rows * width;
      if (store) {
        floats->unpack(op->rows, op->shape.head_dim, pair->page_stride, 1.0f, rows, page);
      } else {
        floats->pack(op->rows, op->shape.head_dim, pair->page_stride, 1.0f, page, rows);
      }
    }
  }
}

static void begin_sums(const bl_attention_op_t *op, const bl__pair_t *pair, float *const *gradients) {
  const bool last = op->keys == op->shape.seq;
  if (!last) {
    move_sums(op, pair, gradients, false);
  }
  clear_from(op, pair, last ? 0 : op->keys, pair->packed[PACKED_DK]);
  clear_from(op, pair, last ? 0 : op->keys, pair->packed[PACKED_DV]);
}

static void backward_pair(const bl_attention_op_t *op, const bl__pair_t *pair, const void *datt, const void *qkv,
                          void *const *pages, float *const *gradients, const void *att, const void *saved, void *dqkv) {
  const bl_typed_kernels_t *kernels = typed(op);
  const bl_attention_shape_t *shape = &op->shape;
  const size_t group = shape->heads / shape->kv_heads;
  float *const *packed = pair->packed;
  const size_t first = pair->first_row * pair->qkv_stride; // offset of this sequence in qkv and dqkv
  const size_t own = shape->first * pair->head.width;      // offset of the first own row in packed tensors
  pack_keys(op, pair, qkv, pages, true);
  begin_sums(op, pair, gradients);
  memset(pair->deltas, 0, bl__tiles(op->keys) * BL_TILE * sizeof(float));
  for (size_t g = 0; g < group; g++) {
    const size_t query = pair->key_head * group + g, column = pair->q_column + g * shape->head_dim;
    const size_t offset = pair->first_row * pair->att_stride + column;
    pack_queries(op, pair, pair->qkv_stride, query_scale(op), element(op, qkv, first + column), packed[PACKED_Q]);
    pack_queries(op, pair, pair->att_stride, 1.0f, element(op, datt, offset), packed[PACKED_DATT]);
    kernels->row_dots(op->rows, shape->head_dim, pair->att_stride, element(op, datt, offset), element(op, att, offset),
                      pair->deltas + shape->first);
    const void *kept = saved_of(op, saved, pair->sequence * shape->heads + query);
    kernels->attention_backward(&pair->head, packed[PACKED_DATT], pair->deltas, shape->flash ? kept : NULL,
                                shape->flash ? NULL : kept, packed[PACKED_DQ], packed[PACKED_DK], packed[PACKED_DV],
                                pair->scratch);
    // Overwrites the query that this thread has packed: dqkv may be qkv.
    kernels->unpack(op->rows, shape->head_dim, pair->qkv_stride, (float)bl_attention_scale(shape),
                    packed[PACKED_DQ] + own, bl__element_to(shape->dtype, dqkv, first + column));
  }
  if (pages != NULL) {
    move_sums(op, pair, gradients, true);
  }
  // dK was computed from queries that carry log2(e) and the scale.
  kernels->unpack(op->rows, shape->head_dim, pair->qkv_stride, 0.693147180559945309f, packed[PACKED_DK] + own,
                  bl__element_to(shape->dtype, dqkv, first + pair->k_column));
  kernels->unpack(op->rows, shape->head_dim, pair->qkv_stride, 1.0f, packed[PACKED_DV] + own,
                  bl__element_to(shape->dtype, dqkv, first + pair->v_column));
}

static float *workspace_of(const bl_attention_op_t *op, const char *name) {
  return bl__compute_workspace(op->compute, op->compute->threads * op->thread_floats * sizeof(float), name);
}

void bl__attention_slice_forward(bl_attention_op_t *op, const void *qkv, void *const *pages, void *att, void *saved) {
  float *workspace = workspace_of(op, "attention forward");
  const size_t pairs = op->shape.batch * op->shape.kv_heads;
  if (!workspace) {
    return;
  }
#pragma omp parallel for num_threads(op->compute->threads) schedule(static)
  for (size_t i = 0; i < pairs; i++) {
    bl__pair_t pair = pair_of(op, workspace + (size_t)omp_get_thread_num() * op->thread_floats, i);
    forward_pair(op, &pair, qkv, pages, att, saved);
  }
}

void bl__attention_forward(bl_attention_op_t *op, const void *qkv, void *att, void *saved) {
  bl__attention_slice_forward(op, qkv, NULL, att, saved);
}

void bl__attention_slice_backward(bl_attention_op_t *op, const void *datt, const void *qkv, void *const *pages,
                                  float *const *gradients, const void *att, const void *saved, void *dqkv) {
  float *workspace = workspace_of(op, "attention backward");
  const size_t pairs = op->shape.batch * op->shape.kv_heads;
  if (!workspace) {
    return;
  }
#pragma omp parallel for num_threads(op->compute->threads) schedule(static)
  for (size_t i = 0; i < pairs; i++) {
    bl__pair_t pair = pair_of(op, workspace + (size_t)omp_get_thread_num() * op->thread_floats, i);
    backward_pair(op, &pair, datt, qkv, pages, gradients, att, saved, dqkv);
  }
}

void bl__attention_backward(bl_attention_op_t *op, const void *datt, const void *qkv, const void *att,
                            const void *saved, void *dqkv) {
  bl__attention_slice_backward(op, datt, qkv, NULL, NULL, att, saved, dqkv);
}
