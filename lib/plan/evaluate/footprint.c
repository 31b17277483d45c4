// SPDX-License-Identifier: Apache-2.0
#include "plan/evaluate/footprint.h"

#include <math.h>

// Bytes per token that tensor parallelism does not divide, and that it divides.
typedef struct layer_bytes {
  double whole, divided, scores; // scores: per token and key, over all heads
} layer_bytes_t;

// Values take 16 bits, and each element of a dropout mask one byte.
static layer_bytes_t parts_of(const bl_model_t *model) {
  const double h = model->hidden, qkv = bl_model_qkv_width(model), q = bl_model_query_width(model), f = model->ffn;
  if (model->family == BL_FAMILY_GPT2) {
    // Whole: inputs of both blocks (2 + 2), of both norms (2 + 2), two dropout masks. Split: qkv, input of the output
    // projection, input and output of GELU. Scores: softmax, its dropout and mask.
    return (layer_bytes_t){.whole = 10 * h, .divided = 2 * qkv + 2 * q + 4 * f, .scores = 5.0 * model->heads};
  }
  // Inputs of norms after the two projections, and of head norms, are kept in addition.
  const double norms = model->post_norm ? 4 * h : 0, heads = model->head_norm ? 2 * qkv : 0;
  return (layer_bytes_t){
      .whole = 8 * h + norms, .divided = 2 * qkv + heads + 2 * q + 6 * f, .scores = 2.0 * model->heads};
}

double bl_footprint_layer_bytes(const bl_model_t *model, bl_layout_options_t options, bl_parallel_t parallel) {
  const double rows = (double)bl_layout_rows(model, options), t = parallel.tensor;
  const double whole_over = parallel.sequence ? t : 1;
  if (options.recompute == BL_RECOMPUTE_FULL) {
    return 2 * rows * model->hidden / whole_over;
  }
  layer_bytes_t parts = parts_of(model);
  bool keeps_scores = options.attention == BL_ATTENTION_NAIVE && options.recompute == BL_RECOMPUTE_NONE;
  double scores = keeps_scores ? parts.scores * model->seq / t : 0;
  return rows * (parts.whole / whole_over + parts.divided / t + scores);
}

double bl_footprint_parameters(const bl_model_t *m, bl_chunk_span_t span) {
  const double h = m->hidden, norm = bl_model_norm_vectors(m) * h, qkv = bl_model_qkv_width(m);
  const bool biases = m->family == BL_FAMILY_GPT2;
  double layer = 2 * norm + h * (qkv + bl_model_query_width(m) + bl_model_pre_width(m) + m->ffn);
  layer += biases ? qkv + m->ffn + 2 * h : m->qkv_bias ? qkv : 0;
  layer += (m->head_norm ? 2 * m->head_dim : 0) + (m->post_norm ? 2 * norm : 0);
  double sum = layer * span.layer_count, words = m->vocab * h;
  sum += span.embedding ? words + (biases ? bl_model_positions(m) * h : 0) : 0;
  return sum + (span.head ? norm + (m->tied && span.embedding ? 0 : words) : 0);
}

// Measures one replica.
static bl_status_t measure(const bl_footprint_request_t *request, uint32_t replica, bl_footprint_t *footprint) {
  bl_stage_memory_request_t stage = request->stage;
  stage.replica = replica;
  bl_stage_memory_t memory;
  bl_status_t status = bl_stage_memory(&stage, &memory);
  uint64_t image = 0;
  if (status == BL_OK && request->image != NULL) {
    status = request->image(stage.model, stage.spans, stage.span_count, stage.options.layer_parts, stage.copies,
                            replica, &image);
  }
  if (status != BL_OK) {
    return status;
  }
  *footprint = (bl_footprint_t){
      .weights = (double)memory.weight_bytes,
      .gradients = (double)(memory.gradient_bytes + memory.tied_bytes + memory.fold_bytes + memory.reduce_bytes),
      .optimizer = (double)memory.optimizer_bytes,
      .uneven = fmax(0, (double)memory.optimizer_bytes - (double)memory.even_bytes),
      .activations = (double)memory.slot_bytes * request->slots,
      .edges = (double)memory.edge_bytes * request->edges,
      .kv_cache =
          (double)memory.page_bytes * request->pages + (double)memory.page_gradient_bytes * request->page_gradients,
      .workspace = (double)(memory.window_bytes + memory.chunk_bytes + memory.operation_bytes +
                            (stage.operations != NULL ? stage.operations->held_bytes : 0)),
      .data = (double)memory.data_bytes,
      .checkpoint = (double)image,
      .shadow = stage.optimizer_on_host ? 0 : (double)memory.shadow_bytes,
      .host = (double)(memory.host_bytes + (stage.optimizer_on_host ? memory.shadow_bytes : 0)),
      .slot_bytes = (double)memory.slot_bytes,
      .evict_bytes = (double)memory.evict_bytes};
  return BL_OK;
}

