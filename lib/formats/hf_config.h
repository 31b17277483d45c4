// SPDX-License-Identifier: Apache-2.0
// Hugging Face `config.json` of GPT-2, LLaMA, Mistral, Qwen, Phi and Gemma models, as transformers 4 and 5 write it.
//
// model_type is gpt2, llama, mistral, qwen2, qwen3, phi3, gemma, gemma2 or gemma3_text. Three kinds of keys (the tables in
// hf_family.c are the list):
//   - read: sizes, epsilons, tying, rotation, windows, caps and scales, with both spellings where there are two
//     (n_embd | hidden_size, ...; rope_theta | rope_parameters.rope_theta; sliding_window_pattern | layer_types);
//   - refused by name, because they change the mathematics and are not supported: another activation, biases beside qwen2's,
//     yarn and dynamic rotations, longrope but of phi3, attention in both directions, windows in an order that bl_model_t cannot say,
//     quantization, attention scaled by layer, cross attention, ...; a key that holds the value we compute with anyway (e.g.
//     "attention_bias": false) is accepted;
//   - ignored, because they do not change what a model computes (token ids, summary heads, caches, versions; torch_dtype and
//     dtype say how the file stores weights, which the safetensors header says too), or because they are choices of the
//     training that made the file, not of the model: dropout (resid_pdrop, embd_pdrop, attn_pdrop, attention_dropout) and
//     initializer_range. Ballast trains without dropout.
//
// PURE. Thread: any.
#ifndef BALLAST_FORMATS_HF_CONFIG_H
#define BALLAST_FORMATS_HF_CONFIG_H

#include "base/error.h"
#include "model/model.h"

#include <stddef.h>

// Reads the bytes of a config.json. `seq` is n_positions or max_position_embeddings, `positions` and `shard` are 0. Absent
// keys take the defaults that transformers has for this model_type (hf_family.c); sizes have none here and must be present,
// but for num_key_value_heads, head_dim and n_inner. BL_INVALID names the key, what it holds and what was expected (also:
// heads that do not divide hidden). BL_UNIMPLEMENTED names a key that changes the mathematics in a way not supported. A
// caller has bl_model_check look at the numbers.
BL_MUST_USE bl_status_t bl_hf_config_parse(bl_model_t *model, const char *bytes, size_t size_bytes, bl_error_t *err);

// Writes what bl_hf_config_parse reads back as the same model (of gpt2 with all positions), and no token ids: a model trained
// here has none. transformers 4 and 5 open it. *text is malloc'd, freed by the caller. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_hf_config_write(const bl_model_t *model, char **text, size_t *text_bytes, bl_error_t *err);

#endif
