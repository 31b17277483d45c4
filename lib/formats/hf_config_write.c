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

// The base of the rotation stands twice: transformers 4 reads the first, 5 the second.
static json_t *describe_llama(const bl_hf_config_t *config) {
  return json_pack("{s:[s], s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:{s:f, s:s}, s:s, s:b, s:b, s:b, "
                   "s:s, s:n, s:n}",
                   "architectures", "LlamaForCausalLM", "model_type", "llama", "num_hidden_layers",
                   (json_int_t)config->layers, "hidden_size", (json_int_t)config->hidden, "num_attention_heads",
                   (json_int_t)config->heads, "num_key_value_heads", (json_int_t)config->kv_heads, "head_dim",
                   (json_int_t)config->head_dim, "intermediate_size", (json_int_t)config->ffn, "vocab_size",
                   (json_int_t)config->vocab, "max_position_embeddings", (json_int_t)config->seq, "rms_norm_eps",
                   config->norm_epsilon, "rope_theta", config->rope_theta, "rope_parameters", "rope_theta",
                   config->rope_theta, "rope_type", "default", "hidden_act", "silu", "attention_bias", 0, "mlp_bias", 0,
                   "tie_word_embeddings", config->tied, "dtype", "float32", "bos_token_id", "eos_token_id");
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
