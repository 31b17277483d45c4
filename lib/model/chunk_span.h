// SPDX-License-Identifier: Apache-2.0
// Which part of a model one chunk holds: a run of layers, perhaps the embedding before and the head after it,
// and which parameters these bring along.
//
// Pure. Thread: values, any thread.
#ifndef BALLAST_MODEL_CHUNK_SPAN_H
#define BALLAST_MODEL_CHUNK_SPAN_H

#include "model/model.h"
#include "model/parameters.h"

typedef struct bl_chunk_span {
  uint32_t first_layer;
  uint32_t layer_count; // may be 0 in a chunk that holds only embedding or head
  bool embedding;       // the first chunk of the model
  bool head;            // the last: final norm, head and loss
} bl_chunk_span_t;

// The whole model as one chunk.
bl_chunk_span_t bl_chunk_span_whole(const bl_model_t *model);

// Parameters the chunk holds, in canonical order. A last chunk with a tied head also holds the token
// embedding: it is parameter 0 there as everywhere, and once only where the chunk has the embedding too.
uint32_t bl_chunk_span_parameter_count(const bl_model_t *model, bl_chunk_span_t span);
// Canonical index of the i-th parameter of the chunk.
uint32_t bl_chunk_span_parameter(const bl_model_t *model, bl_chunk_span_t span, uint32_t i);
// True for the chunk that reports on this parameter (squares, checkpoint): all but the tied head's copy of
// the embedding in a chunk that has no embedding.
bool bl_chunk_span_owns(const bl_model_t *model, bl_chunk_span_t span, uint32_t canonical_index);
uint32_t bl_chunk_span_owned_count(const bl_model_t *model, bl_chunk_span_t span); // how many it reports on

// Where each parameter of a chunk lies in an arena of fp32 (weights, gradients and both optimizer moments use
// the same offsets). Parameters that one product reads together (q, k, v; gate, up) follow each other without
// a gap; everything else starts on a cache line.
typedef struct bl_parameter_place {
  uint32_t canonical_index;
  uint64_t offset_elements;
  uint64_t elements;
  bool decays; // as bl_parameter_t says
} bl_parameter_place_t;

// Writes the places of all parameters of the chunk; `places` has room for bl_chunk_span_parameter_count.
// Returns the elements of the arena, a multiple of a cache line.
uint64_t bl_chunk_span_places(const bl_model_t *model, bl_chunk_span_t span, bl_parameter_place_t *places);

// True when the chunk needs a second gradient buffer for the token embedding (tied, embedding and head both
// here).
static inline bool bl_chunk_span_two_gradients(const bl_model_t *model, bl_chunk_span_t span) {
  return model->tied && span.embedding && span.head;
}

#endif
