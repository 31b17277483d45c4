// SPDX-License-Identifier: Apache-2.0
#include "job/checkpoint_image.h"

#include "base/bytes.h"
#include "job/checkpoint.h"
#include "model/shard.h"

#include <stdlib.h>

uint64_t bl_checkpoint_image_gap(uint64_t head_bytes) {
  return bl_align_up(head_bytes, BL_CACHE_LINE_BYTES) - head_bytes;
}

uint64_t bl_checkpoint_image_buffer_bytes(uint64_t head_bytes, uint64_t size_bytes) {
  return bl_align_up(bl_checkpoint_image_gap(head_bytes) + size_bytes, BL_CACHE_LINE_BYTES);
}

typedef struct request {
  const bl_model_t *model;
  bl_layer_parts_t layer_parts;
} request_t;

// Adds the chunk's tensors, which are in the file whoever writes them, to the head.
static void add_names(const request_t *r, bl_chunk_span_t span, bl_checkpoint_part_t part,
                      bl_safetensors_length_t *head) {
  const uint32_t count = bl_chunk_span_parameter_count(r->model, span);
  for (uint32_t i = 0; i < count; i++) {
    const uint32_t index = bl_chunk_span_parameter(r->model, span, i);
    if (bl_chunk_span_owns(r->model, span, index)) {
      const bl_parameter_t parameter = bl_parameter_get(r->model, index);
      const uint64_t shape[] = {parameter.shape[0], parameter.shape[1]};
      char name[BL_CHECKPOINT_NAME_BYTES];
      bl_safetensors_length_add(head, bl_checkpoint_tensor_name(&parameter, part, name), BL_TENSOR_F32, shape,
                                parameter.rank);
    }
  }
}

// Goes on to the next chunk of the stage, and adds the bytes that this rank writes of one part of its tensors.
static bl_status_t add_data(const request_t *r, bl_chunk_span_t span, bl_ownership_t *ownership, uint32_t copy,
                            uint64_t *bytes) {
  const uint32_t count = bl_chunk_span_place_count(r->model, span, r->layer_parts);
  bl_parameter_place_t *places = calloc(count + 1u, sizeof *places);
  if (places == NULL) {
    return BL_EXHAUSTED;
  }
  (void)bl_chunk_span_places(r->model, span, r->layer_parts, places);
  bl_shard_cut(ownership, places, count);
  for (uint32_t i = 0; i < count; i++) {
    const bl_parameter_t parameter = bl_parameter_get(r->model, places[i].canonical_index);
    const bool whole = bl_layer_parts_count(r->layer_parts) > 1 && !bl_layer_parts_cut(parameter.role);
    if (bl_chunk_span_owns(r->model, span, parameter.index) && (!whole || r->layer_parts.rank == 0)) {
      *bytes += bl_shard_range(ownership, &places[i], copy).count * sizeof(float);
    }
  }
  free(places);
  return BL_OK;
}

// Chunk `i` of a file. Two stages that have copies of the same two chunks write them in the order of their layers.
static bl_chunk_span_t in_file(const bl_chunk_span_t *spans, uint32_t span_count, bl_copies_t copies, uint32_t i) {
  const bool back = bl_copies_pipes(copies) > 1 && spans[0].first_layer > spans[1].first_layer;
  return spans[back ? span_count - 1 - i : i];
}

static uint64_t image_buffer_bytes(const bl_safetensors_length_t *head, uint64_t data_bytes) {
  const uint64_t head_bytes = bl_safetensors_length_header(head);
  return bl_checkpoint_image_buffer_bytes(head_bytes, head_bytes + data_bytes);
}

bl_status_t bl_checkpoint_image_bytes(const bl_model_t *model, const bl_chunk_span_t *spans, uint32_t span_count,
                                      bl_layer_parts_t layer_parts, bl_copies_t copies, uint32_t replica,
                                      uint64_t *bytes) {
  const request_t request = {.model = model, .layer_parts = layer_parts};
  if (bl_model_check(model, NULL) != BL_OK) {
    return BL_INVALID;
  }
  bl_ownership_t ownership = {.copies = copies};
  bl_status_t status = BL_OK;
  bl_safetensors_length_t weights = {0}, moments = {0};
  uint64_t data_bytes = 0;
  for (uint32_t i = 0; i < span_count && status == BL_OK; i++) {
    const uint32_t copy = bl_copies_number(copies, replica, bl_copies_pipes(copies) > 1 ? i : 0);
    add_names(&request, in_file(spans, span_count, copies, i), BL_CHECKPOINT_WEIGHT, &weights);
    status = add_data(&request, spans[i], &ownership, copy, &data_bytes);
  }
  for (int part = BL_CHECKPOINT_FIRST_MOMENT; part < BL_CHECKPOINT_PARTS; part++) {
    for (uint32_t i = 0; i < span_count; i++) {
      add_names(&request, in_file(spans, span_count, copies, i), (bl_checkpoint_part_t)part, &moments);
    }
  }
  *bytes = image_buffer_bytes(&weights, data_bytes) + image_buffer_bytes(&moments, 2 * data_bytes);
  return status;
}
