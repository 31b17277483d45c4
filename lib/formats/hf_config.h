// SPDX-License-Identifier: Apache-2.0
// Hugging Face `config.json` of GPT-2, LLaMA, Mistral, Qwen, Phi and Gemma models, as transformers 4 and 5 write it.
//
// model_type is gpt2, llama, mistral, qwen2, qwen3, phi3, gemma, gemma2 or gemma3_text. There are three kinds of keys
// (the tables in hf_family.c list them):
//   - read: sizes, epsilons, tying, rotation, windows, softcaps and scales, in both spellings if there are two
//     (n_embd | hidden_size, ...; rope_theta | rope_parameters.rope_theta; sliding_window_pattern | layer_types);
//   - refused by name, because they change the mathematics and are not supported: another activation, biases other
//     than qwen2's, yarn and dynamic rotations, longrope in models other than phi3, bidirectional attention, windows in
//     an order that bl_model_t cannot express, quantization, attention scaled by layer, cross attention, ... A key with
//     the value that Ballast computes with anyway (e.g. "attention_bias": false) is accepted;
//   - ignored. Some do not change what a model computes: token ids (docs/models.md says what pad_token_id does to a
//     gradient in transformers), summary heads, caches, versions, and torch_dtype or dtype, which repeat the storage
//     type of the safetensors header. Others are choices of the training that made the file, not of the model: dropout
//     (resid_pdrop, embd_pdrop, attn_pdrop, attention_dropout) and initializer_range.
//     Ballast trains without dropout.
//
// PURE. Thread: any.
#ifndef BALLAST_FORMATS_HF_CONFIG_H
#define BALLAST_FORMATS_HF_CONFIG_H

#include "base/error.h"
#include "model/model.h"

#include <stddef.h>

// Parses a config.json. Sets `seq` to n_positions or max_position_embeddings, and `positions` and `shard` to 0. Absent
// keys take the defaults of transformers for this model_type (hf_family.c). Sizes have no defaults and must be present,
// except num_key_value_heads, head_dim and n_inner. BL_INVALID names the key, its value and what was expected (also if
// heads do not divide hidden). BL_UNIMPLEMENTED names a key that changes the mathematics in an unsupported way. Callers
// check the numbers with bl_model_check.
BL_MUST_USE bl_status_t bl_hf_config_parse(bl_model_t *model, const char *bytes, size_t size_bytes, bl_error_t *err);

// Writes a config.json that bl_hf_config_parse reads back as the same model (a gpt2 with all positions). It has no
// token ids, because bl_model_t has none. transformers 4 and 5 open it. *text is malloc'd, freed by the caller.
// BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_hf_config_write(const bl_model_t *model, char **text, size_t *text_bytes, bl_error_t *err);

// Checks that a model which a file describes computes what `wanted` does. Lengths of sequences (`seq`, `positions`) may
// differ. BL_INVALID names the first key of config.json that would be written otherwise, and both values. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_hf_config_compare(const bl_model_t *found, const bl_model_t *wanted, bl_error_t *err);

#endif
