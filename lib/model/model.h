// SPDX-License-Identifier: Apache-2.0
// The architectures that Ballast trains, as numbers and properties (DESIGN.md section 5). There are two kinds of
// layers:
//
//   gpt2   LayerNorm, learned positions, biases, one fused qkv projection, GELU (tanh form), ffn usually 4 hidden
//   llama  RMSNorm, rotary positions, grouped-query attention, a gated feed-forward layer
//
// What models of the second kind (Mistral, Qwen, Phi, Gemma) have in addition are properties. Any model may have any of
// them.
//
// Pure. Thread: values, any thread.
#ifndef BALLAST_MODEL_MODEL_H
#define BALLAST_MODEL_MODEL_H

#include "base/error.h"
#include "base/status.h"
#include "model/gate.h"
#include "model/rope.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum bl_family {
  BL_FAMILY_GPT2,
  BL_FAMILY_LLAMA,
} bl_family_t;

// The name that transformers gives to a llama model. It does not affect the computation, which the other fields
// determine.
typedef enum bl_variant {
  BL_VARIANT_LLAMA,
  BL_VARIANT_MISTRAL,
  BL_VARIANT_QWEN2,
  BL_VARIANT_QWEN3,
  BL_VARIANT_PHI3,
  BL_VARIANT_GEMMA,
  BL_VARIANT_GEMMA2,
  BL_VARIANT_GEMMA3,
  BL_VARIANTS
} bl_variant_t;

typedef struct bl_model {
  bl_family_t family;
  uint32_t layers;
  uint32_t hidden;
  uint32_t heads;
  uint32_t kv_heads; // = heads in gpt2; divides heads in llama
  uint32_t head_dim; // usually hidden / heads; llama configurations may say otherwise
  uint32_t ffn;      // width of the feed-forward layer
  uint32_t vocab;
  uint32_t seq;        // tokens of one training sequence
  uint32_t positions;  // rows of gpt2's position table if a checkpoint has more than seq; 0: seq
  bool tied;           // the head uses the token embedding
  uint32_t shard;      // heads, kv_heads and ffn are one of so many tensor-parallel parts (for measurements); 0: whole
  double norm_epsilon; // 1e-5 unless a config.json says otherwise

  // Only for llama.
  bl_variant_t variant;
  bl_rope_t rope;
  bl_gate_t gate;
  bool qkv_bias;  // queries, keys and values have biases; gpt2's always have them
  bool fused;     // q, k and v are one tensor of the file, gate and up are another
  bool head_norm; // RMSNorm of each query and key head, with gains of its own, before rotation
  // Outputs of attention and feed-forward layer are normalised before they are added to the residual.
  bool post_norm;
  bool gains_from_one;    // gains of norms are stored as gain - 1
  double embedding_scale; // factor of token embeddings where they enter the first layer; 0: 1
  double score_scale;     // factor of query times key; 0: 1 / sqrt(head_dim)
  double score_softcap;   // scores s become softcap tanh(s / softcap) before they are masked; 0: no softcap
  double logit_softcap;   // likewise for the head's logits
  uint32_t window;        // tokens that a query sees, including itself, in layers with a window; 0: no layer has one
  uint32_t window_first;  // the first layer with a window
  uint32_t window_period; // from there on, every layer with (layer + 1) % period == 0 has none; 0: all have one
  bl_rope_t window_rope;  // of layers with a window; theta 0: as the other layers
} bl_model_t;

#define BL_NORM_EPSILON_DEFAULT 1e-5
#define BL_ROPE_THETA_DEFAULT   10000.0
// Position tables and token ids are indexed with 32 bits. These bounds keep every product of two of them in 64 bits.
#define BL_MODEL_DIMENSION_MAX (1u << 24)
#define BL_MODEL_LAYERS_MAX    (1u << 14)

// Checks that the numbers describe a model that can be computed: nothing is zero, kv_heads divides heads, head_dim is
// even if positions rotate, and gpt2 has kv_heads = heads and heads * head_dim = hidden (of all parts together).
// BL_INVALID names the field as a job file spells it ("model.heads: ...").
bl_status_t bl_model_check(const bl_model_t *model, bl_error_t *err) BL_MUST_USE;

const char *bl_family_name(bl_family_t family); // "gpt2", "llama"

// Widths of the query projection (heads * head_dim), of keys or values, and of query, key and value together.
static inline uint32_t bl_model_query_width(const bl_model_t *model) {
  return model->heads * model->head_dim;
}
static inline uint32_t bl_model_kv_width(const bl_model_t *model) {
  return model->kv_heads * model->head_dim;
}
static inline uint32_t bl_model_qkv_width(const bl_model_t *model) {
  return (model->heads + 2 * model->kv_heads) * model->head_dim;
}
// Rows of gpt2's position table.
static inline uint32_t bl_model_positions(const bl_model_t *model) {
  return model->positions != 0 ? model->positions : model->seq;
}
// Columns of the output of the first feed-forward product: ffn for gpt2, gate and up (2 ffn) for llama.
static inline uint32_t bl_model_pre_width(const bl_model_t *model) {
  return model->family == BL_FAMILY_LLAMA ? 2 * model->ffn : model->ffn;
}
// True if a layer has a window by window_first and window_period of a model.
static inline bool bl_window_is_of(uint32_t first, uint32_t period, uint32_t layer) {
  return layer >= first && (period == 0 || (layer + 1) % period != 0);
}
// True if layer `layer` of the model has a window. A window hides nothing from sequences that are not longer, but its
// layer still has the rotation of layers with a window.
static inline bool bl_model_has_window(const bl_model_t *model, uint32_t layer) {
  return model->window != 0 && bl_window_is_of(model->window_first, model->window_period, layer);
}
// Returns the most keys that a query sees in layers with a window, or in the others.
static inline uint32_t bl_model_keys(const bl_model_t *model, bool window) {
  return window && model->window < model->seq ? model->window : model->seq;
}
// Returns the rotation of layers with a window, or of the other layers; gpt2's do not rotate.
static inline const bl_rope_t *bl_model_rope(const bl_model_t *model, bool window) {
  return window && model->window_rope.theta != 0 ? &model->window_rope : &model->rope;
}
// Vectors of a norm: weight and bias (LayerNorm) or weight alone (RMSNorm).
static inline uint32_t bl_model_norm_vectors(const bl_model_t *model) {
  return model->family == BL_FAMILY_LLAMA ? 1 : 2;
}

// Returns the scalars of all parameters; a tied head counts once.
uint64_t bl_model_parameter_elements(const bl_model_t *model);

#endif
