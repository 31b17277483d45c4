// SPDX-License-Identifier: Apache-2.0
// The memory in which the parts of a layer meet (model/split.h): what ranks that share a layer show each other, or,
// where one rank has all parts, only what waits to be added up.
//
// Pure. Thread: values, any thread.
#ifndef BALLAST_MODEL_WINDOWS_H
#define BALLAST_MODEL_WINDOWS_H

#include "model/layout.h"

#include <stdint.h>

typedef enum bl_window {
  BL_WINDOW_ROWS,     // all rows of a tensor [T, hidden] of which every rank has its own; or sums of norms' gradients
  BL_WINDOW_SUM,      // [parts here][T, hidden]: what each part adds to the same rows
  BL_WINDOW_HEAD_SUM, // the same of the head, made piece by piece
  BL_WINDOW_SCORES,   // of the parts of the vocabulary: statistics of each row of a piece, or the logits of one row
  BL_WINDOWS
} bl_window_t;

// At the start, where layers are shared: how far the rank is (collective/progress.h).
#define BL_WINDOWS_PAGE_BYTES 128

typedef struct bl_windows {
  uint64_t offset_bytes[BL_WINDOWS];
  uint64_t staging_offset_bytes; // [parts elsewhere][own rows, hidden]: rows of sums that come from other machines
  uint64_t bytes;                // of all; 0 where layers are whole
} bl_windows_t;

// For chunks of this layout of which one has the head, or none. Those that every chunk has come first, so that a rank's
// chunks share one block made for all of them.
bl_windows_t bl_windows_plan(const bl_model_t *model, bl_layout_options_t options, bool head);

#endif
