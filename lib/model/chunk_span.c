// SPDX-License-Identifier: Apache-2.0
#include "model/chunk_span.h"

#include "base/bytes.h"

#include <stddef.h>

#define CACHE_LINE_ELEMENTS (BL_CACHE_LINE_BYTES / sizeof(float))

bl_chunk_span_t bl_chunk_span_whole(const bl_model_t *model) {
  return (bl_chunk_span_t){.first_layer = 0, .layer_count = model->layers, .embedding = true, .head = true};
}

// Parameters before the first layer, and of each layer.
static uint32_t embedding_count(const bl_model_t *model) {
  return bl_parameter_index(model, BL_PARAMETER_NORM1_WEIGHT, 0);
}

static uint32_t layer_count(const bl_model_t *model) {
  return bl_parameter_index(model, BL_PARAMETER_NORM1_WEIGHT, 1) - embedding_count(model);
}

// A copy of the token embedding for the head of a chunk that has no embedding.
static bool has_copy(const bl_model_t *model, bl_chunk_span_t span) {
  return model->tied && span.head && !span.embedding;
}

uint32_t bl_chunk_span_parameter_count(const bl_model_t *model, bl_chunk_span_t span) {
  uint32_t count = span.layer_count * layer_count(model) + has_copy(model, span);
  if (span.embedding) {
    count += embedding_count(model);
  }
  if (span.head) {
    count += bl_parameter_count(model) - bl_parameter_index(model, BL_PARAMETER_FINAL_NORM_WEIGHT, 0);
  }
  return count;
}

uint32_t bl_chunk_span_parameter(const bl_model_t *model, bl_chunk_span_t span, uint32_t i) {
  uint32_t before = span.embedding ? embedding_count(model) : has_copy(model, span);
  if (i < before) {
    return i;
  }
  i -= before;
  uint32_t in_layers = span.layer_count * layer_count(model);
  if (i < in_layers) {
    return embedding_count(model) + span.first_layer * layer_count(model) + i;
  }
  return bl_parameter_index(model, BL_PARAMETER_FINAL_NORM_WEIGHT, 0) + i - in_layers;
}

uint32_t bl_chunk_span_owned_count(const bl_model_t *model, bl_chunk_span_t span) {
  return bl_chunk_span_parameter_count(model, span) - has_copy(model, span);
}

bool bl_chunk_span_owns(const bl_model_t *model, bl_chunk_span_t span, uint32_t canonical_index) {
  return !(has_copy(model, span) && canonical_index == 0);
}

// k and v continue q, up continues gate: one product reads them as one matrix.
static bool continues_previous(bl_parameter_role_t role) {
  return role == BL_PARAMETER_K_WEIGHT || role == BL_PARAMETER_V_WEIGHT || role == BL_PARAMETER_UP_WEIGHT;
}

uint64_t bl_chunk_span_places(const bl_model_t *model, bl_chunk_span_t span, bl_parameter_place_t *places) {
  uint64_t end = 0;
  uint32_t count = bl_chunk_span_parameter_count(model, span);
  for (uint32_t i = 0; i < count; i++) {
    bl_parameter_t parameter = bl_parameter_get(model, bl_chunk_span_parameter(model, span, i));
    if (!continues_previous(parameter.role)) {
      end = bl_align_up(end, CACHE_LINE_ELEMENTS);
    }
    if (places != NULL) {
      places[i] = (bl_parameter_place_t){parameter.index, end, parameter.elements, parameter.decays};
    }
    end += parameter.elements;
  }
  return bl_align_up(end, CACHE_LINE_ELEMENTS);
}
