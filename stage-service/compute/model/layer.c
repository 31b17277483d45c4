// SPDX-License-Identifier: Apache-2.0
// One transformer layer of either family. Shapes: T = micro_batch seq rows; x1, x2, y, norm1, norm2, post1, post2
// [T, hidden]; qkv, heads [T, qkv_width]; attention [T, query_width]; pre [T, pre_width]; act [T, ffn].
//
//   norm1 = norm(x1)   qkv = norm1 Wqkv   attention = softmax(q k) v   x2 = x1 + attention Wout
//   norm2 = norm(x2)   pre = norm2 Win    act = gelu(pre) or gate up   y = x2 + act Wffn
//
// If the model normalises the outputs of the two projections: post1 = attention Wout, x2 = x1 + norm(post1), and
// likewise for post2. If it normalises heads, attention reads heads = rotated norm(qkv), computed from qkv when needed.
// Otherwise it reads qkv itself, which the forward rotates in place.
//
// A layer in parts (model/layer_parts.h): norms use own rows, products use all rows, and Wqkv and Win give each part
// its own columns. The outputs of the parts' Wout and Wffn are summed, and so are the gradients from their Wqkv and
// Win. If a layer is one part, each of these is one product.
#include "compute/model/chunk_internal.h"

static void *workspace_at(const bl_chunk_t *chunk, uint64_t offset_bytes) {
  return (char *)chunk->arenas.workspace + offset_bytes;
}

// `slot` NULL: the forward keeps nothing.
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

// The input of a layer other than the first.
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
      .heads = segment(chunk, layer, BL_SEGMENT_HEADS, slot),
      .post1 = segment(chunk, layer, BL_SEGMENT_POST1, slot),
      .post1_stats = segment(chunk, layer, BL_SEGMENT_POST1_STATS, slot),
      .post2 = segment(chunk, layer, BL_SEGMENT_POST2, slot),
      .post2_stats = segment(chunk, layer, BL_SEGMENT_POST2_STATS, slot),
      .heads_gradient = segment(chunk, layer, BL_SEGMENT_HEADS_GRADIENT, slot),
      .post1_gradient = segment(chunk, layer, BL_SEGMENT_POST1_GRADIENT, slot),
      .post2_gradient = segment(chunk, layer, BL_SEGMENT_POST2_GRADIENT, slot),
      .norm1_gradient = segment(chunk, layer, BL_SEGMENT_NORM1_GRADIENT, slot),
      .norm2_gradient = segment(chunk, layer, BL_SEGMENT_NORM2_GRADIENT, slot),
      .y = last ? out : x1_of(chunk, layer + 1, slot),
  };
}

// The tensor of the chunk's part `index`, for a tensor in parts.
static void *of_part(const bl_chunk_t *chunk, bl_segment_kind_t kind, void *tensor, uint32_t index) {
  return (char *)tensor + index * chunk->layout.rows[kind].part_bytes;
}

static void *qkv_of(const bl_chunk_t *chunk, const bl__tensors_t *t, uint32_t part) {
  return of_part(chunk, BL_SEGMENT_QKV, t->qkv, part);
}
static void *scores_of(const bl_chunk_t *chunk, const bl__tensors_t *t, uint32_t part) {
  return of_part(chunk, BL_SEGMENT_SCORES, t->scores, part);
}
static void *attention_of(const bl_chunk_t *chunk, const bl__tensors_t *t, uint32_t part) {
  return of_part(chunk, BL_SEGMENT_ATTENTION, t->attention, part);
}
static void *pre_of(const bl_chunk_t *chunk, const bl__tensors_t *t, uint32_t part) {
  return of_part(chunk, BL_SEGMENT_PRE, t->pre, part);
}
static void *act_of(const bl_chunk_t *chunk, const bl__tensors_t *t, uint32_t part) {
  return of_part(chunk, BL_SEGMENT_ACT, t->act, part);
}

static void forward(bl_chunk_t *chunk, const bl__layer_t *layer, bl__product_t product, uint32_t part, const void *x,
                    void *y) {
  const bl__linear_t *linear = &layer->linear[product][part];
  chunk->ops->linear_forward(chunk->linear[product], x, linear->weight, linear->packed, linear->bias, NULL, y);
}