bl_status_t bl_footprint_of_executor(const bl_footprint_request_t *request, bl_footprint_t *footprint) {
  bl_footprint_t most = {0};
  for (uint32_t replica = 0; replica == 0 || replica < request->stage.copies.replicas; replica++) {
    bl_footprint_t one;
    bl_status_t status = measure(request, replica, &one);
    if (status != BL_OK) {
      return status;
    }
    most = replica == 0 || bl_footprint_total(&one) > bl_footprint_total(&most) ? one : most;
  }
  *footprint = most;
  return BL_OK;
}

bl_footprint_t bl_footprint_of_cluster(const bl_footprint_request_t *request, const bl_hardware_t *hardware,
                                       bl_parallel_t parallel) {
  const bl_stage_memory_request_t *stage = &request->stage;
  const bl_model_t *model = stage->model;
  const double rows = (double)bl_layout_rows(model, stage->options), t = parallel.tensor;
  double parameters = 0, extra = 0, most_layers = 0;
  bl_footprint_t sum = {0};
  for (uint32_t i = 0; i < stage->span_count; i++) {
    bl_chunk_span_t span = stage->spans[i];
    parameters += bl_footprint_parameters(model, span) / t;
    double layer = bl_footprint_layer_bytes(model, stage->options, parallel), block = layer * span.layer_count;
    if (span.embedding && model->family == BL_FAMILY_GPT2) {
      block += rows * model->hidden / t; // mask of the embedding's dropout
    }
    if (span.head) { // input of the final norm and of the head, logits in fp32, for one micro-batch
      extra = 4 * rows * model->hidden / t * (1 + (double)model->vocab / model->hidden);
    }
    if (stage->options.recompute == BL_RECOMPUTE_FULL) { // one layer at a time is recomputed
      bl_layout_options_t kept = stage->options;
      kept.recompute = BL_RECOMPUTE_NONE;
      sum.workspace = fmax(sum.workspace, bl_footprint_layer_bytes(model, kept, parallel));
    }
    sum.slot_bytes = fmax(sum.slot_bytes, block);
    most_layers = fmax(most_layers, span.layer_count);
  }
  double weight_bytes = hardware->value_bytes, gradient_bytes = hardware->state_bytes - weight_bytes;
  sum.weights = parameters * weight_bytes;
  sum.gradients = parameters * gradient_bytes;
  sum.optimizer = parameters * hardware->moment_bytes / (parallel.shard ? parallel.data : 1);
  sum.shadow = stage->post_validation ? sum.optimizer : 0; // the optimizer's state includes the master copy
  if (stage->optimizer_on_host) { // in fp32: master copy, two moments, and the gradients that have arrived
    const double updated = parameters / (parallel.shard ? parallel.data : 1);
    sum.host = updated * 4 * sizeof(float) + (stage->post_validation ? updated * 3 * sizeof(float) : 0);
    sum.optimizer = sum.shadow = 0;
  }
  sum.activations = sum.slot_bytes * request->slots;
  sum.evict_bytes = sum.slot_bytes;
  sum.edges = request->edges * rows * model->hidden * hardware->value_bytes / t;
  // Keys and values of a slice in every layer, and their gradients in fp32.
  const double page = 2 * rows * bl_model_kv_width(model) / t * most_layers;
  sum.kv_cache = page * (request->pages * hardware->value_bytes + request->page_gradients * (double)sizeof(float));
  sum.workspace += extra;
  return sum;
}
