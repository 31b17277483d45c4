// SPDX-License-Identifier: Apache-2.0
// Models that several tests use.
#ifndef BALLAST_TESTS_MODEL_MODELS_H
#define BALLAST_TESTS_MODEL_MODELS_H

#include "model/model.h"

// GPT-2 "small" as published: 124,439,808 parameters.
static inline bl_model_t gpt2_small(void) {
  return (bl_model_t){.family = BL_FAMILY_GPT2,
                      .layers = 12,
                      .hidden = 768,
                      .heads = 12,
                      .kv_heads = 12,
                      .head_dim = 64,
                      .ffn = 3072,
                      .vocab = 50257,
                      .seq = 1024,
                      .tied = true,
                      .norm_epsilon = BL_NORM_EPSILON_DEFAULT,
                      .rope.theta = BL_ROPE_THETA_DEFAULT};
}

// TinyLlama 1.1B as published: 1,100,048,384 parameters, grouped queries 32 on 4, untied.
static inline bl_model_t tiny_llama(void) {
  return (bl_model_t){.family = BL_FAMILY_LLAMA,
                      .layers = 22,
                      .hidden = 2048,
                      .heads = 32,
                      .kv_heads = 4,
                      .head_dim = 64,
                      .ffn = 5632,
                      .vocab = 32000,
                      .seq = 2048,
                      .tied = false,
                      .norm_epsilon = BL_NORM_EPSILON_DEFAULT,
                      .rope.theta = BL_ROPE_THETA_DEFAULT};
}

// As published: Qwen3 0.6B (596,049,920 parameters), Phi-3 mini (3,821,079,552), Gemma 2 2B (2,614,341,888) and Gemma 3 1B
// (999,885,952).
static inline bl_model_t qwen3_600m(void) {
  return (bl_model_t){.family = BL_FAMILY_LLAMA,
                      .variant = BL_VARIANT_QWEN3,
                      .layers = 28,
                      .hidden = 1024,
                      .heads = 16,
                      .kv_heads = 8,
                      .head_dim = 128,
                      .ffn = 3072,
                      .vocab = 151936,
                      .seq = 2048,
                      .tied = true,
                      .norm_epsilon = 1e-6,
                      .rope.theta = 1e6,
                      .head_norm = true};
}
static inline bl_model_t phi3_mini(void) {
  return (bl_model_t){.family = BL_FAMILY_LLAMA,
                      .variant = BL_VARIANT_PHI3,
                      .layers = 32,
                      .hidden = 3072,
                      .heads = 32,
                      .kv_heads = 32,
                      .head_dim = 96,
                      .ffn = 8192,
                      .vocab = 32064,
                      .seq = 4096,
                      .norm_epsilon = 1e-5,
                      .rope.theta = 1e4,
                      .fused = true,
                      .window = 2047};
}
static inline bl_model_t gemma2_2b(void) {
  return (bl_model_t){.family = BL_FAMILY_LLAMA,
                      .variant = BL_VARIANT_GEMMA2,
                      .layers = 26,
                      .hidden = 2304,
                      .heads = 8,
                      .kv_heads = 4,
                      .head_dim = 256,
                      .ffn = 9216,
                      .vocab = 256000,
                      .seq = 8192,
                      .tied = true,
                      .norm_epsilon = 1e-6,
                      .rope.theta = 1e4,
                      .gate = BL_GATE_GELU,
                      .post_norm = true,
                      .gains_from_one = true,
                      .embedding_scale = 48,
                      .score_softcap = 50,
                      .logit_softcap = 30,
                      .window = 4096,
                      .window_period = 2};
}
static inline bl_model_t gemma3_1b(void) {
  bl_model_t model = gemma2_2b();
  model.variant = BL_VARIANT_GEMMA3;
  model.hidden = 1152;
  model.heads = 4;
  model.kv_heads = 1;
  model.ffn = 6912;
  model.vocab = 262144;
  model.head_norm = true;
  model.score_softcap = model.logit_softcap = 0;
  model.rope.theta = 1e6;
  model.window_rope = (bl_rope_t){.theta = 1e4};
  model.window = 512;
  model.window_period = 6;
  return model;
}

#endif