static void backward_input(bl_chunk_t *chunk, const bl__layer_t *layer, bl__product_t product, uint32_t part,
                           const void *dy, void *dx) {
  const bl__linear_t *linear = &layer->linear[product][part];
  chunk->ops->linear_backward_input(chunk->linear[product], dy, linear->weight, linear->packed, false, dx);
}

static void backward_weight(bl_chunk_t *chunk, const bl__layer_t *layer, bl__product_t product, uint32_t part,
                            const void *x, const void *dy) {
  const bl__linear_t *linear = &layer->linear[product][part];
  chunk->ops->linear_backward_weight(chunk->linear[product], x, dy, true, linear->weight_gradient);
  if (linear->bias_gradient != NULL) {
    bl__ask_sum(chunk, chunk->rows, linear->outputs, chunk->dtype, dy, linear->bias_gradient);
  }
}

// y [own rows] = x W + bias + residual of a projection into the residual stream; x is in parts.
static void project(bl_chunk_t *chunk, const bl__layer_t *layer, bl__product_t product, bl_segment_kind_t kind, void *x,
                    const void *residual, void *y) {
  const bl__linear_t *linear = layer->linear[product];
  if (!bl__chunk_is_in_parts(chunk)) {
    chunk->ops->linear_forward(chunk->linear[product], x, linear->weight, linear->packed, linear->bias, residual, y);
    return;
  }
  void *sums = bl__sum_begin(chunk, BL_EXCHANGE_BUFFER_SUM);
  for (uint32_t part = 0; part < chunk->here; part++) {
    chunk->ops->linear_forward(chunk->linear[product], of_part(chunk, kind, x, part), linear[part].weight,
                               linear[part].packed, NULL, NULL, bl__sum_of(chunk, sums, part));
  }
  bl__sum_end(chunk, BL_EXCHANGE_BUFFER_SUM, linear->bias, residual, y);
}

// dx [own rows] = dy W^T of a product whose input all parts share; dy is in parts.
static void collect(bl_chunk_t *chunk, const bl__layer_t *layer, bl__product_t product, bl_segment_kind_t kind,
                    void *dy, void *dx) {
  if (!bl__chunk_is_in_parts(chunk)) {
    backward_input(chunk, layer, product, 0, dy, dx);
    return;
  }
  void *sums = bl__sum_begin(chunk, BL_EXCHANGE_BUFFER_SUM);
  for (uint32_t part = 0; part < chunk->here; part++) {
    backward_input(chunk, layer, product, part, of_part(chunk, kind, dy, part), bl__sum_of(chunk, sums, part));
  }
  bl__sum_end(chunk, BL_EXCHANGE_BUFFER_SUM, NULL, NULL, dx);
}

static void activation_forward(bl_chunk_t *chunk, const void *pre, void *act) {
  const uint64_t width = chunk->model.ffn / chunk->parts;
  if (chunk->model.family == BL_FAMILY_LLAMA) {
    chunk->ops->gated_forward(chunk->compute, chunk->model.gate, chunk->rows, width, chunk->dtype, pre, act);
  } else {
    chunk->ops->gelu_forward(chunk->compute, chunk->rows * width, chunk->dtype, pre, act);
  }
}

// Overwrites pre with dpre.
static void activation_backward(bl_chunk_t *chunk, const void *dact, void *pre) {
  const uint64_t width = chunk->model.ffn / chunk->parts;
  if (chunk->model.family == BL_FAMILY_LLAMA) {
    chunk->ops->gated_backward(chunk->compute, chunk->model.gate, chunk->rows, width, chunk->dtype, dact, pre, pre);
  } else {
    chunk->ops->gelu_backward(chunk->compute, chunk->rows * width, chunk->dtype, dact, pre, pre);
  }
}

// The gradient of a projection's output: `post` if the model normalises that output, else the gradient of the sum.
static void *made_of(void *post, void *sum) {
  return post != NULL ? post : sum;
}

