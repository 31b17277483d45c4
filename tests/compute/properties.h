// SPDX-License-Identifier: Apache-2.0
// What models of the llama family may have beside (model/model.h), all at once, for tests of a whole chunk.
#ifndef BALLAST_TESTS_COMPUTE_PROPERTIES_H
#define BALLAST_TESTS_COMPUTE_PROPERTIES_H

#include "model/model.h"

// All that Gemma 2 and 3 have: norms of heads and of what projections make, gains from one, GeGLU, scales, softcaps
// that matter, and a window with a rotation of its own in every second layer. And Qwen2's biases of queries, keys and
// values.
static inline bl_model_t with_norms_softcaps_and_windows(bl_model_t model) {
  model.head_norm = model.post_norm = model.gains_from_one = model.qkv_bias = true;
  model.gate = BL_GATE_GELU;
  model.embedding_scale = 3;
  model.score_scale = 0.4;
  model.score_softcap = 1.5;
  model.logit_softcap = 2;
  model.window = model.seq / 2;
  model.window_period = 2;
  model.window_rope = (bl_rope_t){.kind = BL_ROPE_LINEAR, .theta = 50, .factor = 2};
  return model;
}

// What Phi-3 has: fused projections, heads of which only some dimensions rotate, a window in every layer.
static inline bl_model_t fused_with_a_window(bl_model_t model) {
  model.fused = true;
  model.rope.dims = model.head_dim / 4 * 2;
  model.window = 3;
  return model;
}

#endif
