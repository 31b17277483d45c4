// SPDX-License-Identifier: Apache-2.0
// What a chunk needs besides weights and blocks while one operation runs. Chunks of a stage run one after the other and
// share the largest of their workspaces; the compute back end's own scratch comes on top.
//
// Layers: the segments that live inside one layer of an operation, those that live from I to W of a fused B, then
// either one tensor that holds, one after the other, the gradients that no saved tensor makes room for (dact, dnorm,
// dattention), or, with full recomputation, what F needs for the layer it is at and the x1 of it and the next one.
// The head runs before the layers of its chunk and uses the same bytes from the start: normalised hidden state, its
// statistics, losses, and logits (always float) piece by piece (EXECUTION.md 6).
//
// Pure. Thread: values, any thread.
#ifndef BALLAST_MODEL_WORKSPACE_H
#define BALLAST_MODEL_WORKSPACE_H

#include "model/layout.h"
#include "model/windows.h"

#include <stdint.h>

// Logits exist in pieces of about this many scalars, unless the back end says otherwise (bl_logits_t): large enough that the
// head's weight gradient, which every piece reads and writes, does not dominate on a CPU.
#define BL_HEAD_LOGITS_ELEMENTS ((uint64_t)1 << 24)
#define BL_HEAD_ROWS_MULTIPLE   64

typedef struct bl_workspace {
  uint64_t bytes;
  uint64_t shared_offset_bytes;   // of BL_LIFETIME_LAYER segments
  uint64_t backward_offset_bytes; // of BL_LIFETIME_BACKWARD segments
  uint64_t scratch_offset_bytes;  // of [T, widest] in I
  uint64_t layer_offset_bytes;    // of bl_layout_layer_bytes, in an F that keeps nothing
  uint64_t x_offset_bytes[2];     // of the x1 of even and odd layers in such an F; equal offsets where one is enough
  uint64_t head_rows; // rows of one piece of logits; 0 in a chunk without head. The rest runs as one smaller
                      // piece. A function of vocabulary, T and the back end alone, so that no bit depends on memory
  uint64_t stats_offset_bytes;   // of the final norm; before it the normalised state [T, hidden]
  uint64_t losses_offset_bytes;  // [T] doubles
  uint64_t logits_stride;        // floats between rows of logits; 0: dense. What is behind the columns is never read
  uint64_t logits_offset_bytes;  // float [head_rows, vocab]; of a vocabulary in parts [parts here][head_rows, a part's]
  uint64_t windows_offset_bytes; // where one rank has all parts of a layer
  bl_windows_t windows;
} bl_workspace_t;

bl_workspace_t bl_workspace_plan(const bl_layout_t *layout);
// Rows of one piece of logits of a micro-batch; the same for every split.
uint64_t bl_workspace_head_rows(const bl_model_t *model, bl_layout_options_t options);

#endif
