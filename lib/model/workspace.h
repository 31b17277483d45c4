// SPDX-License-Identifier: Apache-2.0
// The memory that a chunk needs, besides weights and blocks, while one operation runs. Chunks of a stage run one after
// the other and share the largest of their workspaces. The scratch of the compute back end is added to it.
//
// For layers it holds the segments that live inside one layer of an operation, then those that live from I to W of a
// fused B. After them comes a tensor for the gradients that have no saved tensor to overwrite (dact, dnorm,
// dattention), one after the other. With full recomputation, F uses the same bytes for the segments of its current
// layer and for the x1 of this layer and the next.
//
// The head runs before the layers of its chunk and uses the same bytes from the start: normalised hidden state, its
// statistics, losses, and logits (always float) piece by piece (EXECUTION.md 6).
//
// Pure. Thread: values, any thread.
#ifndef BALLAST_MODEL_WORKSPACE_H
#define BALLAST_MODEL_WORKSPACE_H

#include "model/exchange_buffers.h"
#include "model/layout.h"

#include <stdint.h>

// Approximate scalars in one piece of logits, unless the back end says otherwise (bl_logits_t). This is large enough
// that the head's weight gradient, which every piece reads and writes, does not dominate on a CPU.
#define BL_HEAD_LOGITS_ELEMENTS ((uint64_t)1 << 24)
#define BL_HEAD_ROWS_MULTIPLE   64

typedef struct bl_workspace {
  uint64_t bytes;
  uint64_t shared_offset_bytes;   // of BL_LIFETIME_LAYER segments
  uint64_t backward_offset_bytes; // of BL_LIFETIME_BACKWARD segments
  uint64_t scratch_offset_bytes;  // of [T, widest] in I
  uint64_t layer_offset_bytes;    // of bl_layout_layer_bytes, for an F that keeps nothing
  uint64_t x_offset_bytes[2]; // of the x1 of even and odd layers in such an F; equal offsets if one buffer is enough
  // Rows of one piece of logits; 0 in a chunk without head. The remaining rows run as one smaller piece. The number
  // depends on vocabulary, T and the back end alone, so that no bit depends on memory.
  uint64_t head_rows;
  uint64_t stats_offset_bytes;  // of the final norm, after the normalised state [T, hidden]
  uint64_t losses_offset_bytes; // [T] doubles
  // Floats between rows of logits, of every part; 0: dense. Floats after the columns are never read.
  uint64_t logits_stride;
  uint64_t logits_offset_bytes;           // float [parts here][head_rows, columns of a part]
  uint64_t exchange_buffers_offset_bytes; // used if one rank has all parts of a layer
  bl_exchange_buffers_t exchange_buffers;
} bl_workspace_t;

bl_workspace_t bl_workspace_plan(const bl_layout_t *layout);
// Returns the rows of one piece of logits of a micro-batch; the same however layers are divided.
uint64_t bl_workspace_head_rows(const bl_model_t *model, bl_layout_options_t options);

#endif
