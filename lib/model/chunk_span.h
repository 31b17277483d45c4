// SPDX-License-Identifier: Apache-2.0
// Which part of a model one chunk holds: a run of layers, perhaps the embedding before and the head after it,
// and which parameters these bring along.
//
// Pure. Thread: values, any thread.
#ifndef BALLAST_MODEL_CHUNK_SPAN_H
#define BALLAST_MODEL_CHUNK_SPAN_H

#include "model/model.h"
#include "model/parameters.h"
#include "model/split.h"

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

// Where each parameter of a chunk lies in an arena of fp32 (weights, gradients and both optimizer moments use
// the same offsets). Parameters that one product reads together (q, k, v; gate, up) follow each other without
// a gap; everything else starts on a cache line.
//
// Of layers in parts (model/split.h) a place is what a rank has of one parameter in one part: inside a layer all of a part
// before the next part, outside of layers all parts of a parameter before the next parameter. A norm's gradient is made
// for the rows of every part by itself: its place has room for as many sums as there are parts here, each on a cache line,
// and the first of them is where the whole sum, like the weight, ends up.
typedef struct bl_parameter_place {
  uint32_t canonical_index;
  uint32_t number; // of the parameter, as bl_chunk_span_parameter counts
  uint32_t part;   // of the layer; 0 where the parameter is not cut
  uint64_t offset_elements;
  uint64_t elements; // of this part
  uint64_t room;     // elements from here that are this place's
  bool decays;       // as bl_parameter_t says
} bl_parameter_place_t;

// Places that a rank has of a chunk.
uint32_t bl_chunk_span_place_count(const bl_model_t *model, bl_chunk_span_t span, bl_split_t split);
// Of them, those of parameters that the chunk reports on.
uint32_t bl_chunk_span_owned_count(const bl_model_t *model, bl_chunk_span_t span, bl_split_t split);
// Writes them; `places` (NULL: not wanted) has room for so many. Returns the elements of the arena, a multiple of a cache
// line.
uint64_t bl_chunk_span_places(const bl_model_t *model, bl_chunk_span_t span, bl_split_t split,
                              bl_parameter_place_t *places);
// A gain or bias of a norm.
bool bl_chunk_span_is_norm(bl_parameter_role_t role);
// Elements of all parts of the token embedding, or of the head's weight, that a rank has, as they lie one after the other.
uint64_t bl_chunk_span_table_elements(const bl_model_t *model, bl_split_t split);

// True when the chunk needs a second gradient buffer for the token embedding (tied, embedding and head both
// here).
static inline bool bl_chunk_span_two_gradients(const bl_model_t *model, bl_chunk_span_t span) {
  return model->tied && span.embedding && span.head;
}

#endif
