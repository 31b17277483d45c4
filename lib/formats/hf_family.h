// SPDX-License-Identifier: Apache-2.0
// The models that a config.json may describe, as tables: the name of each, the properties that all models of its kind
// have, its keys, and the keys that may have only one value. Private to lib/formats: reading and writing use the same
// tables.
//
// The meanings and defaults of the keys are taken from transformers 5 (configuration_*.py and modeling_*.py of each
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

// How the keys say which layers have a window.
typedef enum bl__hf_windows {
  BL__HF_WINDOWS_NONE,
  BL__HF_WINDOWS_ALL,    // all layers if sliding_window is a number
  BL__HF_WINDOWS_FROM,   // layer_types, otherwise layers from max_window_layers on if use_sliding_window is true
  BL__HF_WINDOWS_BETWEEN // layer_types, otherwise all layers except every n-th, n = sliding_window_pattern
} bl__hf_windows_t;

typedef struct bl__hf_family {
  const char *model_type, *architecture;
  // Properties of all models of the family, and the defaults of absent keys. kv_heads 0: heads; head_dim 0: hidden /
  // heads.
  bl_model_t preset;
  bl__hf_windows_t windows;
  const char *rotations; // the values of rope_type that are supported, separated by '|'
  bool rotates_partly;   // has partial_rotary_factor
  bool rotates_by_layer; // layers with a window have a rotation of their own: rope_local_base_freq, or two objects in
                         // rope_parameters
  bool scales_embedding; // by sqrt(hidden)
  uint32_t score_scalar; // default of query_pre_attn_scalar; 0: no such key
  bool softcaps_scores;  // has attn_logit_softcapping
  bool softcaps_logits;  // has final_logit_softcapping
} bl__hf_family_t;

// Indexed by variant; all have layers of the llama kind.
extern const bl__hf_family_t bl__hf_families[BL_VARIANTS];
// Tables that end with a NULL key.
extern const bl__hf_size_t bl__hf_gpt2_sizes[], bl__hf_llama_sizes[];

#define BL__HF_GPT2 BL_VARIANTS // used in place of a variant

// Checks the keys that may have only one value. BL_UNIMPLEMENTED names a key that would change what a model of this
// variant computes, and its permitted values.
BL_MUST_USE bl_status_t bl__hf_rules_check(const json_t *document, uint32_t variant, bl_error_t *err);

#endif
