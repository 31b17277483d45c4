// SPDX-License-Identifier: Apache-2.0
// The weights that a device keeps in fp32 if the optimizer's state lies in host memory (train.optimizer_memory), or if
// copies share out the masters: those that operations read in fp32. With dtype fp32 these are all weights. With bf16,
// products read rounded copies, so the masters of their weights need not be on the device.
//
//   uint64_t elements = bl_resident_weights(&model, span, BL_DTYPE_BF16, places, count, offsets);
//   ... weight i lies at offsets[i] of an arena of `elements` floats, or nowhere: BL_RESIDENT_NOWHERE ...
//
// Pure. Thread: any.
#ifndef BALLAST_MODEL_RESIDENT_H
#define BALLAST_MODEL_RESIDENT_H

#include "model/chunk_span.h"
#include "model/dtype.h"
#include "model/grid.h"

#define BL_RESIDENT_NOWHERE UINT64_MAX

// Returns whether each copy of a chunk keeps only the masters of what it updates (bl_shard_masters).
static inline bool bl_resident_shares_masters(bl_dtype_t dtype, bl_copies_t copies, bool optimizer_on_host) {
  return dtype == BL_DTYPE_BF16 && bl_copies_count(copies) > 1 && !optimizer_on_host;
}

// Places the weights of a chunk, whose places are `places` [count]. Weights that one operation reads together follow
// each other as in `places`; every other weight starts on a cache line. Writes the element offset of each (offsets
// NULL: nothing is written). Returns the elements of the arena, a multiple of a cache line.
uint64_t bl_resident_weights(const bl_model_t *model, bl_chunk_span_t span, bl_dtype_t dtype,
                             const bl_parameter_place_t *places, uint32_t count, uint64_t *offsets);

#endif
