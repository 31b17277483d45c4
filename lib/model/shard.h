// SPDX-License-Identifier: Apache-2.0
// Which copy of a chunk updates which tensor (ZeRO stage 1): the gradients of all copies are added there, its two
// moments are there and nowhere else, it writes both into checkpoints, and every other copy has the weight from there.
// Copies are replicas, or the two of a schedule of two pipes (model/grid.h).
//
// Tensors stay whole, so that sums over one and the files of a checkpoint know nothing of replicas. They are given out
// from the largest to the smallest, each to the copy that has least: over all chunks of a stage, or with two pipes, whose
// copies of two chunks of one stage are on the same other one, chunk by chunk. A tied embedding is the first copy's
// wherever it is held, so that both ends of its gradient meet in one pipe.
//
// Pure. Thread: any.
#ifndef BALLAST_MODEL_SHARD_H
#define BALLAST_MODEL_SHARD_H

#include "base/status.h"
#include "model/chunk_span.h"
#include "model/grid.h"

// owners[] of the parameters of a stage's chunks, chunk after chunk, each in the order of bl_chunk_span_parameter.
// At most BL_GRID_MOST_REPLICAS copies. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_shard_assign(const bl_model_t *model, const bl_chunk_span_t *spans, uint32_t span_count,
                                        bl_copies_t copies, uint32_t *owners);
// Their number.
uint32_t bl_shard_parameters(const bl_model_t *model, const bl_chunk_span_t *spans, uint32_t span_count);

// Where the moments of a chunk's parameters lie: of `places` [count] those of parameters whose owner is `copy`, each on a
// cache line.
// owners NULL: all, where their weights do. Writes the element offset of each that is there (offsets NULL: nothing is
// written); returns the elements of the arena.
uint64_t bl_shard_moments(const bl_parameter_place_t *places, uint32_t count, const uint32_t *owners, uint32_t copy,
                          uint64_t *offsets);

#endif
