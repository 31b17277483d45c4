// SPDX-License-Identifier: Apache-2.0
// The models that a config.json may describe, as tables: what each is called, what holds of all of its kind, which keys it
// has, and which keys may only hold one value. Shared inside lib/formats; reading and writing use the same tables.
//
// What the keys mean and what they default to is taken from transformers 5 (configuration_*.py and modeling_*.py of each
// model, modeling_rope_utils.py) and from files that transformers 4 wrote.
//
// Thread: constants, any thread.
#ifndef BALLAST_FORMATS_HF_FAMILY_H
#define BALLAST_FORMATS_HF_FAMILY_H

#include "formats/hf_keys.h"
#include "model/model.h"

#include <stddef.h>

// A size of the model, under one of two names.
typedef struct bl__hf_size {
  const char *key, *other; // `other` may be NULL
  size_t offset;           // of a uint32_t in bl_model_t
  bool required;
} bl__hf_size_t;

// Which layers have a window.
typedef enum bl__hf_windows {
  BL__HF_WINDOWS_NONE,
  BL__HF_WINDOWS_ALL,    // all, where sliding_window is a number
  BL__HF_WINDOWS_FROM,   // layer_types, else from max_window_layers on where use_sliding_window is true
  BL__HF_WINDOWS_BETWEEN // layer_types, else all but every so many-th (sliding_window_pattern)
} bl__hf_windows_t;

typedef struct bl__hf_family {
  const char *model_type, *architecture;
  // What all models of the family have, and what keys that are absent mean. kv_heads and head_dim 0: heads, hidden / heads.
  bl_model_t preset;
  bl__hf_windows_t windows;
  const char *rotations; // rope_type: which, separated by '|'
  bool turns_partly;     // partial_rotary_factor
  bool turns_by_layer;   // layers with a window rotate otherwise: rope_local_base_freq, rope_parameters of two kinds
  bool scales_embedding; // by sqrt(hidden)
  uint32_t score_scalar; // query_pre_attn_scalar where it is absent; 0: no such key
  bool caps_scores;      // attn_logit_softcapping
  bool caps_logits;      // final_logit_softcapping
} bl__hf_family_t;

// By variant; the family of layers is llama.
extern const bl__hf_family_t bl__hf_families[BL_VARIANTS];
// End with a key of NULL.
extern const bl__hf_size_t bl__hf_gpt2_sizes[], bl__hf_llama_sizes[];

#define BL__HF_GPT2 BL_VARIANTS // in place of a variant

// BL_UNIMPLEMENTED names a key that changes what a model of this variant computes, and what it may hold.
BL_MUST_USE bl_status_t bl__hf_rules_check(const json_t *document, uint32_t variant, bl_error_t *err);

#endif
