// SPDX-License-Identifier: Apache-2.0
// What a chunk needs besides weights and blocks while one operation runs. Chunks of a stage run one after the other and
// share the largest of their workspaces; the compute back end's own scratch comes on top.
//
// Layers: one tensor that holds, one after the other, the gradients that no saved tensor makes room for (dact, dnorm,
// dattention), then the segments that live inside one operation. The head runs before the layers of its chunk and uses
// the same bytes: normalised hidden state, its statistics, losses, and logits piece by piece (EXECUTION.md 6).
//
// Pure. Thread: values, any thread.
#ifndef BALLAST_MODEL_WORKSPACE_H
#define BALLAST_MODEL_WORKSPACE_H

#include "model/layout.h"

#include <stdint.h>

// Logits exist in pieces of about this many scalars: large enough that the head's weight gradient, which every piece
// reads and writes, does not dominate.
#define BL_HEAD_LOGITS_ELEMENTS ((uint64_t)1 << 24)
#define BL_HEAD_ROWS_MULTIPLE   64

typedef struct bl_workspace {
  uint64_t bytes;
  uint64_t shared_offset_bytes; // of BL_LIFETIME_OPERATION segments; before it [T, widest] floats
  uint64_t head_rows;           // rows of one piece of logits; 0 in a chunk without head. The rest runs as one smaller
                                // piece. A function of vocabulary and T alone, so that no bit depends on memory
  uint64_t stats_offset_bytes;  // of the final norm; before it the normalised state [T, hidden]
  uint64_t losses_offset_bytes; // [T] doubles
  uint64_t logits_offset_bytes; // [head_rows, vocab]
} bl_workspace_t;

bl_workspace_t bl_workspace_plan(const bl_layout_t *layout);

#endif
