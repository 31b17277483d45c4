// SPDX-License-Identifier: Apache-2.0
#include "job/checkpoint_image.h"

#include "base/bytes.h"
#include "job/checkpoint.h"
#include "model/shard.h"

#include <stdlib.h>

uint64_t bl_checkpoint_image_gap(uint64_t head_bytes) {
  return bl_align_up(head_bytes, BL_CACHE_LINE_BYTES) - head_bytes;
}

uint64_t bl_checkpoint_image_room(uint64_t head_bytes, uint64_t size_bytes) {
  return bl_align_up(bl_checkpoint_image_gap(head_bytes) + size_bytes, BL_CACHE_LINE_BYTES);
}

// Adds one part of every tensor of the chunk that this copy owns and that the chunk saves.
static void add_part(const bl_model_t *model, bl_chunk_span_t span, const uint32_t *owners, uint32_t copy,
                     bl_checkpoint_part_t part, bl_safetensors_length_t *length) {
  const uint32_t count = bl_chunk_span_parameter_count(model, span);
  for (uint32_t i = 0; i < count; i++) {
    const uint32_t index = bl_chunk_span_parameter(model, span, i);
    if (owners[i] == copy && bl_chunk_span_owns(model, span, index)) {
      const bl_parameter_t parameter = bl_parameter_get(model, index);
      const uint64_t shape[] = {parameter.shape[0], parameter.shape[1]};
      char name[BL_CHECKPOINT_NAME_BYTES];
      bl_safetensors_length_add(length, bl_checkpoint_tensor_name(&parameter, part, name), BL_TENSOR_F32, shape,
                                parameter.rank);
    }
  }
}

bl_status_t bl_checkpoint_image_bytes(const bl_model_t *model, const bl_chunk_span_t *spans, uint32_t span_count,
                                      bl_copies_t copies, uint32_t replica, uint64_t *bytes) {
  uint64_t sum = 0;
  bl_safetensors_length_t length = {0};
  if (bl_model_check(model, NULL) != BL_OK) {
    return BL_INVALID;
  }
  uint32_t *owners = calloc(bl_shard_parameters(model, spans, span_count) + 1u, sizeof *owners);
  bl_status_t status = owners != NULL ? bl_shard_assign(model, spans, span_count, copies, owners) : BL_EXHAUSTED;
  if (status != BL_OK) {
    free(owners);
    return status;
  }
  for (int part = 0; part < BL_CHECKPOINT_PARTS; part++) {
    const uint32_t *next = owners;
    for (uint32_t i = 0; i < span_count; i++) {
      const uint32_t copy = bl_copies_number(copies, replica, bl_copies_pipes(copies) > 1 ? i : 0);
      add_part(model, spans[i], next, copy, (bl_checkpoint_part_t)part, &length);
      next += bl_chunk_span_parameter_count(model, spans[i]);
    }
    if (part == BL_CHECKPOINT_WEIGHT || part + 1 == BL_CHECKPOINT_PARTS) { // end of a file
      const uint64_t head_bytes = bl_safetensors_length_header(&length);
      sum += bl_checkpoint_image_room(head_bytes, head_bytes + length.data_bytes);
      length = (bl_safetensors_length_t){0};
    }
  }
  free(owners);
  *bytes = sum;
  return BL_OK;
}
