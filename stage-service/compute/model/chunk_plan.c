// SPDX-License-Identifier: Apache-2.0
#include "compute/model/chunk_internal.h"

#include "base/bytes.h"

// Logits are made in pieces of about this many scalars, so that they are never stored whole (EXECUTION.md 6): large
// enough that the head's weight gradient, which each piece reads and writes, does not dominate.
#define HEAD_LOGITS_ELEMENTS ((uint64_t)1 << 24)
#define HEAD_ROWS_MULTIPLE   64

static uint64_t max_u64(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}

static uint64_t aligned_bytes(uint64_t elements, uint64_t element_bytes) {
  return bl_align_up(elements * element_bytes, BL_CACHE_LINE_BYTES);
}

static bl_status_t plan_linears(bl_chunk_t *chunk, bl_error_t *err) {
  const bl_model_t *model = &chunk->model;
  const struct {
    uint64_t in, out;
    bool residual;
  } products[BL__PRODUCTS] = {
      [BL__QKV] = {model->hidden, bl_model_qkv_width(model), false},
      [BL__ATTENTION_OUT] = {bl_model_query_width(model), model->hidden, true},
      [BL__FFN_IN] = {model->hidden, bl_model_pre_width(model), false},
      [BL__FFN_OUT] = {model->ffn, model->hidden, true},
  };
  for (int i = 0; i < BL__PRODUCTS; i++) {
    bl_linear_shape_t shape = {.rows = chunk->rows,
                               .in = products[i].in,
                               .out = products[i].out,
                               .order = model->family == BL_FAMILY_GPT2 ? BL_WEIGHT_IN_OUT : BL_WEIGHT_OUT_IN,
                               .uses = BL_LINEAR_FORWARD | BL_LINEAR_INPUT | BL_LINEAR_WEIGHT,
                               .bias = model->family == BL_FAMILY_GPT2,
                               .residual = products[i].residual,
                               .prepack = chunk->prepack};
    bl_status_t status = chunk->ops->linear_plan(chunk->compute, &shape, &chunk->linear[i], err);
    if (status != BL_OK) {
      return status;
    }
    chunk->packed_offset_bytes[i] = chunk->packed_layer_bytes;
    chunk->packed_layer_bytes += bl_align_up(chunk->ops->linear_packed_bytes(chunk->linear[i]), BL_CACHE_LINE_BYTES);
  }
  chunk->sizes.packed_bytes = chunk->span.layer_count * chunk->packed_layer_bytes;
  return BL_OK;
}

static bl_status_t plan_head_rows(bl_chunk_t *chunk, uint64_t rows, unsigned uses, bl_linear_op_t **op,
                                  bl_error_t *err) {
  // Never packed: pieces of different row counts read the same weight.
  bl_linear_shape_t shape = {
      .rows = rows, .in = chunk->model.hidden, .out = chunk->model.vocab, .order = BL_WEIGHT_OUT_IN, .uses = uses};
  return chunk->ops->linear_plan(chunk->compute, &shape, op, err);
}

static bl_status_t plan_head(bl_chunk_t *chunk, bl_error_t *err) {
  const unsigned all = BL_LINEAR_FORWARD | BL_LINEAR_INPUT | BL_LINEAR_WEIGHT;
  uint64_t rows = HEAD_LOGITS_ELEMENTS / chunk->model.vocab / HEAD_ROWS_MULTIPLE * HEAD_ROWS_MULTIPLE;
  rows = max_u64(rows, HEAD_ROWS_MULTIPLE);
  chunk->head_rows = rows < chunk->rows ? rows : chunk->rows;
  bl_status_t status = plan_head_rows(chunk, chunk->head_rows, all, &chunk->head, err);
  if (status == BL_OK && chunk->rows % chunk->head_rows != 0) {
    status = plan_head_rows(chunk, chunk->rows % chunk->head_rows, all, &chunk->head_rest, err);
  }
  if (status == BL_OK) {
    status = plan_head_rows(chunk, 1, BL_LINEAR_FORWARD, &chunk->head_row, err);
  }
  return status;
}

