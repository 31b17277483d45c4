// SPDX-License-Identifier: Apache-2.0
// The part of a model that one chunk holds: consecutive layers, possibly the embedding before them and the head after
// them, and the parameters that belong to these.
//
// Pure. Thread: values, any thread.
#ifndef BALLAST_MODEL_CHUNK_SPAN_H
#define BALLAST_MODEL_CHUNK_SPAN_H

#include "model/layer_parts.h"
#include "model/model.h"
#include "model/parameters.h"

typedef struct bl_chunk_span {
  uint32_t first_layer;
  uint32_t layer_count; // may be 0 in a chunk that holds only embedding or head
  bool embedding;       // the first chunk of the model
  bool head;            // the last chunk: final norm, head and loss
} bl_chunk_span_t;

// Returns the whole model as one chunk.
bl_chunk_span_t bl_chunk_span_whole(const bl_model_t *model);

// Returns the number of parameters that the chunk holds; parameters are in canonical order. A last chunk with a tied
// head also holds the token embedding, as parameter 0. A chunk with both embedding and tied head holds it once.
uint32_t bl_chunk_span_parameter_count(const bl_model_t *model, bl_chunk_span_t span);
// Returns the canonical index of the i-th parameter of the chunk.
uint32_t bl_chunk_span_parameter(const bl_model_t *model, bl_chunk_span_t span, uint32_t i);
// True if the chunk reports on this parameter (squares, checkpoint). The only exception is a tied head's copy of the
// embedding in a chunk that has no embedding.
bool bl_chunk_span_owns(const bl_model_t *model, bl_chunk_span_t span, uint32_t canonical_index);

// Where a parameter of a chunk lies in an arena of fp32. Weights, gradients and both optimizer moments use the same
// offsets. Parameters that one product reads together (q, k, v; gate, up) follow each other without a gap. Every other
// parameter starts on a cache line.
//
// If layers are in parts (model/layer_parts.h), a place is a rank's share of one parameter in one part. Inside a layer,
// all parameters of a part precede the next part. Outside of layers, all parts of a parameter precede the next
// parameter. The gradient of a norm is computed separately for the rows of every part. Its place therefore has space
// for one sum per part of this rank, each on a cache line. The total, like the weight, ends up in the first of them.
typedef struct bl_parameter_place {
  uint32_t canonical_index;
  uint32_t part; // of the layer; 0 if the parameter is not cut
  uint64_t offset_elements;
  uint64_t elements;          // of this part
  uint64_t reserved_elements; // elements from here that belong to this place
  // Of a matrix: elements of the rows between whose beginnings it may be cut among copies (model/shard.h), a multiple of
  // a cache line. 0: a vector, which is not cut.
  uint64_t unit;
  bool table;  // a matrix outside of layers
  bool tied;   // the token embedding, or a tied head's copy of it
  bool decays; // as bl_parameter_t says
} bl_parameter_place_t;

// Returns the number of places that a rank has in a chunk.
uint32_t bl_chunk_span_place_count(const bl_model_t *model, bl_chunk_span_t span, bl_layer_parts_t layer_parts);
// Writes all places to `places` [bl_chunk_span_place_count] (NULL: none are written). Returns the elements of the
// arena, a multiple of a cache line.
uint64_t bl_chunk_span_places(const bl_model_t *model, bl_chunk_span_t span, bl_layer_parts_t layer_parts,
                              bl_parameter_place_t *places);
// True for a gain or bias of a norm.
bool bl_chunk_span_is_norm(bl_parameter_role_t role);
// Returns the elements of the token embedding, or of the head's weight, in all parts of a rank, with the gaps between
// parts.
uint64_t bl_chunk_span_table_elements(const bl_model_t *model, bl_layer_parts_t layer_parts);

// True if the chunk needs a second gradient buffer for the token embedding: it is tied, and embedding and head are both
// here.
static inline bool bl_chunk_span_two_gradients(const bl_model_t *model, bl_chunk_span_t span) {
  return model->tied && span.embedding && span.head;
}

#endif
