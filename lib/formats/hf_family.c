// SPDX-License-Identifier: Apache-2.0
#include "formats/hf_family.h"

#define SIZE(field) offsetof(bl_model_t, field)

const bl__hf_size_t bl__hf_gpt2_sizes[] = {
    {"n_layer", "num_hidden_layers", SIZE(layers), true},
    {"n_embd", "hidden_size", SIZE(hidden), true},
    {"n_head", "num_attention_heads", SIZE(heads), true},
    {"n_inner", NULL, SIZE(ffn), false},
    {"vocab_size", NULL, SIZE(vocab), true},
    {"n_positions", "max_position_embeddings", SIZE(seq), true},
    {NULL, NULL, 0, false},
};

const bl__hf_size_t bl__hf_llama_sizes[] = {
    {"num_hidden_layers", NULL, SIZE(layers), true},
    {"hidden_size", NULL, SIZE(hidden), true},
    {"num_attention_heads", NULL, SIZE(heads), true},
    {"num_key_value_heads", NULL, SIZE(kv_heads), false},
    {"head_dim", NULL, SIZE(head_dim), false},
    {"intermediate_size", NULL, SIZE(ffn), true},
    {"vocab_size", NULL, SIZE(vocab), true},
    {"max_position_embeddings", NULL, SIZE(seq), true},
    {NULL, NULL, 0, false},
};

#define ROTATIONS "default|linear|llama3"

// For all models; fields that are not named are 0.
#define ALL(epsilon, base) .family = BL_FAMILY_LLAMA, .norm_epsilon = (epsilon), .rope.theta = (base)
#define GEMMA(base)        ALL(1e-6, base), .tied = true, .head_dim = 256, .gate = BL_GATE_GELU, .gains_from_one = true

const bl__hf_family_t bl__hf_families[BL_VARIANTS] = {
    [BL_VARIANT_LLAMA] = {.model_type = "llama",
                          .architecture = "LlamaForCausalLM",
                          .preset = {ALL(1e-6, 1e4), .variant = BL_VARIANT_LLAMA},
                          .rotations = ROTATIONS},
    [BL_VARIANT_MISTRAL] = {.model_type = "mistral",
                            .architecture = "MistralForCausalLM",
                            .preset = {ALL(1e-6, 1e4), .variant = BL_VARIANT_MISTRAL, .kv_heads = 8, .window = 4096},
                            .windows = BL__HF_WINDOWS_ALL,
                            .rotations = ROTATIONS},
    [BL_VARIANT_QWEN2] = {.model_type = "qwen2",
                          .architecture = "Qwen2ForCausalLM",
                          .preset = {ALL(1e-6, 1e4), .variant = BL_VARIANT_QWEN2, .kv_heads = 32, .qkv_bias = true,
                                     .window = 4096, .window_first = 28},
                          .windows = BL__HF_WINDOWS_FROM,
                          .rotations = ROTATIONS},
    [BL_VARIANT_QWEN3] = {.model_type = "qwen3",
                          .architecture = "Qwen3ForCausalLM",
                          .preset = {ALL(1e-6, 1e4), .variant = BL_VARIANT_QWEN3, .kv_heads = 32, .head_dim = 128,
                                     .head_norm = true, .window = 4096, .window_first = 28},
                          .windows = BL__HF_WINDOWS_FROM,
                          .rotations = ROTATIONS},
    [BL_VARIANT_PHI3] = {.model_type = "phi3",
                         .architecture = "Phi3ForCausalLM",
                         .preset = {ALL(1e-5, 1e4), .variant = BL_VARIANT_PHI3, .fused = true},
                         .windows = BL__HF_WINDOWS_ALL,
                         .rotations = "default|longrope", // transformers supports no others
                         .rotates_partly = true},
    [BL_VARIANT_GEMMA] = {.model_type = "gemma",
                          .architecture = "GemmaForCausalLM",
                          .preset = {GEMMA(1e4), .variant = BL_VARIANT_GEMMA, .kv_heads = 16},
                          .rotations = ROTATIONS,
                          .scales_embedding = true},
    [BL_VARIANT_GEMMA2] = {.model_type = "gemma2",
                           .architecture = "Gemma2ForCausalLM",
                           .preset = {GEMMA(1e4), .variant = BL_VARIANT_GEMMA2, .kv_heads = 4, .post_norm = true,
                                      .score_softcap = 50, .logit_softcap = 30, .window = 4096, .window_period = 2},
                           .windows = BL__HF_WINDOWS_BETWEEN,
                           .rotations = ROTATIONS,
                           .scales_embedding = true,
                           .score_scalar = 256,
                           .softcaps_scores = true,
                           .softcaps_logits = true},
    // The config has a key for a softcap of scores, but transformers' layers do not apply it. The rules below refuse
    // the key.
    [BL_VARIANT_GEMMA3] = {.model_type = "gemma3_text",
                           .architecture = "Gemma3ForCausalLM",
                           .preset = {GEMMA(1e6), .variant = BL_VARIANT_GEMMA3, .kv_heads = 4, .head_norm = true,
                                      .post_norm = true, .window_rope.theta = 1e4, .window = 4096, .window_period = 6},
                           .windows = BL__HF_WINDOWS_BETWEEN,
                           .rotations = ROTATIONS,
                           .rotates_by_layer = true,
                           .scales_embedding = true,
                           .score_scalar = 256,
                           .softcaps_logits = true},
};

