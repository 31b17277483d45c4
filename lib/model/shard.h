// SPDX-License-Identifier: Apache-2.0
// Which copy of a chunk updates which tensor (ZeRO stage 1). This copy, the owner, adds the gradients of all copies,
// holds its two moments, which exist nowhere else, writes weight and moments into checkpoints, and sends the weight to
// every other copy. Copies are replicas, or the two copies of a schedule with two pipes (model/grid.h).
//
// Tensors stay whole, so that sums over a tensor and checkpoint files do not depend on replicas. They are assigned from
// the largest to the smallest, each to the copy with the least load so far. The load counts all chunks of a stage. With
// two pipes it counts chunk by chunk, because the copies of both chunks of a stage are on the same other stage. The
// first copy owns a tied embedding in every chunk, so that both ends of its gradient are in one pipe.
//
// Pure. Thread: any.
#ifndef BALLAST_MODEL_SHARD_H
#define BALLAST_MODEL_SHARD_H

#include "base/status.h"
#include "model/chunk_span.h"
#include "model/grid.h"

// Writes the owner of each parameter of a stage's chunks to owners[], chunk after chunk, each in the order of
// bl_chunk_span_parameter. At most BL_GRID_MOST_REPLICAS copies. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_shard_assign(const bl_model_t *model, const bl_chunk_span_t *spans, uint32_t span_count,
                                        bl_copies_t copies, uint32_t *owners);
// Returns the number of these parameters.
uint32_t bl_shard_parameters(const bl_model_t *model, const bl_chunk_span_t *spans, uint32_t span_count);

// Places the moments of a chunk's parameters, whose places are `places` [count]: those that `copy` owns, each on a
// cache line. If owners is NULL, all moments are placed as their weights are. Writes the element offset of each that is
// placed (offsets NULL: nothing is written). Returns the elements of the arena.
uint64_t bl_shard_moments(const bl_parameter_place_t *places, uint32_t count, const uint32_t *owners, uint32_t copy,
                          uint64_t *offsets);

#endif
