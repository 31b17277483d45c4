// SPDX-License-Identifier: Apache-2.0
#include "compute/model/chunk_internal.h"

#include "base/bytes.h"
#include "model/memory.h"
#include "model/resident.h"
#include "model/shard.h"

#include <inttypes.h>
#include <stdlib.h>

static bl_status_t plan_linears(bl_chunk_t *chunk, bl_error_t *err) {
  const bl_model_t part = bl_layer_part_model(&chunk->model, chunk->parts), *model = &part;
  const bool whole = !bl__chunk_is_in_parts(chunk);
  const struct {
    uint64_t in, out;
    bool residual; // adds the residual; for layers in parts that is done, with the bias, when the parts are summed
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
                               .bias = model->family == BL_FAMILY_GPT2 ? whole || !products[i].residual
                                                                       : i == BL__QKV && model->qkv_bias,
                               .residual = whole && products[i].residual && !model->post_norm,
                               .prepack = chunk->prepack,
                               .dtype = chunk->dtype};
    bl_status_t status = chunk->ops->linear_plan(chunk->compute, &shape, &chunk->linear[i], err);
    if (status != BL_OK) {
      return status;
    }
    chunk->in[i] = shape.in;
    chunk->out[i] = shape.out;
    chunk->packed_offset_bytes[i] = chunk->packed_layer_bytes;
    chunk->packed_layer_bytes +=
        chunk->here * bl_align_up(chunk->ops->linear_packed_bytes(chunk->linear[i]), BL_CACHE_LINE_BYTES);
  }
  chunk->sizes.packed_layer_bytes = chunk->packed_layer_bytes;
  chunk->sizes.packed_bytes = chunk->span.layer_count * chunk->packed_layer_bytes;
  return BL_OK;
}

static bl_status_t plan_head_rows(bl_chunk_t *chunk, const bl__head_t *head, uint64_t rows, unsigned uses, bool prepack,
                                  bl_linear_op_t **op, bl_error_t *err) {
  bl_linear_shape_t shape = {.rows = rows,
                             .in = chunk->model.hidden,
                             .out = head->tokens.count,
                             .order = BL_WEIGHT_OUT_IN,
                             .uses = uses,
                             .prepack = prepack,
                             .float_y = true,
                             .y_stride = chunk->workspace.logits_stride,
                             .dtype = chunk->dtype};
  return chunk->ops->linear_plan(chunk->compute, &shape, op, err);
}

static uint64_t packed_bytes(const bl_chunk_t *chunk, const bl_linear_op_t *op) {
  return bl_align_up(chunk->ops->linear_packed_bytes(op), BL_CACHE_LINE_BYTES);
}

// Plans the head of one part of the vocabulary. Its packed copies follow those of the parts before it.
static bl_status_t plan_head(bl_chunk_t *chunk, bl__head_t *head, uint32_t part, bl_error_t *err) {
  const unsigned all = BL_LINEAR_FORWARD | BL_LINEAR_INPUT | BL_LINEAR_WEIGHT;
  const uint64_t piece = chunk->workspace.head_rows, rest = chunk->rows % piece;
  head->tokens = bl_layer_part_rows(chunk->model.vocab, chunk->parts, part);
  bl_status_t status = plan_head_rows(chunk, head, piece, all, chunk->prepack, &head->whole, err);
  if (status == BL_OK && rest != 0) {
    status = plan_head_rows(chunk, head, rest, all, false, &head->rest, err); // a packed copy fits one row count
  }
  if (status == BL_OK) {
    status = plan_head_rows(chunk, head, 1, BL_LINEAR_FORWARD, false, &head->row, err);
  }
  if (status == BL_OK) {
    const bool one_copy = chunk->ops->adamw_packs; // one copy serves every row count
    head->packed_offset_bytes = chunk->sizes.packed_bytes;
    chunk->sizes.packed_bytes += packed_bytes(chunk, head->whole);
    head->plain_offset_bytes = one_copy ? head->packed_offset_bytes : chunk->sizes.packed_bytes;
    chunk->sizes.packed_bytes += one_copy ? 0 : packed_bytes(chunk, head->row);
  }
  return status;
}

