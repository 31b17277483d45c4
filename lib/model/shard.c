// SPDX-License-Identifier: Apache-2.0
#include "model/shard.h"

#include "base/bytes.h"
#include "base/minmax.h"

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
static bl_status_t assign(const bl_model_t *model, const bl_chunk_span_t *spans, uint32_t span_count,
                          bl_copies_t copies, uint32_t *owners) {
  const uint32_t pipes = bl_copies_pipes(copies), count = bl_copies_count(copies);
  const uint32_t tied = bl_parameter_index(model, BL_PARAMETER_TOKEN_EMBEDDING, 0);
  uint64_t loads[BL_GRID_MOST_REPLICAS] = {0};
  uint32_t position = 0, vectors_count = 0;
  tensor_t *vectors = calloc(bl_shard_parameters(model, spans, span_count) + 1u, sizeof *vectors);
  if (vectors == NULL) {
    return BL_EXHAUSTED;
  }
  for (uint32_t s = 0; s < span_count; s++) {
    for (uint32_t i = 0; i < bl_chunk_span_parameter_count(model, spans[s]); i++, position++) {
      const uint32_t index = bl_chunk_span_parameter(model, spans[s], i);
      const bl_parameter_t parameter = bl_parameter_get(model, index);
      const bool first_pipe = pipes > 1 && model->tied && index == tied;
      if (parameter.rank == 1) {
        vectors[vectors_count++] = (tensor_t){.elements = parameter.elements, .position = position};
        continue;
      }
      owners[position] = first_pipe ? BL_SHARD_FIRST_PIPE : BL_SHARD_ALL;
      for (uint32_t c = 0; c < count && first_pipe; c += pipes) {
        loads[c] += parameter.elements * pipes / count;
      }
    }
  }
  qsort(vectors, vectors_count, sizeof *vectors, by_size);
  for (uint32_t i = 0; i < vectors_count; i++) {
    give(&vectors[i], least(loads, count), loads, owners);
  }
  free(vectors);
  return BL_OK;
}

bl_status_t bl_shard_assign(const bl_model_t *model, const bl_chunk_span_t *spans, uint32_t span_count,
                            bl_copies_t copies, uint32_t *owners) {
  const uint32_t together = bl_copies_pipes(copies) > 1 ? 1 : span_count;
  bl_status_t status = BL_OK;
  for (uint32_t s = 0; s < span_count && status == BL_OK; s += together) {
    status = assign(model, &spans[s], together, copies, owners);
    owners += bl_shard_parameters(model, &spans[s], together);
  }
  return status;
}

bl_shard_shares_t bl_shard_shares(const bl_ownership_t *ownership, const bl_parameter_place_t *place, uint32_t copy) {
  const uint32_t owner = ownership->owners == NULL ? BL_SHARD_ALL : ownership->owners[place->number];
  const uint32_t pipes = bl_copies_pipes(ownership->copies), copies = bl_copies_count(ownership->copies);
  if (place->unit == 0) {
    return (bl_shard_shares_t){.count = owner == BL_SHARD_ALL || owner == copy, .of = 1};
  }
  const uint32_t of = ownership->parts > 0 ? ownership->parts : copies;
  if (owner == BL_SHARD_FIRST_PIPE) {
    const uint32_t each = of / (copies / pipes);
    return (bl_shard_shares_t){.first = copy / pipes * each, .count = copy % pipes == 0 ? each : 0, .of = of};
  }
  return (bl_shard_shares_t){.first = copy * (of / copies), .count = of / copies, .of = of};
}

bl_shard_range_t bl_shard_share(const bl_parameter_place_t *place, uint32_t number, uint32_t of) {
  if (place->unit == 0) {
    return (bl_shard_range_t){.count = place->elements};
  }
  const uint64_t units = (place->elements + place->unit - 1) / place->unit;
  const uint64_t first = units * number / of * place->unit, end = units * (number + 1) / of * place->unit;
  return (bl_shard_range_t){.first = first, .count = bl_min_u64(end, place->elements) - first};
}

bl_shard_range_t bl_shard_range(const bl_ownership_t *ownership, const bl_parameter_place_t *place, uint32_t copy) {
  const bl_shard_shares_t shares = bl_shard_shares(ownership, place, copy);
  if (shares.count == 0) {
    return (bl_shard_range_t){0};
  }
  const bl_shard_range_t first = bl_shard_share(place, shares.first, shares.of),
                         last = bl_shard_share(place, shares.first + shares.count - 1, shares.of);
  return (bl_shard_range_t){.first = first.first, .count = last.first + last.count - first.first};
}

uint32_t bl_shard_squares(const bl_ownership_t *ownership, const bl_parameter_place_t *places, uint32_t count) {
  uint32_t squares = 0;
  for (uint32_t i = 0; i < count; i++) { // the first copy is in the first pipe
    squares += places[i].unit == 0 ? 1 : bl_shard_shares(ownership, &places[i], 0).count;
  }
  return squares;
}

uint64_t bl_shard_moments(const bl_ownership_t *ownership, const bl_parameter_place_t *places, uint32_t count,
                          uint32_t copy, uint64_t *offsets) {
  uint64_t end = 0;
  for (uint32_t i = 0; i < count; i++) {
    const bl_shard_range_t range = bl_shard_range(ownership, &places[i], copy);
    const uint64_t offset = ownership->owners == NULL ? places[i].offset_elements : end;
    if (range.count > 0 && offsets != NULL) {
      offsets[i] = offset;
    }
    if (range.count > 0) {
      end =
          ownership->owners == NULL ? offset + places[i].room : bl_align_up(offset + range.count, CACHE_LINE_ELEMENTS);
    }
  }
  return bl_align_up(end, CACHE_LINE_ELEMENTS);
}
