// SPDX-License-Identifier: Apache-2.0
#include "formats/hf_config.h"

#include <jansson.h>

#include <string.h>

static json_t *describe_gpt2(const bl_hf_config_t *config) {
  return json_pack("{s:[s], s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:s, s:b, s:s, s:n, s:n}", "architectures",
                   "GPT2LMHeadModel", "model_type", "gpt2", "n_layer", (json_int_t)config->layers, "n_embd",
                   (json_int_t)config->hidden, "n_head", (json_int_t)config->heads, "n_inner", (json_int_t)config->ffn,
                   "vocab_size", (json_int_t)config->vocab, "n_positions", (json_int_t)config->seq,
                   "layer_norm_epsilon", config->norm_epsilon, "activation_function", "gelu_new", "tie_word_embeddings",
                   config->tied, "dtype", "float32", "bos_token_id", "eos_token_id");
}

static json_t *describe_rope(const bl_rope_t *rope) {
  static const char *const kinds[] = {"default", "linear", "llama3"};
  json_t *object = json_pack("{s:f, s:s}", "rope_theta", rope->theta, "rope_type", kinds[rope->kind]);
  if (object != NULL && rope->kind != BL_ROPE_DEFAULT) {
    json_object_set_new(object, "factor", json_real(rope->factor));
  }
  if (object != NULL && rope->kind == BL_ROPE_LLAMA3) {
    json_object_set_new(object, "low_freq_factor", json_real(rope->low_frequency));
    json_object_set_new(object, "high_freq_factor", json_real(rope->high_frequency));
    json_object_set_new(object, "original_max_position_embeddings", json_integer((json_int_t)rope->original));
  }
  return object;
}

static const struct {
  const char *architecture, *model_type;
} llamas[] = {[BL_VARIANT_LLAMA] = {"LlamaForCausalLM", "llama"},
              [BL_VARIANT_MISTRAL] = {"MistralForCausalLM", "mistral"},
              [BL_VARIANT_QWEN2] = {"Qwen2ForCausalLM", "qwen2"}};

// The rotation stands twice: transformers 4 reads the first, 5 the second.
static json_t *describe_llama(const bl_hf_config_t *config) {
  json_t *document = json_pack(
      "{s:[s], s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:o, s:s, s:b, s:s, s:n, s:n}", "architectures",
      llamas[config->variant].architecture, "model_type", llamas[config->variant].model_type, "num_hidden_layers",
      (json_int_t)config->layers, "hidden_size", (json_int_t)config->hidden, "num_attention_heads",
      (json_int_t)config->heads, "num_key_value_heads", (json_int_t)config->kv_heads, "head_dim",
      (json_int_t)config->head_dim, "intermediate_size", (json_int_t)config->ffn, "vocab_size",
      (json_int_t)config->vocab, "max_position_embeddings", (json_int_t)config->seq, "rms_norm_eps",
      config->norm_epsilon, "rope_theta", config->rope.theta, "rope_parameters", describe_rope(&config->rope),
      "hidden_act", "silu", "tie_word_embeddings", config->tied, "dtype", "float32", "bos_token_id", "eos_token_id");
  if (document == NULL) {
    return NULL;
  }
  if (config->rope.kind != BL_ROPE_DEFAULT) {
    json_object_set_new(document, "rope_scaling", describe_rope(&config->rope));
  }
  switch (config->variant) {
  case BL_VARIANT_LLAMA:
    json_object_set_new(document, "attention_bias", json_false());
    json_object_set_new(document, "mlp_bias", json_false());
    break;
  case BL_VARIANT_MISTRAL:
    json_object_set_new(document, "sliding_window", config->window > 0 ? json_integer(config->window) : json_null());
    break;
  case BL_VARIANT_QWEN2:
    json_object_set_new(document, "use_sliding_window", json_false());
    break;
  }
  return document;
}

bl_status_t bl_hf_config_write(const bl_hf_config_t *config, char **text, size_t *text_bytes, bl_error_t *err) {
  json_t *document = config->family == BL_HF_LLAMA ? describe_llama(config) : describe_gpt2(config);
  char *made = document != NULL ? json_dumps(document, JSON_INDENT(2)) : NULL;
  json_decref(document);
  if (made == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for a config.json");
  }
  *text = made;
  *text_bytes = strlen(made);
  return BL_OK;
}
