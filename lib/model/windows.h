// SPDX-License-Identifier: Apache-2.0
// The memory through which the parts of a layer are combined (model/split.h). Ranks that share a layer read each
// other's windows. If one rank has all parts, the windows hold only the contributions that wait to be added.
//
// Pure. Thread: values, any thread.
#ifndef BALLAST_MODEL_WINDOWS_H
#define BALLAST_MODEL_WINDOWS_H

#include "model/layout.h"

#include <stdint.h>

typedef enum bl_window {
  BL_WINDOW_ROWS, // all rows of a tensor [T, hidden], of which each rank computes its own; or sums of norms' gradients
  BL_WINDOW_SUM,  // [parts here][T, hidden]: each part's contribution to the same rows
  BL_WINDOW_HEAD_SUM, // the same for the head, computed piece by piece
  BL_WINDOW_SCORES,   // vocabulary in parts: statistics of each row of a piece, or the logits of one row
  BL_WINDOWS
} bl_window_t;

// At the start of the windows, if ranks share layers: the progress page of the rank (collective/progress.h).
#define BL_WINDOWS_PAGE_BYTES 128

typedef struct bl_windows {
  uint64_t offset_bytes[BL_WINDOWS];
  uint64_t staging_offset_bytes; // [parts elsewhere][own rows, hidden]: rows of sums received from other machines
  uint64_t bytes;                // of all windows; 0 if layers are whole
} bl_windows_t;

// Plans the windows for chunks of this layout; `head`: one of them has the head. The windows that every chunk has come
// first, so the chunks of a rank share one block of memory that fits all of them.
bl_windows_t bl_windows_plan(const bl_model_t *model, bl_layout_options_t options, bool head);

#endif
