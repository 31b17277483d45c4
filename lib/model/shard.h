// SPDX-License-Identifier: Apache-2.0
// Which copy of a chunk updates what (ZeRO stage 1). The copy that updates an element, its owner, adds the gradients of
// all copies, holds the two moments, which exist nowhere else, writes weight and moments into checkpoints, and sends
// the weight to every other copy. In bf16 the master of a weight that only products read exists nowhere else either.
// Copies are replicas, or the two copies of a schedule with two pipes (model/grid.h).
//
// Weights and gradients of a chunk lie in arenas, place after place (bl_chunk_span_places). The layers, with the final
// norm, are cut into one range of the arena per copy, and two copies exchange such a range as one message: what lies
// between places travels with it. A cut is at the beginning of a place, or inside a matrix at the beginning of a share.
// So a copy has at most two matrices in part, and no vector. Cuts are as near as possible to where all copies would
// have equally much of the chunks of their stage so far. So the largest share of a matrix bounds how uneven a stage is,
// however many chunks it has. With two pipes this counts chunk by chunk, because the copies of both chunks of a stage
// are on the same other stage.
//
// A table (embedding, positions, head) is cut by itself: every copy has equally many of its shares. The tied embedding
// of two pipes is cut among the copies of the first pipe alone, so that both ends of its gradient are in one pipe.
//
// A matrix has bl_grid_shares shares of consecutive rows, as even as possible; a vector is one share. The squares of a
// gradient are summed share by share and the shares added in their order, so a gradient's norm depends on the number of
// parts, not on that of copies.
//
// Pure. Thread: any.
#ifndef BALLAST_MODEL_SHARD_H
#define BALLAST_MODEL_SHARD_H

#include "model/chunk_span.h"
#include "model/grid.h"

// How the state of one chunk is shared out. Zeroed: there is one copy, which updates everything.
typedef struct bl_ownership {
  bl_copies_t copies; // at most BL_GRID_REPLICAS_MAX
  // Copy c has layers from element cuts[c] of the arena up to cuts[c + 1].
  uint64_t cuts[BL_GRID_REPLICAS_MAX + 1];
  // Elements of the layers of all chunks so far that copies below c have.
  uint64_t below[BL_GRID_REPLICAS_MAX + 1];
} bl_ownership_t;

// Goes on to the next chunk of a stage, whose parameters have the places `places` [count]. At first everything but
// `copies` is zeroed.
void bl_shard_cut(bl_ownership_t *ownership, const bl_parameter_place_t *places, uint32_t count);

// Some of the `of` shares of a place. An empty range has count 0.
typedef struct bl_shard_shares {
  uint32_t first, count, of;
} bl_shard_shares_t;
// Elements of a place, or of an arena.
typedef struct bl_shard_range {
  uint64_t first, count;
} bl_shard_range_t;

// Returns the shares of a place that `copy` owns, and the elements of one share. Shares can be empty: a matrix may have
// fewer rows than shares.
bl_shard_shares_t bl_shard_shares(const bl_ownership_t *ownership, const bl_parameter_place_t *place, uint32_t copy);
bl_shard_range_t bl_shard_share(const bl_parameter_place_t *place, uint32_t number, uint32_t of);
// Returns the elements that `copy` owns.
bl_shard_range_t bl_shard_range(const bl_ownership_t *ownership, const bl_parameter_place_t *place, uint32_t copy);
// Returns the elements of the arena that every other copy exchanges with `copy`, their owner, in message `i`: there is
// one for each table, by the number of its place, and one for all layers, by the number of their first place. Others
// are empty.
bl_shard_range_t bl_shard_message(const bl_ownership_t *ownership, const bl_parameter_place_t *places, uint32_t i,
                                  uint32_t copy);

// Returns how many shares of a parameter report their squares.
static inline uint32_t bl_shard_count(const bl_parameter_t *parameter, uint32_t data_parts) {
  return parameter->rank > 1 ? bl_grid_shares(data_parts) : 1;
}
// Returns how many squares `copy` reports of a chunk's places.
uint32_t bl_shard_squares(const bl_ownership_t *ownership, const bl_parameter_place_t *places, uint32_t count,
                          uint32_t copy);

// Places the moments of a chunk's parameters, whose places are `places` [count]: those of the range that `copy` owns,
// each on a cache line. With one copy all moments are placed as their weights are. Writes the element offset of each
// that is placed (offsets NULL: nothing is written). Returns the elements of the arena.
uint64_t bl_shard_moments(const bl_ownership_t *ownership, const bl_parameter_place_t *places, uint32_t count,
                          uint32_t copy, uint64_t *offsets);
// Likewise for the masters of what `copy` owns of the weights that do not stay in fp32 on every copy: those of which
// `resident` [count] (bl_resident_weights) says BL_RESIDENT_NOWHERE. There are several copies.
uint64_t bl_shard_masters(const bl_ownership_t *ownership, const bl_parameter_place_t *places, uint32_t count,
                          uint32_t copy, const uint64_t *resident, uint64_t *offsets);

#endif