static bl_status_t plan_heads(bl_chunk_t *chunk, bl_error_t *err) {
  const uint64_t layers = chunk->sizes.packed_bytes;
  bl_status_t status = BL_OK;
  for (uint32_t i = 0; i < chunk->here && status == BL_OK; i++) {
    status = plan_head(chunk, &chunk->head[i], bl_layer_parts_first(chunk->layout.options.layer_parts) + i, err);
  }
  chunk->sizes.packed_head_bytes = chunk->sizes.packed_bytes - layers;
  return status;
}

static void plan_embedding(bl_chunk_t *chunk) {
  const bl_model_t *model = &chunk->model;
  for (uint32_t i = 0; i < chunk->here; i++) {
    const uint32_t part = bl_layer_parts_first(chunk->layout.options.layer_parts) + i;
    const bl_layer_part_rows_t tokens = bl_layer_part_rows(model->vocab, chunk->parts, part);
    const bl_layer_part_rows_t positions = bl_layer_part_rows(bl_model_positions(model), chunk->parts, part);
    chunk->embedding[i].part =
        (bl_embedding_part_t){.batch = chunk->layout.options.micro_batch,
                              .seq = model->seq / chunk->slices,
                              .width = model->hidden,
                              .first_token = tokens.first,
                              .tokens = tokens.count,
                              .first_position = positions.first,
                              .positions = positions.count,
                              .scale = model->embedding_scale != 0 ? (float)model->embedding_scale : 1,
                              .dtype = chunk->dtype};
  }
}

// Plans attention of the layers with a window, or of the other layers.
static bl_status_t plan_attention_of(bl_chunk_t *chunk, uint32_t slice, bool window, bl_error_t *err) {
  const bl_model_t part = bl_layer_part_model(&chunk->model, chunk->parts), *model = &part;
  const bl_layout_options_t *options = &chunk->layout.options;
  bl__positions_t *positions = &chunk->positions[slice];
  const uint64_t count = chunk->slices > 1 ? model->seq / chunk->slices : 0, first = slice * count;
  bl_attention_shape_t attention = {.batch = options->micro_batch,
                                    .seq = model->seq,
                                    .heads = model->heads,
                                    .kv_heads = model->kv_heads,
                                    .head_dim = model->head_dim,
                                    .flash = options->attention == BL_ATTENTION_FLASH,
                                    .window = window && model->window < model->seq ? model->window : 0,
                                    .scale = (float)model->score_scale,
                                    .softcap = (float)model->score_softcap,
                                    .first = first,
                                    .count = count,
                                    .dtype = chunk->dtype};
  bl_status_t status = chunk->ops->attention_plan(chunk->compute, &attention, &positions->attention[window], err);
  if (status != BL_OK || model->family == BL_FAMILY_GPT2) {
    return status;
  }
  bl_rope_shape_t rope = {.batch = options->micro_batch,
                          .seq = model->seq,
                          .heads = model->heads,
                          .kv_heads = model->kv_heads,
                          .head_dim = model->head_dim,
                          .first = first,
                          .count = count,
                          .rope = *bl_model_rope(model, window),
                          .dtype = chunk->dtype};
  return chunk->ops->rope_plan(chunk->compute, &rope, &positions->rope[window], err);
}

static bl_status_t plan_attention(bl_chunk_t *chunk, bl_error_t *err) {
  bl_status_t status = BL_OK;
  for (uint32_t layer = 0; layer < chunk->span.layer_count && status == BL_OK; layer++) {
    const bool window = bl_model_has_window(&chunk->model, chunk->span.first_layer + layer);
    const bool planned = chunk->positions[0].attention[window] != NULL;
    for (uint32_t slice = 0; slice < chunk->slices && !planned && status == BL_OK; slice++) {
      status = plan_attention_of(chunk, slice, window, err);
    }
  }
  return status;
}