// y [own rows] = residual + the projection of x, through its norm if the model has one. y NULL: no caller needs it, and
// only what the backward reads is computed.
static void add_projection(bl_chunk_t *chunk, const bl__layer_t *layer, bl__product_t product, bl_segment_kind_t kind,
                           void *x, const bl__norm_t *norm, void *post, float *stats, const void *residual, void *y) {
  if (post == NULL) {
    if (y != NULL) {
      project(chunk, layer, product, kind, x, residual, y);
    }
    return;
  }
  void *normalised = y != NULL ? y : workspace_at(chunk, chunk->workspace.scratch_offset_bytes);
  project(chunk, layer, product, kind, x, NULL, post);
  bl__norm_forward_rows(chunk, norm, post, normalised, stats);
  if (y != NULL) {
    chunk->ops->add(chunk->compute, chunk->own_rows * chunk->model.hidden, chunk->dtype, y, residual, y);
  }
}

// Computes the rotated norms of the heads of a part from qkv.
static void *normalise_heads(bl_chunk_t *chunk, const bl__layer_t *layer, const bl__tensors_t *t, uint32_t part) {
  chunk->ops->head_norm_forward(chunk->compute, &chunk->head_norm, qkv_of(chunk, t, part), layer->query_norm.gain,
                                layer->key_norm.gain, t->heads);
  chunk->ops->rope_forward(bl__chunk_positions(chunk)->rope[layer->window], t->heads);
  return t->heads;
}

// The input of attention for a part. The forward has rotated qkv.
static void *heads_of(bl_chunk_t *chunk, const bl__layer_t *layer, const bl__tensors_t *t, uint32_t part) {
  return t->heads != NULL ? normalise_heads(chunk, layer, t, part) : qkv_of(chunk, t, part);
}

// The offset of a layer's and part's data in a page of the KV cache.
static uint64_t share_of_page(const bl_chunk_t *chunk, const bl__layer_t *layer, uint32_t part, uint64_t part_bytes) {
  return ((uint64_t)(layer - chunk->layers) * chunk->here + part) * part_bytes;
}

// The pages of the slices up to this one.
static void pages_of(const bl_chunk_t *chunk, const bl__layer_t *layer, uint32_t part, void *pages[]) {
  const uint64_t offset = share_of_page(chunk, layer, part, chunk->layout.page_part_bytes);
  for (uint32_t i = 0; i <= chunk->slice.index; i++) {
    pages[i] = (char *)chunk->slice.pages[i] + offset;
  }
}

static void gradient_pages_of(const bl_chunk_t *chunk, const bl__layer_t *layer, uint32_t part, float *pages[]) {
  const uint64_t offset = share_of_page(chunk, layer, part, chunk->layout.page_gradient_part_bytes) / sizeof(float);
  for (uint32_t i = 0; i <= chunk->slice.index; i++) {
    pages[i] = chunk->slice.gradients[i] == NULL ? NULL : chunk->slice.gradients[i] + offset;
  }
}

static void attend(bl_chunk_t *chunk, const bl__layer_t *layer, const bl__tensors_t *t, uint32_t part) {
  bl_attention_op_t *op = bl__chunk_positions(chunk)->attention[layer->window];
  void *heads = heads_of(chunk, layer, t, part), *attention = attention_of(chunk, t, part);
  if (chunk->slices == 1) {
    chunk->ops->attention_forward(op, heads, attention, scores_of(chunk, t, part));
    return;
  }
  void *pages[BL_LAYOUT_SLICES_MAX];
  pages_of(chunk, layer, part, pages);
  chunk->ops->attention_slice_forward(op, heads, pages, attention, scores_of(chunk, t, part));
}

