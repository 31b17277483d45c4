// SPDX-License-Identifier: Apache-2.0
#include "model/shard.h"

#include "base/bytes.h"

#include <stdlib.h>

#define CACHE_LINE_ELEMENTS (BL_CACHE_LINE_BYTES / sizeof(float))

typedef struct tensor {
  uint64_t elements;
  uint32_t position; // in owners
} tensor_t;

uint32_t bl_shard_parameters(const bl_model_t *model, const bl_chunk_span_t *spans, uint32_t span_count) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < span_count; i++) {
    count += bl_chunk_span_parameter_count(model, spans[i]);
  }
  return count;
}

// Orders tensors by size, the largest first; equal ones by position.
static int by_size(const void *left, const void *right) {
  const tensor_t *a = left, *b = right;
  if (a->elements != b->elements) {
    return a->elements > b->elements ? -1 : 1;
  }
  return a->position < b->position ? -1 : 1;
}

static void give(const tensor_t *tensor, uint32_t copy, uint64_t loads[], uint32_t *owners) {
  owners[tensor->position] = copy;
  loads[copy] += tensor->elements;
}

static uint32_t least(const uint64_t loads[], uint32_t copies) {
  uint32_t found = 0;
  for (uint32_t r = 1; r < copies; r++) {
    found = loads[r] < loads[found] ? r : found;
  }
  return found;
}

// Assigns owners for spans whose copies are on the same ranks.
static bl_status_t assign(const bl_model_t *model, const bl_chunk_span_t *spans, uint32_t span_count, uint32_t copies,
                          uint32_t *owners) {
  const uint32_t tied = bl_parameter_index(model, BL_PARAMETER_TOKEN_EMBEDDING, 0);
  uint64_t loads[BL_GRID_MOST_REPLICAS] = {0};
  uint32_t position = 0, count = 0;
  tensor_t *tensors = calloc(bl_shard_parameters(model, spans, span_count) + 1u, sizeof *tensors);
  if (tensors == NULL) {
    return BL_EXHAUSTED;
  }
  for (uint32_t s = 0; s < span_count; s++) {
    for (uint32_t i = 0; i < bl_chunk_span_parameter_count(model, spans[s]); i++, position++) {
      const uint32_t index = bl_chunk_span_parameter(model, spans[s], i);
      const tensor_t tensor = {.elements = bl_parameter_get(model, index).elements, .position = position};
      if (model->tied && index == tied) {
        give(&tensor, 0, loads, owners);
      } else {
        tensors[count++] = tensor;
      }
    }
  }
  qsort(tensors, count, sizeof *tensors, by_size);
  for (uint32_t i = 0; i < count; i++) {
    give(&tensors[i], least(loads, copies), loads, owners);
  }
  free(tensors);
  return BL_OK;
}

bl_status_t bl_shard_assign(const bl_model_t *model, const bl_chunk_span_t *spans, uint32_t span_count,
                            bl_copies_t copies, uint32_t *owners) {
  const uint32_t count = bl_copies_count(copies), together = bl_copies_pipes(copies) > 1 ? 1 : span_count;
  bl_status_t status = BL_OK;
  for (uint32_t s = 0; s < span_count && status == BL_OK; s += together) {
    status = assign(model, &spans[s], together, count, owners);
    owners += bl_shard_parameters(model, &spans[s], together);
  }
  return status;
}

uint64_t bl_shard_moments(const bl_parameter_place_t *places, uint32_t count, const uint32_t *owners, uint32_t copy,
                          uint64_t *offsets) {
  uint64_t end = 0;
  for (uint32_t i = 0; i < count; i++) {
    const bool here = owners == NULL || owners[places[i].number] == copy;
    const uint64_t offset = owners == NULL ? places[i].offset_elements : end;
    if (here && offsets != NULL) {
      offsets[i] = offset;
    }
    if (here) {
      end = owners == NULL ? offset + places[i].room : bl_align_up(offset + places[i].elements, CACHE_LINE_ELEMENTS);
    }
  }
  return bl_align_up(end, CACHE_LINE_ELEMENTS);
}
