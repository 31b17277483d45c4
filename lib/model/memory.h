// SPDX-License-Identifier: Apache-2.0
// What one chunk keeps in memory, by the tags that metrics and planner share.
//
// Pure. Thread: values, any thread.
#ifndef BALLAST_MODEL_MEMORY_H
#define BALLAST_MODEL_MEMORY_H

#include "model/chunk_span.h"
#include "model/layout.h"
#include "model/model.h"

typedef struct bl_chunk_memory {
  uint64_t weight_bytes;
  uint64_t gradient_bytes;  // two buffers of the token embedding where embedding and tied head are both here
  uint64_t optimizer_bytes; // first and second moment
  uint64_t slot_bytes;      // of one slot
  uint64_t evict_bytes;     // of what moves when a block is evicted
  uint64_t edge_bytes;      // of one edge buffer
  uint64_t workspace_bytes; // without the back end's own
} bl_chunk_memory_t;

bl_status_t bl_chunk_memory(const bl_model_t *model, bl_chunk_span_t span, bl_layout_options_t options,
                            bl_chunk_memory_t *memory) BL_MUST_USE;

#endif
