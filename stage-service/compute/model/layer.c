// SPDX-License-Identifier: Apache-2.0
// One transformer layer of either family. Shapes: T = micro_batch seq rows; x1, x2, y, norm1, norm2 [T, hidden];
// qkv [T, qkv_width]; attention [T, query_width]; pre [T, pre_width]; act [T, ffn].
//
//   norm1 = norm(x1)   qkv = norm1 Wqkv   attention = softmax(q k) v   x2 = x1 + attention Wout
//   norm2 = norm(x2)   pre = norm2 Win    act = gelu(pre) or swiglu(pre)   y = x2 + act Wffn
#include "compute/model/chunk_internal.h"

static void *workspace_at(const bl_chunk_t *chunk, uint64_t offset_bytes) {
  return (char *)chunk->arenas.workspace + offset_bytes;
}

// `slot` NULL: of a forward that keeps nothing.
static void *segment(const bl_chunk_t *chunk, uint32_t layer, bl_segment_kind_t kind, void *slot) {
  bl_segment_t found;
  bool exists = slot != NULL ? bl_layout_segment(&chunk->layout, layer, kind, &found)
                             : bl_layout_layer_segment(&chunk->layout, layer, kind, &found);
  if (!exists) {
    return NULL;
  }
  if (found.lifetime == BL_LIFETIME_LAYER) {
    return workspace_at(chunk, chunk->workspace.shared_offset_bytes + found.offset_bytes);
  }
  if (found.lifetime == BL_LIFETIME_BACKWARD) {
    return workspace_at(chunk, chunk->workspace.backward_offset_bytes + found.offset_bytes);
  }
  if (slot == NULL) {
    return workspace_at(chunk, chunk->workspace.layer_offset_bytes + found.offset_bytes);
  }
  return (char *)slot + found.offset_bytes;
}

// The input of a layer that is not the first.
static void *x1_of(const bl_chunk_t *chunk, uint32_t layer, void *slot) {
  return slot != NULL ? segment(chunk, layer, BL_SEGMENT_X1, slot)
                      : workspace_at(chunk, chunk->workspace.x_offset_bytes[layer % 2]);
}

bl__tensors_t bl__layer_tensors(const bl_chunk_t *chunk, uint32_t layer, void *in, void *slot, void *out) {
  bool first = layer == 0, last = layer + 1 == chunk->span.layer_count;
  return (bl__tensors_t){
      .x1 = first ? in : x1_of(chunk, layer, slot),
      .stats1 = segment(chunk, layer, BL_SEGMENT_NORM1_STATS, slot),
      .norm1 = segment(chunk, layer, BL_SEGMENT_NORM1, slot),
      .qkv = segment(chunk, layer, BL_SEGMENT_QKV, slot),
      .scores = segment(chunk, layer, BL_SEGMENT_SCORES, slot),
      .attention = segment(chunk, layer, BL_SEGMENT_ATTENTION, slot),
      .x2 = segment(chunk, layer, BL_SEGMENT_X2, slot),
      .stats2 = segment(chunk, layer, BL_SEGMENT_NORM2_STATS, slot),
      .norm2 = segment(chunk, layer, BL_SEGMENT_NORM2, slot),
      .pre = segment(chunk, layer, BL_SEGMENT_PRE, slot),
      .act = segment(chunk, layer, BL_SEGMENT_ACT, slot),
      .norm1_gradient = segment(chunk, layer, BL_SEGMENT_NORM1_GRADIENT, slot),
      .norm2_gradient = segment(chunk, layer, BL_SEGMENT_NORM2_GRADIENT, slot),
      .y = last ? out : x1_of(chunk, layer + 1, slot),
  };
}

static void forward(bl_chunk_t *chunk, const bl__layer_t *layer, bl__product_t product, const void *x,
                    const void *residual, void *y) {
  const bl__linear_t *linear = &layer->linear[product];
  chunk->ops->linear_forward(chunk->linear[product], x, linear->weight, linear->packed, linear->bias, residual, y);
}

static void backward_input(bl_chunk_t *chunk, const bl__layer_t *layer, bl__product_t product, const void *dy,
                           void *dx) {
  const bl__linear_t *linear = &layer->linear[product];
  chunk->ops->linear_backward_input(chunk->linear[product], dy, linear->weight, linear->packed, false, dx);
}

static void backward_weight(bl_chunk_t *chunk, const bl__layer_t *layer, bl__product_t product, const void *x,
                            const void *dy) {
  const bl__linear_t *linear = &layer->linear[product];
  chunk->ops->linear_backward_weight(chunk->linear[product], x, dy, true, linear->weight_gradient,
                                     linear->bias_gradient);
}

static void norm_forward(bl_chunk_t *chunk, const bl__norm_t *norm, const float *x, float *y, float *stats) {
  chunk->ops->norm_forward(chunk->compute, &chunk->norm, x, norm->gain, norm->bias, y, stats);
}

static void activation_forward(bl_chunk_t *chunk, const float *pre, float *act) {
  if (chunk->model.family == BL_FAMILY_LLAMA) {
    chunk->ops->swiglu_forward(chunk->compute, chunk->rows, chunk->model.ffn, chunk->dtype, pre, act);
  } else {
    chunk->ops->gelu_forward(chunk->compute, chunk->rows * chunk->model.ffn, chunk->dtype, pre, act);
  }
}

