// SPDX-License-Identifier: Apache-2.0
#include "compute/model/chunk.h"

#include "compute/model/chunk_internal.h"
#include "model/resident.h"

#include <assert.h>
#include <stdlib.h>

static uint32_t copies_of(const bl_chunk_options_t *options) {
  return options->ownership == NULL ? 1 : bl_copies_count(options->ownership->copies);
}

static bl_status_t check_options(const bl_chunk_options_t *options, bl_error_t *err) {
  const bl_chunk_span_t span = options->span;
  bl_status_t status = bl_model_check(options->model, err);
  if (status != BL_OK) {
    return status;
  }
  if (span.layer_count < 1 || span.first_layer > options->model->layers ||
      span.layer_count > options->model->layers - span.first_layer) {
    return bl_error_set(err, BL_INVALID, "a chunk of %u layers from layer %u does not fit a model of %u layers",
                        span.layer_count, span.first_layer, options->model->layers);
  }
  const uint32_t parts = bl_layer_parts_count(options->layout.layer_parts);
  if (parts > 1 && options->ops->sum_parts == NULL) {
    return bl_error_set(err, BL_UNIMPLEMENTED, "layers in %u parts: back end '%s' computes whole layers only", parts,
                        options->ops->name);
  }
  const uint32_t slices = bl_layout_slices(options->layout);
  if (slices > 1 && options->ops->attention_slice_forward == NULL) {
    return bl_error_set(err, BL_UNIMPLEMENTED, "sequences in %u slices: back end '%s' computes whole sequences only",
                        slices, options->ops->name);
  }
  if (options->model->seq % slices != 0) {
    return bl_error_set(err, BL_INVALID, "%u slices do not divide sequences of %u tokens", slices, options->model->seq);
  }
  if (options->host != NULL && (copies_of(options) > 1 || options->fold_levels > 0)) {
    return bl_error_set(err, BL_UNIMPLEMENTED,
                        "train.optimizer_memory: host: not with copies of the model in this version");
  }
  if (options->micro_batches < 1) {
    return bl_error_set(err, BL_INVALID, "train.micro_batches: must be at least 1, is 0");
  }
  return BL_OK;
}

bl_status_t bl_chunk_create(const bl_chunk_options_t *options, bl_chunk_t **chunk, bl_error_t *err) {
  bl_status_t status = check_options(options, err);
  if (status != BL_OK) {
    return status;
  }
  bl_chunk_t *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for a chunk");
  }
  made->ops = options->ops;
  made->compute = options->compute;
  made->device = options->device == NULL ? bl_device_host() : options->device;
  made->model = *options->model;
  made->span = options->span;
  made->prepack = options->prepack;
  made->dtype = options->layout.dtype == BL_DTYPE_BF16 ? BL_COMPUTE_BF16 : BL_COMPUTE_FP32;
  made->layout.options = options->layout;
  made->layout.options.logits = options->ops->logits;
  made->parts = bl_layer_parts_count(options->layout.layer_parts);
  made->here = bl_layer_parts_here(options->layout.layer_parts);
  made->ranks = bl_layer_parts_ranks(options->layout.layer_parts);
  made->rank = options->layout.layer_parts.rank;
  made->slices = bl_layout_slices(options->layout);
  made->rows = bl_layout_rows(options->model, options->layout);
  made->own_rows = made->rows / made->ranks;
  made->alone = (bl_group_t){.parts = made->parts, .ranks = 1};
  made->group = options->group != NULL ? options->group : &made->alone;
  made->loss_rows = (double)made->rows * made->slices;
  made->loss_scale = (float)(1.0 / ((double)options->micro_batches * made->loss_rows));
  made->parameter_count = bl_chunk_span_place_count(options->model, options->span, options->layout.layer_parts);
  made->places = calloc(made->parameter_count, sizeof *made->places);
  made->layers = calloc(options->span.layer_count, sizeof *made->layers);
  made->copies = calloc(made->parameter_count, sizeof *made->copies);
  made->updates = calloc(made->parameter_count, sizeof *made->updates);
  made->moments = calloc(made->parameter_count, sizeof *made->moments);
  made->masters = calloc(made->parameter_count, sizeof *made->masters);
  made->linears = calloc((size_t)options->span.layer_count * BL__PRODUCTS * made->here, sizeof *made->linears);
  made->embedding = options->span.embedding ? calloc(made->here, sizeof *made->embedding) : NULL;
  made->head = options->span.head ? calloc(made->here, sizeof *made->head) : NULL;
  made->resident = calloc(made->parameter_count, sizeof *made->resident);
  made->positions = calloc(made->slices, sizeof *made->positions);
  const bool moves = options->span.head && made->parts == 1 && made->device == bl_device_host();
  made->moved_labels = moves ? calloc(made->rows, sizeof *made->moved_labels) : NULL;
  made->host = options->host;
  made->copy = options->copy;
  made->fold_levels = options->fold_levels;
  if (made->places == NULL || made->layers == NULL || made->copies == NULL || made->updates == NULL ||
      made->moments == NULL || made->masters == NULL || made->resident == NULL || made->positions == NULL ||
      made->linears == NULL || (options->span.embedding && made->embedding == NULL) ||
      (options->span.head && made->head == NULL) || (moves && made->moved_labels == NULL)) {
    status = bl_error_set(err, BL_EXHAUSTED, "no memory for a chunk of %u layers", options->span.layer_count);
    goto destroy;
  }
  bl_chunk_span_places(&made->model, made->span, options->layout.layer_parts, made->places);
  if (options->ownership != NULL) {
    bl_shard_cut(options->ownership, made->places, made->parameter_count);
    made->ownership = *options->ownership;
  }
  made->sharded = bl_resident_shares_masters(options->layout.dtype, made->ownership.copies, options->host != NULL);
  status = bl__chunk_host_create(made, err);
  if (status == BL_OK) {
    status = bl__chunk_plan(made, err);
  }
  if (status != BL_OK) {
    goto destroy;
  }
  *chunk = made;
  return BL_OK;
