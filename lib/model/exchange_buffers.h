// SPDX-License-Identifier: Apache-2.0
// The memory through which the parts of a layer are combined (model/layer_parts.h). Ranks that share a layer read each
// other's buffers. If one rank has all parts, the buffers hold only the contributions that wait to be added.
//
// Pure. Thread: values, any thread.
#ifndef BALLAST_MODEL_EXCHANGE_BUFFERS_H
#define BALLAST_MODEL_EXCHANGE_BUFFERS_H

#include "model/layout.h"

#include <stdint.h>

typedef enum bl_exchange_buffer {
  BL_EXCHANGE_BUFFER_ROWS, // all rows of a tensor [T, hidden], each rank computes its own; or sums of norms' gradients
  BL_EXCHANGE_BUFFER_SUM,  // [parts here][T, hidden]: each part's contribution to the same rows
  BL_EXCHANGE_BUFFER_HEAD_SUM, // the same for the head, computed piece by piece
  BL_EXCHANGE_BUFFER_SCORES,   // vocabulary in parts: statistics of each row of a piece, or the logits of one row
  BL_EXCHANGE_BUFFERS
} bl_exchange_buffer_t;

// At the start of the buffers, if ranks share layers: the progress page of the rank (collective/progress.h).
#define BL_EXCHANGE_BUFFERS_PAGE_BYTES 128

typedef struct bl_exchange_buffers {
  uint64_t offset_bytes[BL_EXCHANGE_BUFFERS];
  uint64_t staging_offset_bytes; // [parts elsewhere][own rows, hidden]: rows of sums received from other machines
  uint64_t bytes;                // of all buffers; 0 if layers are whole
} bl_exchange_buffers_t;

// Plans the buffers for chunks of this layout; `head`: one of them has the head. The buffers that every chunk has come
// first, so the chunks of a rank share one block of memory that fits all of them.
bl_exchange_buffers_t bl_exchange_buffers_plan(const bl_model_t *model, bl_layout_options_t options, bool head);

#endif