static void size_arenas(bl_chunk_t *chunk, const bl_chunk_memory_t *memory) {
  chunk->sizes.weight_bytes = memory->weight_bytes;
  chunk->sizes.gradient_bytes = memory->gradient_bytes;
  chunk->sizes.workspace_bytes = memory->workspace_bytes;
  chunk->sizes.slot_bytes = memory->slot_bytes;
  chunk->sizes.evict_bytes = memory->evict_bytes;
  chunk->sizes.edge_bytes = memory->edge_bytes;
  chunk->sizes.page_bytes = memory->page_bytes;
  chunk->sizes.page_gradient_bytes = memory->page_gradient_bytes;
}

bl_status_t bl__chunk_plan(bl_chunk_t *chunk, bl_error_t *err) {
  bl_chunk_memory_t memory;
  if (bl_layout_init(&chunk->layout, &chunk->model, chunk->span, chunk->layout.options) != BL_OK ||
      bl_chunk_memory(&chunk->model, chunk->span, chunk->layout.options, &memory) != BL_OK) {
    return bl_error_set(err, BL_INVALID,
                        "train.micro_batch: %u of sequences of %u tokens make no valid activation block",
                        chunk->layout.options.micro_batch, chunk->model.seq);
  }
  if (chunk->ops->norm_width_max > 0 && chunk->model.hidden > chunk->ops->norm_width_max) {
    return bl_error_set(err, BL_UNIMPLEMENTED,
                        "model.hidden: rows of %u elements; the norms of back end '%s' take up to %" PRIu64,
                        chunk->model.hidden, chunk->ops->name, chunk->ops->norm_width_max);
  }
  size_arenas(chunk, &memory);
  chunk->workspace = bl_workspace_plan(&chunk->layout);
  chunk->sizes.moment_bytes =
      bl_shard_moments(&chunk->ownership, chunk->places, chunk->parameter_count, chunk->copy, chunk->moments) *
      sizeof(float);
  const uint32_t squares = bl_shard_squares(&chunk->ownership, chunk->places, chunk->parameter_count, chunk->copy);
  chunk->squares = calloc(squares + 1u, sizeof *chunk->squares);
  if (chunk->squares == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for a chunk of %u layers", chunk->span.layer_count);
  }
  const bool all = chunk->host == NULL && !chunk->sharded;
  const bl_dtype_t dtype = all ? BL_DTYPE_FP32 : chunk->layout.options.dtype; // fp32: all weights stay
  chunk->sizes.resident_bytes =
      bl_resident_weights(&chunk->model, chunk->span, dtype, chunk->places, chunk->parameter_count, chunk->resident) *
      sizeof(float);
  chunk->sizes.master_bytes = chunk->host != NULL ? chunk->sizes.weight_bytes : 0;
  if (chunk->sharded) {
    chunk->sizes.master_bytes = bl_shard_masters(&chunk->ownership, chunk->places, chunk->parameter_count, chunk->copy,
                                                 chunk->resident, chunk->masters) *
                                sizeof(float);
  }
  chunk->sizes.fold_bytes = chunk->fold_levels * chunk->sizes.gradient_bytes;
  chunk->norm = (bl_norm_shape_t){.rows = chunk->rows / chunk->parts,
                                  .width = chunk->model.hidden,
                                  .rms = chunk->model.family == BL_FAMILY_LLAMA,
                                  .epsilon = (float)chunk->model.norm_epsilon,
                                  .gain_offset = chunk->model.gains_from_one ? 1 : 0,
                                  .dtype = chunk->dtype};
  chunk->head_norm = (bl_head_norm_shape_t){.rows = chunk->rows,
                                            .heads = chunk->model.heads / chunk->parts,
                                            .kv_heads = chunk->model.kv_heads / chunk->parts,
                                            .head_dim = chunk->model.head_dim,
                                            .epsilon = chunk->norm.epsilon,
                                            .gain_offset = chunk->norm.gain_offset,
                                            .dtype = chunk->dtype};
  bl_status_t status = plan_linears(chunk, err);
  if (status == BL_OK) {
    status = plan_attention(chunk, err);
  }
  if (chunk->span.embedding) {
    plan_embedding(chunk);
  }
  return status == BL_OK && chunk->span.head ? plan_heads(chunk, err) : status;
}