// Overwrites heads with dheads.
static void attend_backward(bl_chunk_t *chunk, const bl__layer_t *layer, const bl__tensors_t *t, uint32_t part,
                            const void *dattention, void *heads) {
  bl_attention_op_t *op = bl__chunk_positions(chunk)->attention[layer->window];
  const void *attention = attention_of(chunk, t, part), *scores = scores_of(chunk, t, part);
  if (chunk->slices == 1) {
    chunk->ops->attention_backward(op, dattention, heads, attention, scores, heads);
    return;
  }
  void *pages[BL_LAYOUT_SLICES_MAX];
  float *gradients[BL_LAYOUT_SLICES_MAX];
  pages_of(chunk, layer, part, pages);
  gradient_pages_of(chunk, layer, part, gradients);
  chunk->ops->attention_slice_backward(op, dattention, heads, pages, gradients, attention, scores, heads);
}

void bl__layer_forward(bl_chunk_t *chunk, uint32_t index, const bl__tensors_t *t) {
  const bl__layer_t *layer = &chunk->layers[index];
  bl_rope_op_t *rope = bl__chunk_positions(chunk)->rope[layer->window];
  bl__norm_forward_rows(chunk, &layer->norm1, t->x1, t->norm1, t->stats1);
  const void *norm1 = bl__all_rows(chunk, t->norm1);
  for (uint32_t part = 0; part < chunk->here; part++) {
    forward(chunk, layer, BL__QKV, part, norm1, qkv_of(chunk, t, part));
    if (rope != NULL && t->heads == NULL) {
      chunk->ops->rope_forward(rope, qkv_of(chunk, t, part));
    }
    attend(chunk, layer, t, part);
  }
  add_projection(chunk, layer, BL__ATTENTION_OUT, BL_SEGMENT_ATTENTION, t->attention, &layer->post1, t->post1,
                 t->post1_stats, t->x1, t->x2);
  bl__norm_forward_rows(chunk, &layer->norm2, t->x2, t->norm2, t->stats2);
  const void *norm2 = bl__all_rows(chunk, t->norm2);
  for (uint32_t part = 0; part < chunk->here; part++) {
    forward(chunk, layer, BL__FFN_IN, part, norm2, pre_of(chunk, t, part));
    activation_forward(chunk, pre_of(chunk, t, part), act_of(chunk, t, part));
  }
  add_projection(chunk, layer, BL__FFN_OUT, BL_SEGMENT_ACT, t->act, &layer->post2, t->post2, t->post2_stats, t->x2,
                 t->y);
}

// Recomputes what F did not keep, while x1, qkv, x2 and pre still hold values.
static void remake(bl_chunk_t *chunk, const bl__layer_t *layer, const bl__tensors_t *t) {
  const bl_layout_options_t *options = &chunk->layout.options;
  if (options->lean) {
    bl__norm_forward_rows(chunk, &layer->norm1, t->x1, t->norm1, t->stats1);
    bl__norm_forward_rows(chunk, &layer->norm2, t->x2, t->norm2, t->stats2);
  }
  for (uint32_t part = 0; part < chunk->here; part++) {
    if (options->lean) {
      activation_forward(chunk, pre_of(chunk, t, part), act_of(chunk, t, part));
    }
    if (options->recompute == BL_RECOMPUTE_ATTENTION) {
      attend(chunk, layer, t, part);
    }
  }
}

// The backward of the norm of a projection's output. Afterwards post holds its gradient. sum: the gradient of the sum
// that the output was added to.
static void unnormalise(bl_chunk_t *chunk, const bl__norm_t *norm, void *sum, void *post, const float *stats,
                        float *partials) {
  if (post != NULL) {
    bl__norm_backward_rows(chunk, norm, sum, post, stats, NULL, post, partials);
  }
}

// Overwrites a part's qkv with dqkv, computed from the gradient of attention.
static void attention_backward(bl_chunk_t *chunk, const bl__layer_t *layer, const bl__tensors_t *t, uint32_t part,
                               const void *dattention) {
  const bl_ops_t *ops = chunk->ops;
  void *qkv = qkv_of(chunk, t, part), *heads = heads_of(chunk, layer, t, part);
  bl_rope_op_t *rope = bl__chunk_positions(chunk)->rope[layer->window];
  attend_backward(chunk, layer, t, part, dattention, heads);
  if (rope != NULL) {
    ops->rope_backward(rope, heads);
  }
  if (t->heads != NULL) {
    ops->head_norm_backward(chunk->compute, &chunk->head_norm, heads, qkv, layer->query_norm.gain, layer->key_norm.gain,
                            qkv, of_part(chunk, BL_SEGMENT_HEADS_GRADIENT, t->heads_gradient, part));
  }
}