destroy:
  bl_chunk_destroy(made);
  return status;
}

void bl_chunk_destroy(bl_chunk_t *chunk) {
  if (chunk != NULL) {
    bl__chunk_host_destroy(chunk);
    free(chunk->resident);
    free(chunk->positions);
    free(chunk->places);
    free(chunk->layers);
    free(chunk->copies);
    free(chunk->squares);
    free(chunk->updates);
    free(chunk->moments);
    free(chunk->masters);
    free(chunk->linears);
    free(chunk->embedding);
    free(chunk->head);
    free(chunk->moved_labels);
    free(chunk);
  }
}

bl_chunk_sizes_t bl_chunk_sizes(const bl_chunk_t *chunk) {
  return chunk->sizes;
}

const bl_layout_t *bl_chunk_layout(const bl_chunk_t *chunk) {
  return &chunk->layout;
}

void bl_chunk_use_arenas(bl_chunk_t *chunk, const bl_chunk_arenas_t *arenas) {
  chunk->arenas = *arenas;
  bl__chunk_bind(chunk);
}

const bl_chunk_arenas_t *bl_chunk_arenas(const bl_chunk_t *chunk) {
  return &chunk->arenas;
}

void bl_chunk_use_slice(bl_chunk_t *chunk, const bl_chunk_slice_t *slice) {
  chunk->slice = *slice;
}

// The rows of a position table [., hidden] from the slice's first position on; NULL without a table.
static float *positions_from(const bl_chunk_t *chunk, const float *table) {
  const uint64_t start = (uint64_t)chunk->slice.index * (chunk->model.seq / chunk->slices);
  return table == NULL ? NULL : (float *)(uintptr_t)table + start * chunk->model.hidden;
}

static bl_embedding_part_t part_of(const bl_chunk_t *chunk, const bl__embedding_t *table) {
  bl_embedding_part_t part = table->part;
  part.start = (uint64_t)chunk->slice.index * part.seq;
  return part;
}

static void embed(bl_chunk_t *chunk, const int32_t *tokens, void *in) {
  const bl_ops_t *ops = chunk->ops;
  const bl__embedding_t *table = chunk->embedding;
  if (!bl__chunk_is_in_parts(chunk)) {
    ops->embedding_forward(chunk->compute, table->part.batch, table->part.seq, table->part.width, table->part.scale,
                           chunk->dtype, tokens, table->tokens, positions_from(chunk, table->positions), in);
    return;
  }
  void *sums = bl__sum_begin(chunk, BL_EXCHANGE_BUFFER_SUM);
  for (uint32_t i = 0; i < chunk->here; i++) {
    const bl_embedding_part_t part = part_of(chunk, &table[i]);
    ops->embedding_part_forward(chunk->compute, &part, tokens, table[i].tokens, table[i].positions,
                                bl__sum_of(chunk, sums, i));
  }
  bl__sum_end(chunk, BL_EXCHANGE_BUFFER_SUM, NULL, NULL, in);
}