static bl_status_t plan_attention(bl_chunk_t *chunk, bl_error_t *err) {
  const bl_model_t *model = &chunk->model;
  const bl_layout_options_t *options = &chunk->layout.options;
  bl_attention_shape_t attention = {.batch = options->micro_batch,
                                    .seq = model->seq,
                                    .heads = model->heads,
                                    .kv_heads = model->kv_heads,
                                    .head_dim = model->head_dim,
                                    .flash = options->attention == BL_ATTENTION_FLASH};
  bl_status_t status = chunk->ops->attention_plan(chunk->compute, &attention, &chunk->attention, err);
  if (status != BL_OK || model->family == BL_FAMILY_GPT2) {
    return status;
  }
  bl_rope_shape_t rope = {.batch = options->micro_batch,
                          .seq = model->seq,
                          .heads = model->heads,
                          .kv_heads = model->kv_heads,
                          .head_dim = model->head_dim,
                          .theta = model->rope_theta};
  return chunk->ops->rope_plan(chunk->compute, &rope, &chunk->rope, err);
}

// Layers: one tensor that holds, one after the other, the gradients that no saved tensor makes room for (dact, dnorm,
// dattention), then the segments that live inside one operation. The head runs before the layers of its chunk and uses
// the same bytes: normalised hidden state, statistics, losses, logits.
static void size_workspace(bl_chunk_t *chunk) {
  const bl_model_t *model = &chunk->model;
  uint64_t widest = max_u64(model->ffn, max_u64(model->hidden, bl_model_query_width(model)));
  chunk->shared_offset_bytes = aligned_bytes(chunk->rows * widest, sizeof(float));
  uint64_t layers = chunk->shared_offset_bytes + chunk->layout.shared_bytes;
  uint64_t head = 0;
  if (chunk->span.head) {
    head = aligned_bytes(chunk->rows * model->hidden, sizeof(float));
    chunk->head_stats_offset_bytes = head;
    head += aligned_bytes(chunk->rows * bl_model_norm_vectors(model), sizeof(float));
    chunk->head_losses_offset_bytes = head;
    head += aligned_bytes(chunk->rows, sizeof(double));
    chunk->head_logits_offset_bytes = head;
    head += aligned_bytes(chunk->head_rows * model->vocab, sizeof(float));
  }
  chunk->sizes.workspace_bytes = max_u64(layers, head);
}

static void size_parameters(bl_chunk_t *chunk) {
  const uint64_t elements = bl_chunk_span_places(&chunk->model, chunk->span, chunk->places);
  chunk->sizes.weight_bytes = elements * sizeof(float);
  chunk->sizes.moment_bytes = elements * sizeof(float);
  chunk->sizes.gradient_bytes = elements * sizeof(float);
  if (bl_chunk_span_two_gradients(&chunk->model, chunk->span)) {
    chunk->sizes.gradient_bytes += aligned_bytes((uint64_t)chunk->model.vocab * chunk->model.hidden, sizeof(float));
  }
}

bl_status_t bl__chunk_plan(bl_chunk_t *chunk, bl_error_t *err) {
  chunk->norm = (bl_norm_shape_t){.rows = chunk->rows,
                                  .width = chunk->model.hidden,
                                  .rms = chunk->model.family == BL_FAMILY_LLAMA,
                                  .epsilon = (float)chunk->model.norm_epsilon};
  bl_status_t status = plan_linears(chunk, err);
  if (status == BL_OK) {
    status = plan_attention(chunk, err);
  }
  if (status == BL_OK && chunk->span.head) {
    status = plan_head(chunk, err);
  }
  if (status != BL_OK) {
    return status;
  }
  size_parameters(chunk);
  size_workspace(chunk);
  chunk->sizes.slot_bytes = chunk->layout.slot_bytes;
  chunk->sizes.evict_bytes = chunk->layout.evict_bytes;
  chunk->sizes.edge_bytes = chunk->layout.edge_bytes;
  return BL_OK;
}
