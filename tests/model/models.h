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

#endif