// A key that may only have the value that Ballast computes with. Absent and null are always accepted: they mean the
// default, which is that value.
typedef enum { ONLY_FALSE, ONLY_TRUE, ONLY_EMPTY, ONLY_ONE, ONLY_TEXTS } only_t;
typedef struct {
  const char *key;
  only_t only;
  uint32_t variants; // to which the rule applies, one bit each
  const char *texts; // separated by '|'
} rule_t;

#define OF(variant) (1u << (variant))
#define GPT2        OF(BL__HF_GPT2)
#define GEMMAS      (OF(BL_VARIANT_GEMMA) | OF(BL_VARIANT_GEMMA2) | OF(BL_VARIANT_GEMMA3))
#define LLAMAS      (OF(BL_VARIANTS) - 1)

// All of these are 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))); "gelu" is the exact form with erf.
#define TANH_GELU "gelu_new|gelu_pytorch_tanh|gelu_python_tanh|gelu_fast|gelu_accurate"

static const rule_t rules[] = {
    {"activation_function", ONLY_TEXTS, GPT2, TANH_GELU},
    {"scale_attn_weights", ONLY_TRUE, GPT2, NULL},
    {"scale_attn_by_inverse_layer_idx", ONLY_FALSE, GPT2, NULL},
    {"add_cross_attention", ONLY_FALSE, GPT2, NULL},
    // Not listed: reorder_and_upcast_attn, which only reorders the scaling of keys; the mathematics is the same.
    {"hidden_act", ONLY_TEXTS, LLAMAS & ~GEMMAS, "silu|swish"},
    // Files of the first gemma say gelu and mean the tanh form, which is how transformers 5 reads them. For the other
    // gemmas transformers 5 reads hidden_activation alone.
    {"hidden_act", ONLY_TEXTS, GEMMAS, "gelu|" TANH_GELU},
    {"hidden_activation", ONLY_TEXTS, GEMMAS, TANH_GELU},
    {"attention_bias", ONLY_FALSE, OF(BL_VARIANT_LLAMA) | OF(BL_VARIANT_QWEN3) | OF(BL_VARIANT_PHI3) | GEMMAS, NULL},
    {"mlp_bias", ONLY_FALSE, OF(BL_VARIANT_LLAMA) | OF(BL_VARIANT_PHI3), NULL},
    // Files of Phi-4-mini contain keys for code of their own.
    {"lm_head_bias", ONLY_FALSE, OF(BL_VARIANT_PHI3), NULL},
    {"full_attn_mod", ONLY_ONE, OF(BL_VARIANT_PHI3), NULL},
    {"interpolate_factor", ONLY_ONE, OF(BL_VARIANT_PHI3), NULL},
    {"partial_rotary_factor", ONLY_ONE, LLAMAS & ~OF(BL_VARIANT_PHI3), NULL},
    {"sliding_window", ONLY_EMPTY, OF(BL_VARIANT_LLAMA) | OF(BL_VARIANT_GEMMA), NULL},
    {"use_sliding_window", ONLY_FALSE, OF(BL_VARIANT_LLAMA) | OF(BL_VARIANT_GEMMA), NULL},
    {"use_bidirectional_attention", ONLY_FALSE, GEMMAS, NULL},
    {"attn_logit_softcapping", ONLY_EMPTY, LLAMAS & ~OF(BL_VARIANT_GEMMA2), NULL},
    {"final_logit_softcapping", ONLY_EMPTY, LLAMAS & ~(OF(BL_VARIANT_GEMMA2) | OF(BL_VARIANT_GEMMA3)), NULL},
    // Not listed: pretraining_tp, which only splits the products; the mathematics is the same.
    {"per_layer_config", ONLY_EMPTY, GPT2 | LLAMAS, NULL},
    {"is_causal", ONLY_TRUE, GPT2 | LLAMAS, NULL}, // in no config of transformers, but its masks follow it
    {"is_encoder_decoder", ONLY_FALSE, GPT2 | LLAMAS, NULL},
    {"pruned_heads", ONLY_EMPTY, GPT2 | LLAMAS, NULL},
    {"quantization_config", ONLY_EMPTY, GPT2 | LLAMAS, NULL},
};

static bool allowed(const rule_t *rule, const json_t *value) {
  switch (rule->only) {
  case ONLY_FALSE:
    return json_is_false(value);
  case ONLY_TRUE:
    return json_is_true(value);
  case ONLY_EMPTY:
    return (json_is_object(value) && json_object_size(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0);
  case ONLY_ONE:
    return json_is_number(value) && json_number_value(value) == 1.0;
  case ONLY_TEXTS:
    return json_is_string(value) && bl__hf_among(rule->texts, json_string_value(value));
  }
  return false;
}

bl_status_t bl__hf_rules_check(const json_t *document, uint32_t variant, bl_error_t *err) {
  static const char *const wanted[] = {
      [ONLY_FALSE] = "false", [ONLY_TRUE] = "true", [ONLY_EMPTY] = "null", [ONLY_ONE] = "1.0"};
  for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
    const rule_t *rule = &rules[i];
    const json_t *value = json_object_get(document, rule->key);
    if ((rule->variants & OF(variant)) != 0 && !bl__hf_absent(value) && !allowed(rule, value)) {
      char text[BL__HF_VALUE_TEXT];
      return bl_error_set(err, BL_UNIMPLEMENTED,
                          "%s: %s is not supported and would change what the model computes; supported: %s", rule->key,
                          bl__hf_show(value, text), rule->texts != NULL ? rule->texts : wanted[rule->only]);
    }
  }
  return BL_OK;
}
