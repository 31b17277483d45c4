// SPDX-License-Identifier: Apache-2.0
// Which weights a device keeps in fp32 where the optimizer's state lies in memory of the host
// (train.optimizer_memory): those that operations read as they are. In fp32 these are all; in bf16 products read rounded
// copies, so that the masters of their weights need not be on the device.
//
//   uint64_t elements = bl_resident_weights(&model, span, BL_DTYPE_BF16, places, count, offsets);
//   ... weight i lies at offsets[i] of an arena of so many floats, or nowhere: BL_RESIDENT_NOWHERE ...
//
// Pure. Thread: any.
#ifndef BALLAST_MODEL_RESIDENT_H
#define BALLAST_MODEL_RESIDENT_H

#include "model/chunk_span.h"
#include "model/dtype.h"

#define BL_RESIDENT_NOWHERE UINT64_MAX

// Of `places` [count], a chunk's. Weights that one operation reads together follow each other as in `places`;
// everything else starts on a cache line. Writes the element offset of each (offsets NULL: nothing is written); returns
// the elements of the arena, a multiple of a cache line.
uint64_t bl_resident_weights(const bl_model_t *model, bl_chunk_span_t span, bl_dtype_t dtype,
                             const bl_parameter_place_t *places, uint32_t count, uint64_t *offsets);

#endif
