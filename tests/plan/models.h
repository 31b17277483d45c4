// SPDX-License-Identifier: Apache-2.0
// Models of published experiments.
#ifndef BALLAST_TESTS_PLAN_MODELS_H
#define BALLAST_TESTS_PLAN_MODELS_H

#include "model/model.h"

static inline bl_model_t gpt(uint32_t layers, uint32_t hidden, uint32_t heads) {
  return (bl_model_t){.family = BL_FAMILY_GPT2,
                      .layers = layers,
                      .hidden = hidden,
                      .heads = heads,
                      .kv_heads = heads,
                      .head_dim = hidden / heads,
                      .ffn = 4 * hidden,
                      .vocab = 51200,
                      .seq = 2048,
                      .tied = true,
                      .norm_epsilon = 1e-5};
}

static inline bl_model_t llama_65b(void) {
  return (bl_model_t){.family = BL_FAMILY_LLAMA,
                      .layers = 80,
                      .hidden = 8192,
                      .heads = 64,
                      .kv_heads = 64,
                      .head_dim = 128,
                      .ffn = 22016,
                      .vocab = 32000,
                      .seq = 2048,
                      .norm_epsilon = 1e-5,
                      .rope.theta = 10000};
}

#endif