// dpre over pre.
static void activation_backward(bl_chunk_t *chunk, const void *dact, void *pre) {
  if (chunk->model.family == BL_FAMILY_LLAMA) {
    chunk->ops->swiglu_backward(chunk->compute, chunk->rows, chunk->model.ffn, chunk->dtype, dact, pre, pre);
  } else {
    chunk->ops->gelu_backward(chunk->compute, chunk->rows * chunk->model.ffn, chunk->dtype, dact, pre, pre);
  }
}

void bl__layer_forward(bl_chunk_t *chunk, uint32_t index, const bl__tensors_t *t) {
  const bl__layer_t *layer = &chunk->layers[index];
  norm_forward(chunk, &layer->norm1, t->x1, t->norm1, t->stats1);
  forward(chunk, layer, BL__QKV, t->norm1, NULL, t->qkv);
  if (chunk->rope != NULL) {
    chunk->ops->rope_forward(chunk->rope, t->qkv);
  }
  chunk->ops->attention_forward(chunk->attention, t->qkv, t->attention, t->scores);
  forward(chunk, layer, BL__ATTENTION_OUT, t->attention, t->x1, t->x2);
  norm_forward(chunk, &layer->norm2, t->x2, t->norm2, t->stats2);
  forward(chunk, layer, BL__FFN_IN, t->norm2, NULL, t->pre);
  activation_forward(chunk, t->pre, t->act);
  if (t->y != NULL) {
    forward(chunk, layer, BL__FFN_OUT, t->act, t->x2, t->y);
  }
}

// What F did not keep, while x1, qkv, x2 and pre still hold values.
static void remake(bl_chunk_t *chunk, const bl__layer_t *layer, const bl__tensors_t *t) {
  const bl_layout_options_t *options = &chunk->layout.options;
  if (options->lean) {
    norm_forward(chunk, &layer->norm1, t->x1, t->norm1, t->stats1);
    norm_forward(chunk, &layer->norm2, t->x2, t->norm2, t->stats2);
    activation_forward(chunk, t->pre, t->act);
  }
  if (options->recompute == BL_RECOMPUTE_ATTENTION) {
    chunk->ops->attention_forward(chunk->attention, t->qkv, t->attention, t->scores);
  }
}

// y holds dy. Afterwards: dpre in pre, dx2 in x2, dqkv in qkv, dx1 in x1, norm parts in norm*_gradient.
void bl__layer_backward_input(bl_chunk_t *chunk, uint32_t index, const bl__tensors_t *t) {
  const bl_ops_t *ops = chunk->ops;
  const bl__layer_t *layer = &chunk->layers[index];
  // [T, widest]: dact, dnorm2, dattention, dnorm1, one after the other
  void *scratch = workspace_at(chunk, chunk->workspace.scratch_offset_bytes);
  remake(chunk, layer, t);
  backward_input(chunk, layer, BL__FFN_OUT, t->y, scratch);
  activation_backward(chunk, scratch, t->pre);
  backward_input(chunk, layer, BL__FFN_IN, t->pre, scratch);
  ops->norm_backward(chunk->compute, &chunk->norm, scratch, t->x2, layer->norm2.gain, t->stats2, t->y, t->x2,
                     t->norm2_gradient);
  backward_input(chunk, layer, BL__ATTENTION_OUT, t->x2, scratch);
  ops->attention_backward(chunk->attention, scratch, t->qkv, t->attention, t->scores, t->qkv);
  if (chunk->rope != NULL) {
    ops->rope_backward(chunk->rope, t->qkv);
  }
  backward_input(chunk, layer, BL__QKV, t->qkv, scratch);
  ops->norm_backward(chunk->compute, &chunk->norm, scratch, t->x1, layer->norm1.gain, t->stats1, t->x2, t->x1,
                     t->norm1_gradient);
}

void bl__norm_add_gradient(bl_chunk_t *chunk, const bl__norm_t *norm, const float *partials) {
  const uint64_t hidden = chunk->model.hidden;
  chunk->ops->accumulate(chunk->compute, hidden, partials, norm->gain_gradient);
  if (norm->bias_gradient != NULL) {
    chunk->ops->accumulate(chunk->compute, hidden, partials + hidden, norm->bias_gradient);
  }
}

void bl__layer_backward_weight(bl_chunk_t *chunk, uint32_t index, const bl__tensors_t *t) {
  const bl__layer_t *layer = &chunk->layers[index];
  backward_weight(chunk, layer, BL__FFN_OUT, t->act, t->y);
  backward_weight(chunk, layer, BL__FFN_IN, t->norm2, t->pre);
  bl__norm_add_gradient(chunk, &layer->norm2, t->norm2_gradient);
  backward_weight(chunk, layer, BL__ATTENTION_OUT, t->attention, t->x2);
  backward_weight(chunk, layer, BL__QKV, t->norm1, t->qkv);
  bl__norm_add_gradient(chunk, &layer->norm1, t->norm1_gradient);
}
