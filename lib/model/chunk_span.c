// SPDX-License-Identifier: Apache-2.0
#include "model/chunk_span.h"

#include "base/bytes.h"

#include <stddef.h>

#define CACHE_LINE_ELEMENTS (BL_CACHE_LINE_BYTES / sizeof(float))

bl_chunk_span_t bl_chunk_span_whole(const bl_model_t *model) {
  return (bl_chunk_span_t){.first_layer = 0, .layer_count = model->layers, .embedding = true, .head = true};
}

// Parameters before the first layer.
static uint32_t embedding_count(const bl_model_t *model) {
  return bl_parameter_index(model, BL_PARAMETER_NORM1_WEIGHT, 0);
}

static uint32_t layer_count(const bl_model_t *model) {
  return bl_parameter_index(model, BL_PARAMETER_NORM1_WEIGHT, 1) - embedding_count(model);
}

// True if the chunk has a tied head but no embedding, and so holds its own copy of the token embedding.
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

bool bl_chunk_span_owns(const bl_model_t *model, bl_chunk_span_t span, uint32_t canonical_index) {
  return !(has_copy(model, span) && canonical_index == 0);
}

// True if the parameter continues the previous one (k and v after q, up after gate): one product reads them as one
// matrix.
static bool continues_previous(bl_parameter_role_t role) {
  return role == BL_PARAMETER_K_WEIGHT || role == BL_PARAMETER_V_WEIGHT || role == BL_PARAMETER_K_BIAS ||
         role == BL_PARAMETER_V_BIAS || role == BL_PARAMETER_UP_WEIGHT;
}

static bool is_in_layer(const bl_model_t *model, const bl_parameter_t *parameter) {
  return parameter->layer >= 0 && parameter->layer < (int32_t)model->layers;
}

// Returns the number of parameters from `first` on that are placed together: those of one layer, or one outside of
// layers.
static uint32_t group_count(const bl_model_t *model, bl_chunk_span_t span, uint32_t first) {
  const bl_parameter_t parameter = bl_parameter_get(model, bl_chunk_span_parameter(model, span, first));
  return is_in_layer(model, &parameter) ? layer_count(model) : 1;
}

bool bl_chunk_span_is_norm(bl_parameter_role_t role) {
  switch (role) {
  case BL_PARAMETER_NORM1_WEIGHT:
  case BL_PARAMETER_NORM1_BIAS:
  case BL_PARAMETER_NORM2_WEIGHT:
  case BL_PARAMETER_NORM2_BIAS:
  case BL_PARAMETER_Q_NORM_WEIGHT:
  case BL_PARAMETER_K_NORM_WEIGHT:
  case BL_PARAMETER_POST_NORM1_WEIGHT:
  case BL_PARAMETER_POST_NORM2_WEIGHT:
  case BL_PARAMETER_FINAL_NORM_WEIGHT:
  case BL_PARAMETER_FINAL_NORM_BIAS:
    return true;
  default:
    return false;
  }
}

typedef struct walk {
  const bl_model_t *model;
  bl_chunk_span_t span;
  bl_layer_parts_t layer_parts;
  bl_parameter_place_t *places; // NULL: places are only counted
  uint32_t count;
  uint64_t end;
} walk_t;

// The fewest whole rows of a slice of a matrix that fill cache lines.
static uint64_t unit_of(const bl_parameter_t *parameter, const bl_slice_t *slice) {
  const uint64_t row = bl_slice_row(parameter, slice);
  uint64_t unit = row;
  while (unit % CACHE_LINE_ELEMENTS != 0) {
    unit += row;
  }
  return parameter->rank == 1 ? 0 : unit;
}

static void place(walk_t *walk, uint32_t number, uint32_t part) {
  const uint32_t parts = bl_layer_parts_count(walk->layer_parts), here = bl_layer_parts_here(walk->layer_parts);
  const bl_parameter_t parameter =
      bl_parameter_get(walk->model, bl_chunk_span_parameter(walk->model, walk->span, number));
  const bool cut = parts > 1 && bl_layer_parts_cut(parameter.role);
  if (!cut && part != bl_layer_parts_first(walk->layer_parts)) {
    return; // placed once for all parts
  }
  const bl_slice_t slice = bl_layer_part_slice(walk->model, &parameter, parts, part);
  const uint64_t elements = bl_slice_elements(&slice);
  if (!continues_previous(parameter.role)) {
    walk->end = bl_align_up(walk->end, CACHE_LINE_ELEMENTS);
  }
  const uint64_t reserved_elements =
      here > 1 && bl_chunk_span_is_norm(parameter.role) ? here * bl_align_up(elements, CACHE_LINE_ELEMENTS) : elements;
  if (walk->places != NULL) {
    walk->places[walk->count] =
        (bl_parameter_place_t){.canonical_index = parameter.index,
                               .part = cut ? part : 0,
                               .offset_elements = walk->end,
                               .elements = elements,
                               .reserved_elements = reserved_elements,
                               .unit = unit_of(&parameter, &slice),
                               .table = parameter.rank > 1 && !is_in_layer(walk->model, &parameter),
                               .tied = walk->model->tied && parameter.role == BL_PARAMETER_TOKEN_EMBEDDING,
                               .decays = parameter.decays};
  }
  walk->count++;
  walk->end += reserved_elements;
}

static walk_t walk_places(const bl_model_t *model, bl_chunk_span_t span, bl_layer_parts_t layer_parts,
                          bl_parameter_place_t *places) {
  walk_t walk = {.model = model, .span = span, .layer_parts = layer_parts, .places = places};
  const uint32_t count = bl_chunk_span_parameter_count(model, span), first = bl_layer_parts_first(layer_parts);
  for (uint32_t group = 0; group < count;) {
    const uint32_t end = group + group_count(model, span, group);
    for (uint32_t part = first; part < first + bl_layer_parts_here(layer_parts); part++) {
      for (uint32_t i = group; i < end; i++) {
        place(&walk, i, part);
      }
    }
    group = end;
  }
  return walk;
}

uint32_t bl_chunk_span_place_count(const bl_model_t *model, bl_chunk_span_t span, bl_layer_parts_t layer_parts) {
  return walk_places(model, span, layer_parts, NULL).count;
}

uint64_t bl_chunk_span_places(const bl_model_t *model, bl_chunk_span_t span, bl_layer_parts_t layer_parts,
                              bl_parameter_place_t *places) {
  return bl_align_up(walk_places(model, span, layer_parts, places).end, CACHE_LINE_ELEMENTS);
}

uint64_t bl_chunk_span_table_elements(const bl_model_t *model, bl_layer_parts_t layer_parts) {
  const uint32_t first = bl_layer_parts_first(layer_parts), last = first + bl_layer_parts_here(layer_parts) - 1;
  uint64_t elements = 0;
  for (uint32_t part = first; part <= last; part++) {
    const uint64_t of_part =
        bl_layer_part_rows(model->vocab, bl_layer_parts_count(layer_parts), part).count * model->hidden;
    elements += part < last ? bl_align_up(of_part, CACHE_LINE_ELEMENTS) : of_part;
  }
  return elements;
}