// y holds dy. Afterwards pre holds dpre, x2 dx2, qkv dqkv, x1 dx1, and norm*_gradient the norms' partial gradients. If
// the model normalises the outputs of projections, post1 and post2 hold the gradients of those.
void bl__layer_backward_input(bl_chunk_t *chunk, uint32_t index, const bl__tensors_t *t) {
  const bl__layer_t *layer = &chunk->layers[index];
  // [T, widest]: dact, dnorm2, dattention, dnorm1, one after the other
  void *scratch = workspace_at(chunk, chunk->workspace.scratch_offset_bytes);
  remake(chunk, layer, t);
  unnormalise(chunk, &layer->post2, t->y, t->post2, t->post2_stats, t->post2_gradient);
  const void *dmade = bl__all_rows(chunk, made_of(t->post2, t->y));
  for (uint32_t part = 0; part < chunk->here; part++) {
    backward_input(chunk, layer, BL__FFN_OUT, part, dmade, scratch);
    activation_backward(chunk, scratch, pre_of(chunk, t, part));
  }
  collect(chunk, layer, BL__FFN_IN, BL_SEGMENT_PRE, t->pre, scratch);
  bl__norm_backward_rows(chunk, &layer->norm2, scratch, t->x2, t->stats2, t->y, t->x2, t->norm2_gradient);
  unnormalise(chunk, &layer->post1, t->x2, t->post1, t->post1_stats, t->post1_gradient);
  dmade = bl__all_rows(chunk, made_of(t->post1, t->x2));
  for (uint32_t part = 0; part < chunk->here; part++) {
    backward_input(chunk, layer, BL__ATTENTION_OUT, part, dmade, scratch);
    attention_backward(chunk, layer, t, part, scratch);
  }
  collect(chunk, layer, BL__QKV, BL_SEGMENT_QKV, t->qkv, scratch);
  bl__norm_backward_rows(chunk, &layer->norm1, scratch, t->x1, t->stats1, t->x2, t->x1, t->norm1_gradient);
}

void bl__layer_backward_weight(bl_chunk_t *chunk, uint32_t index, const bl__tensors_t *t) {
  const bl__layer_t *layer = &chunk->layers[index];
  const void *rows = bl__all_rows(chunk, made_of(t->post2, t->y));
  for (uint32_t part = 0; part < chunk->here; part++) {
    backward_weight(chunk, layer, BL__FFN_OUT, part, act_of(chunk, t, part), rows);
  }
  rows = bl__all_rows(chunk, t->norm2);
  for (uint32_t part = 0; part < chunk->here; part++) {
    backward_weight(chunk, layer, BL__FFN_IN, part, rows, pre_of(chunk, t, part));
  }
  bl__norm_add_gradient(chunk, &layer->norm2, t->norm2_gradient);
  rows = bl__all_rows(chunk, made_of(t->post1, t->x2));
  for (uint32_t part = 0; part < chunk->here; part++) {
    backward_weight(chunk, layer, BL__ATTENTION_OUT, part, attention_of(chunk, t, part), rows);
  }
  rows = bl__all_rows(chunk, t->norm1);
  for (uint32_t part = 0; part < chunk->here; part++) {
    backward_weight(chunk, layer, BL__QKV, part, rows, qkv_of(chunk, t, part));
  }
  bl__norm_add_gradient(chunk, &layer->norm1, t->norm1_gradient);
  if (t->post1 != NULL) {
    bl__norm_add_gradient(chunk, &layer->post1, t->post1_gradient);
    bl__norm_add_gradient(chunk, &layer->post2, t->post2_gradient);
  }
  for (uint32_t part = 0; part < chunk->here && t->heads != NULL; part++) {
    bl__head_norm_add_gradient(chunk, layer, part, of_part(chunk, BL_SEGMENT_HEADS_GRADIENT, t->heads_gradient, part));
  }
  bl__make_sums(chunk);
}