static void embed_backward(bl_chunk_t *chunk, const int32_t *tokens, const void *in) {
  const bl_ops_t *ops = chunk->ops;
  const bl__embedding_t *table = chunk->embedding;
  if (!bl__chunk_is_in_parts(chunk)) {
    ops->embedding_backward(chunk->compute, table->part.batch, table->part.seq, table->part.width, table->part.scale,
                            chunk->dtype, tokens, in, table->token_gradient,
                            positions_from(chunk, table->position_gradient));
    return;
  }
  const void *all = bl__all_rows(chunk, in);
  for (uint32_t i = 0; i < chunk->here; i++) {
    const bl_embedding_part_t part = part_of(chunk, &table[i]);
    ops->embedding_part_backward(chunk->compute, &part, tokens, all, table[i].token_gradient,
                                 table[i].position_gradient);
  }
}

static void forward_layers(bl_chunk_t *chunk, void *in, void *slot, void *out) {
  for (uint32_t layer = 0; layer < chunk->span.layer_count; layer++) {
    bl__tensors_t tensors = bl__layer_tensors(chunk, layer, in, slot, out);
    bl__layer_forward(chunk, layer, &tensors);
  }
}

void bl_chunk_forward(bl_chunk_t *chunk, const int32_t *tokens, void *in, void *slot, void *out) {
  assert(slot != NULL || chunk->layout.options.recompute == BL_RECOMPUTE_FULL);
  if (chunk->span.embedding) {
    embed(chunk, tokens, in);
  }
  forward_layers(chunk, in, slot, out);
}

void bl_chunk_recompute(bl_chunk_t *chunk, const void *in, void *slot) {
  forward_layers(chunk, (void *)(uintptr_t)in, slot, NULL); // the forward reads its input only
}

// The part of W outside of layers.
static void backward_weight_ends(bl_chunk_t *chunk, const int32_t *tokens, const void *in, void *slot) {
  if (chunk->span.head) {
    bl__norm_add_gradient(chunk, &chunk->final_norm, bl__final_norm_gradient(chunk, slot));
    bl__make_sums(chunk);
  }
  if (chunk->span.embedding) {
    embed_backward(chunk, tokens, in);
  }
}

void bl_chunk_backward_input(bl_chunk_t *chunk, const int32_t *labels, void *in, void *slot, void *out,
                             bool accumulate_head, bl_chunk_loss_t *loss) {
  if (chunk->span.head) {
    bl__head_backward(chunk, labels, slot, out, accumulate_head, loss);
  }
  for (uint32_t layer = chunk->span.layer_count; layer-- > 0;) {
    bl__tensors_t tensors = bl__layer_tensors(chunk, layer, in, slot, out);
    bl__layer_backward_input(chunk, layer, &tensors);
  }
}

void bl_chunk_backward_weight(bl_chunk_t *chunk, const int32_t *tokens, const void *in, void *slot, const void *out) {
  for (uint32_t layer = chunk->span.layer_count; layer-- > 0;) {
    bl__tensors_t tensors =
        bl__layer_tensors(chunk, layer, (void *)(uintptr_t)in, slot, (void *)(uintptr_t)out); // W reads edges only
    bl__layer_backward_weight(chunk, layer, &tensors);
    bl__chunk_land_layer(chunk, layer);
  }
  backward_weight_ends(chunk, tokens, in, slot);
  bl__chunk_land_ends(chunk);
}

void bl_chunk_backward(bl_chunk_t *chunk, const int32_t *tokens, const int32_t *labels, void *in, void *slot, void *out,
                       bool accumulate_head, bl_chunk_loss_t *loss) {
  if (chunk->span.head) {
    bl__head_backward(chunk, labels, slot, out, accumulate_head, loss);
  }
  for (uint32_t layer = chunk->span.layer_count; layer-- > 0;) {
    bl__tensors_t tensors = bl__layer_tensors(chunk, layer, in, slot, out);
    bl__layer_backward_input(chunk, layer, &tensors);
    bl__layer_backward_weight(chunk, layer, &tensors);
    bl__chunk_land_layer(chunk, layer);
  }
  backward_weight_ends(chunk, tokens, in, slot);
  bl__chunk_land_ends(chunk);
}
