// SPDX-License-Identifier: Apache-2.0
// Hugging Face `config.json` of GPT-2 and LLaMA models, as transformers 4 and 5 write it.
//
// Three kinds of keys (the tables in hf_config.c are the list):
//   - read: sizes, epsilons, RoPE base, tying; with both spellings where there are two (n_embd | hidden_size,
//   ...;
//     rope_theta | rope_parameters.rope_theta; torch_dtype and dtype say how the file stores weights, which
//     the safetensors header says too: ignored);
//   - refused by name, because they change the mathematics and are not supported: another activation, biases
//   in
//     LLaMA, RoPE scaling, sliding windows, quantization, attention scaled by layer, cross attention, ...; a
//     key that holds the value we compute with anyway (e.g. "attention_bias": false) is accepted;
//   - ignored, because they do not change what a model computes (token ids, summary heads, caches, versions),
//   or
//     because they are choices of the training that made the file, not of the model: dropout (resid_pdrop,
//     embd_pdrop, attn_pdrop, attention_dropout) and initializer_range. Ballast trains without dropout.
//
// PURE. Thread: any.
#ifndef BALLAST_FORMATS_HF_CONFIG_H
#define BALLAST_FORMATS_HF_CONFIG_H

#include "base/error.h"
#include "model/model.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum { BL_HF_GPT2, BL_HF_LLAMA } bl_hf_family_t;

typedef struct bl_hf_config {
  bl_hf_family_t family; // "model_type"
  uint32_t layers;       // n_layer | num_hidden_layers
  uint32_t hidden;       // n_embd | hidden_size
  uint32_t heads;        // n_head | num_attention_heads
  uint32_t kv_heads;     // num_key_value_heads; heads for gpt2 and where absent
  uint32_t head_dim;     // head_dim; hidden / heads for gpt2 and where absent
  uint32_t ffn;          // n_inner (absent or null: 4 hidden) | intermediate_size
  uint32_t vocab;        // vocab_size
  uint32_t seq;          // n_positions | max_position_embeddings
  bool tied;             // tie_word_embeddings; absent: true for gpt2, false for llama
  double norm_epsilon;   // layer_norm_epsilon (1e-5) | rms_norm_eps (1e-6)
  bl_rope_t rope;        // rope_theta, absent: 10000, 0 for gpt2; rope_scaling | rope_parameters
  uint32_t window;       // sliding_window of mistral; 0: none
  bl_variant_t variant;  // of llama, by "model_type"; qwen2 has biases of queries, keys and values
} bl_hf_config_t;

// Reads the bytes of a config.json. Absent keys take transformers' defaults where the comments above give
// one; sizes have no default here and must be present. BL_INVALID names the key, what it holds and what was
// expected (also: heads that do not divide hidden). BL_UNIMPLEMENTED names a key that changes the mathematics
// in a way not supported.
BL_MUST_USE bl_status_t bl_hf_config_parse(bl_hf_config_t *config, const char *bytes, size_t size_bytes,
                                           bl_error_t *err);

// Writes what bl_hf_config_parse reads, and no token ids: a model trained here has none. transformers 4 and 5 open it.
// *text is malloc'd, freed by the caller. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_hf_config_write(const bl_hf_config_t *config, char **text, size_t *text_bytes,
                                           bl_error_t *err);

#endif
