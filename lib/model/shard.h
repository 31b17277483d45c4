// SPDX-License-Identifier: Apache-2.0
// Which copy of a chunk updates what (ZeRO stage 1). The copy that updates an element, its owner, adds the gradients of
// all copies, holds the two moments, which exist nowhere else, writes weight and moments into checkpoints, and sends
// the weight to every other copy. Copies are replicas, or the two copies of a schedule with two pipes (model/grid.h).
//
// A matrix is cut into as many shares of consecutive rows as a step's gradient has parts (bl_grid_t.data_parts). Every
// copy owns equally many shares that follow each other, its range of the matrix. So moments and traffic are even
// however few matrices a stage has. The squares of a gradient are summed share by share and the shares added in their
// order, so a gradient's norm depends on the number of parts, not on that of copies.
//
// A vector (norms, biases) stays whole. Vectors are assigned from the largest to the smallest, each to the copy with
// the least load so far. The load counts all chunks of a stage. With two pipes it counts chunk by chunk, because the
// copies of both chunks of a stage are on the same other stage. A tied embedding is then cut among the copies of the
// first pipe alone, so that both ends of its gradient are in one pipe.
//
// Pure. Thread: any.
#ifndef BALLAST_MODEL_SHARD_H
#define BALLAST_MODEL_SHARD_H

#include "base/status.h"
#include "model/chunk_span.h"
#include "model/grid.h"

// Owners of a matrix: all copies, or those of the first pipe.
#define BL_SHARD_ALL        UINT32_MAX
#define BL_SHARD_FIRST_PIPE (UINT32_MAX - 1)

// Writes the owner of each parameter of a stage's chunks to owners[], chunk after chunk, each in the order of
// bl_chunk_span_parameter. At most BL_GRID_MOST_REPLICAS copies. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_shard_assign(const bl_model_t *model, const bl_chunk_span_t *spans, uint32_t span_count,
                                        bl_copies_t copies, uint32_t *owners);
// Returns the number of these parameters.
uint32_t bl_shard_parameters(const bl_model_t *model, const bl_chunk_span_t *spans, uint32_t span_count);

// How the state of one chunk is shared out. Zeroed: there is one copy, which updates everything.
typedef struct bl_ownership {
  const uint32_t *owners; // of the chunk's parameters, by bl_shard_assign; borrowed. NULL: there is one copy
  bl_copies_t copies;
  uint32_t parts; // of a step's gradient, a multiple of the copies; 0: as many as copies
} bl_ownership_t;

// Some of the `of` shares of a place. An empty range has count 0.
typedef struct bl_shard_shares {
  uint32_t first, count, of;
} bl_shard_shares_t;
// Elements of a place.
typedef struct bl_shard_range {
  uint64_t first, count;
} bl_shard_range_t;

// Returns the shares of a place that `copy` owns, and the elements of one share. Shares can be empty: a matrix may have
// fewer rows than shares.
bl_shard_shares_t bl_shard_shares(const bl_ownership_t *ownership, const bl_parameter_place_t *place, uint32_t copy);
bl_shard_range_t bl_shard_share(const bl_parameter_place_t *place, uint32_t number, uint32_t of);
// Returns the elements that `copy` owns.
bl_shard_range_t bl_shard_range(const bl_ownership_t *ownership, const bl_parameter_place_t *place, uint32_t copy);

// Returns how many shares of a parameter report their squares.
static inline uint32_t bl_shard_count(const bl_parameter_t *parameter, uint32_t data_parts) {
  return parameter->rank > 1 ? data_parts : 1;
}
// Returns the most squares that one copy reports of a chunk's places.
uint32_t bl_shard_squares(const bl_ownership_t *ownership, const bl_parameter_place_t *places, uint32_t count);

// Places the moments of a chunk's parameters, whose places are `places` [count]: those of the range that `copy` owns,
// each on a cache line. With one copy all moments are placed as their weights are. Writes the element offset of each
// that is placed (offsets NULL: nothing is written). Returns the elements of the arena.
uint64_t bl_shard_moments(const bl_ownership_t *ownership, const bl_parameter_place_t *places, uint32_t count,
                          uint32_t copy, uint64_t *offsets);

#endif
