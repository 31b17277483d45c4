// SPDX-License-Identifier: Apache-2.0
// What the keys mean is taken from transformers 5 (configuration_gpt2.py, configuration_llama.py,
// configuration_mistral.py, configuration_qwen2.py, modeling_rope_utils.py)
// and from files that transformers 4 wrote.
#include "formats/hf_config.h"

#include <jansson.h>

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define ROPE_THETA_DEFAULT 10000.0
#define SIZE_MAX_VALUE     INT32_MAX
#define VALUE_TEXT         80

// A size: a whole number >= 1 under one of two names.
typedef struct {
  const char *key, *other; // `other` may be NULL
  size_t offset;           // of a uint32_t in bl_hf_config_t
  bool required;
} size_key_t;

static const size_key_t gpt2_sizes[] = {
    {"n_layer", "num_hidden_layers", offsetof(bl_hf_config_t, layers), true},
    {"n_embd", "hidden_size", offsetof(bl_hf_config_t, hidden), true},
    {"n_head", "num_attention_heads", offsetof(bl_hf_config_t, heads), true},
    {"n_inner", NULL, offsetof(bl_hf_config_t, ffn), false},
    {"vocab_size", NULL, offsetof(bl_hf_config_t, vocab), true},
    {"n_positions", "max_position_embeddings", offsetof(bl_hf_config_t, seq), true},
    {NULL, NULL, 0, false},
};

// A mistral that says nothing of its window has one.
#define MISTRAL_WINDOW_DEFAULT   4096
#define MISTRAL_KV_HEADS_DEFAULT 8
#define QWEN2_KV_HEADS_DEFAULT   32

static const size_key_t llama_sizes[] = {
    {"num_hidden_layers", NULL, offsetof(bl_hf_config_t, layers), true},
    {"hidden_size", NULL, offsetof(bl_hf_config_t, hidden), true},
    {"num_attention_heads", NULL, offsetof(bl_hf_config_t, heads), true},
    {"num_key_value_heads", NULL, offsetof(bl_hf_config_t, kv_heads), false},
    {"head_dim", NULL, offsetof(bl_hf_config_t, head_dim), false},
    {"intermediate_size", NULL, offsetof(bl_hf_config_t, ffn), true},
    {"vocab_size", NULL, offsetof(bl_hf_config_t, vocab), true},
    {"max_position_embeddings", NULL, offsetof(bl_hf_config_t, seq), true},
    {NULL, NULL, 0, false},
};

// A key that may only hold what we compute with. Absent and null are accepted everywhere: they mean the default, which
// is that value. `texts` separates accepted texts by '|'.
typedef enum { ONLY_FALSE, ONLY_TRUE, ONLY_EMPTY, ONLY_ONE, ONLY_TEXTS, ONLY_FULL_ATTENTION } only_t;
typedef struct {
  const char *key;
  only_t only;
  const char *texts;
} fixed_key_t;

static const fixed_key_t gpt2_fixed[] = {
    // All of these are 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))); "gelu" is the exact form with erf.
    {"activation_function", ONLY_TEXTS, "gelu_new|gelu_pytorch_tanh|gelu_python_tanh|gelu_fast|gelu_accurate"},
    {"scale_attn_weights", ONLY_TRUE, NULL},
    {"scale_attn_by_inverse_layer_idx", ONLY_FALSE, NULL},
    {"add_cross_attention", ONLY_FALSE, NULL},
    {"is_encoder_decoder", ONLY_FALSE, NULL},
    {"pruned_heads", ONLY_EMPTY, NULL},
    {"quantization_config", ONLY_EMPTY, NULL},
    // reorder_and_upcast_attn only reorders the scaling of keys: not listed, the mathematics is the same.
    {NULL, ONLY_EMPTY, NULL},
};

static const fixed_key_t mistral_fixed[] = {
    {"hidden_act", ONLY_TEXTS, "silu|swish"},  {"partial_rotary_factor", ONLY_ONE, NULL},
    {"is_encoder_decoder", ONLY_FALSE, NULL},  {"pruned_heads", ONLY_EMPTY, NULL},
    {"quantization_config", ONLY_EMPTY, NULL}, {NULL, ONLY_EMPTY, NULL},
};

static const fixed_key_t qwen2_fixed[] = {
    {"hidden_act", ONLY_TEXTS, "silu|swish"},
    {"partial_rotary_factor", ONLY_ONE, NULL},
    {"use_sliding_window", ONLY_FALSE, NULL}, // sliding_window and max_window_layers say nothing then
    {"layer_types", ONLY_FULL_ATTENTION, NULL},
    {"is_encoder_decoder", ONLY_FALSE, NULL},
    {"pruned_heads", ONLY_EMPTY, NULL},
    {"quantization_config", ONLY_EMPTY, NULL},
    {NULL, ONLY_EMPTY, NULL},
};

static const fixed_key_t llama_fixed[] = {
    {"hidden_act", ONLY_TEXTS, "silu|swish"},
    {"attention_bias", ONLY_FALSE, NULL},
    {"mlp_bias", ONLY_FALSE, NULL},
    {"partial_rotary_factor", ONLY_ONE, NULL},
    {"sliding_window", ONLY_EMPTY, NULL},
    {"use_sliding_window", ONLY_FALSE, NULL},
    {"layer_types", ONLY_FULL_ATTENTION, NULL},
    {"is_encoder_decoder", ONLY_FALSE, NULL},
    {"pruned_heads", ONLY_EMPTY, NULL},
    {"quantization_config", ONLY_EMPTY, NULL},
    // pretraining_tp only splits the products: not listed, the mathematics is the same.
    {NULL, ONLY_EMPTY, NULL},
};

// The value as JSON, cut, for messages.
static const char *show(const json_t *value, char text[VALUE_TEXT]) {
  size_t bytes = json_dumpb(value, text, VALUE_TEXT - 1, JSON_ENCODE_ANY | JSON_COMPACT);
  if (bytes == 0 || bytes > VALUE_TEXT - 1) {
    return "something long";
  }
  text[bytes] = '\0';
  return text;
}

static bool absent(const json_t *value) {
  return value == NULL || json_is_null(value);
}

static bl_status_t read_size(const json_t *document, const size_key_t *key, bl_hf_config_t *config, bl_error_t *err) {
  const char *name = key->key;
  const json_t *value = json_object_get(document, name);
  if (absent(value) && key->other != NULL) {
    name = key->other;
    value = json_object_get(document, name);
  }
  if (absent(value)) {
    if (!key->required) {
      return BL_OK;
    }
    return bl_error_set(err, BL_INVALID, "%s%s%s: missing", key->key, key->other != NULL ? " or " : "",
                        key->other != NULL ? key->other : "");
  }
  if (!json_is_integer(value) || json_integer_value(value) < 1 || json_integer_value(value) > SIZE_MAX_VALUE) {
    char text[VALUE_TEXT];
    return bl_error_set(err, BL_INVALID, "%s: must be a whole number from 1 to %d, is %s", name, SIZE_MAX_VALUE,
                        show(value, text));
  }
  uint32_t size = (uint32_t)json_integer_value(value);
  memcpy((char *)config + key->offset, &size, sizeof size);
  return BL_OK;
}

static bl_status_t read_positive(const json_t *object, const char *key, double preset, double *number,
                                 bl_error_t *err) {
  const json_t *value = json_object_get(object, key);
  if (absent(value)) {
    *number = preset;
    return BL_OK;
  }
  double found = json_number_value(value);
  if (!json_is_number(value) || !isfinite(found) || found <= 0) {
    char text[VALUE_TEXT];
    return bl_error_set(err, BL_INVALID, "%s: must be a number above 0, is %s", key, show(value, text));
  }
  *number = found;
  return BL_OK;
}

static bool among(const char *texts, const char *text) {
  size_t length = strlen(text);
  for (const char *at = texts; length > 0 && at != NULL; at = strchr(at, '|'), at = at != NULL ? at + 1 : NULL) {
    if (strncmp(at, text, length) == 0 && (at[length] == '|' || at[length] == '\0')) {
      return true;
    }
  }
  return false;
}

static bool all_full_attention(const json_t *list) {
  size_t i;
  json_t *value;
  json_array_foreach(list, i, value) {
    if (!json_is_string(value) || strcmp(json_string_value(value), "full_attention") != 0) {
      return false;
    }
  }
  return json_is_array(list);
}

static bool allowed(const fixed_key_t *rule, const json_t *value) {
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
    return json_is_string(value) && among(rule->texts, json_string_value(value));
  case ONLY_FULL_ATTENTION:
    return all_full_attention(value);
  }
  return false;
}

static const char *wanted(const fixed_key_t *rule) {
  switch (rule->only) {
  case ONLY_FALSE:
    return "false";
  case ONLY_TRUE:
    return "true";
  case ONLY_EMPTY:
    return "null";
  case ONLY_ONE:
    return "1.0";
  case ONLY_TEXTS:
    return rule->texts;
  case ONLY_FULL_ATTENTION:
    return "full_attention in every layer";
  }
  return "";
}

static bl_status_t check_fixed(const json_t *document, const fixed_key_t *rules, bl_error_t *err) {
  for (const fixed_key_t *rule = rules; rule->key != NULL; rule++) {
    const json_t *value = json_object_get(document, rule->key);
    if (!absent(value) && !allowed(rule, value)) {
      char text[VALUE_TEXT];
      return bl_error_set(err, BL_UNIMPLEMENTED,
                          "%s: %s is not supported and would change what the model computes; supported: %s", rule->key,
                          show(value, text), wanted(rule));
    }
  }
  return BL_OK;
}

static bl_status_t read_kind(const json_t *rope, bl_rope_kind_t *kind, bl_error_t *err) {
  static const struct {
    const char *name;
    bl_rope_kind_t kind;
  } kinds[] = {{"default", BL_ROPE_DEFAULT}, {"linear", BL_ROPE_LINEAR}, {"llama3", BL_ROPE_LLAMA3}};
  static const char *const keys[] = {"rope_type", "type"}; // transformers 4 wrote the second, once
  for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
    const json_t *value = json_object_get(rope, keys[k]);
    bool known = absent(value);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0] && !known; i++) {
      known = json_is_string(value) && strcmp(json_string_value(value), kinds[i].name) == 0;
      *kind = known ? kinds[i].kind : *kind;
    }
    if (!known) {
      char text[VALUE_TEXT];
      return bl_error_set(err, BL_UNIMPLEMENTED,
                          "%s: %s is not supported and would change what the model computes; supported: "
                          "default|linear|llama3",
                          keys[k], show(value, text));
    }
    if (!absent(value)) {
      return BL_OK;
    }
  }
  return BL_OK;
}

static bl_status_t read_rotation(const json_t *object, bl_rope_t *rope, bl_error_t *err) {
  const struct {
    const char *key;
    double *number;
    bool wanted;
  } numbers[] = {{"factor", &rope->factor, rope->kind != BL_ROPE_DEFAULT},
                 {"low_freq_factor", &rope->low_frequency, rope->kind == BL_ROPE_LLAMA3},
                 {"high_freq_factor", &rope->high_frequency, rope->kind == BL_ROPE_LLAMA3},
                 {"original_max_position_embeddings", &rope->original, rope->kind == BL_ROPE_LLAMA3}};
  bl_status_t status = read_positive(object, "rope_theta", rope->theta, &rope->theta, err);
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0] && status == BL_OK; i++) {
    if (numbers[i].wanted && absent(json_object_get(object, numbers[i].key))) {
      status = bl_error_set(err, BL_INVALID, "%s: missing", numbers[i].key);
    } else if (numbers[i].wanted) {
      status = read_positive(object, numbers[i].key, 0, numbers[i].number, err);
    }
  }
  const char *fault = status == BL_OK ? bl_rope_fault(rope) : NULL;
  return fault != NULL ? bl_error_set(err, BL_INVALID, "%s", fault) : status;
}

// One of "rope_scaling" (transformers 4) and "rope_parameters" (5).
static bl_status_t read_rope_object(const json_t *document, const char *key, bl_rope_t *rope, bl_error_t *err) {
  json_t *object = json_object_get(document, key);
  if (absent(object)) {
    return BL_OK;
  }
  char text[VALUE_TEXT];
  if (!json_is_object(object)) {
    return bl_error_set(err, BL_INVALID, "%s: must be an object or null, is %s", key, show(object, text));
  }
  const char *name;
  json_t *value;
  json_object_foreach(object, name, value) {
    if (json_is_object(value)) {
      return bl_error_set(err, BL_UNIMPLEMENTED, "%s.%.60s: a rotation per kind of layer is not supported", key, name);
    }
  }
  static const fixed_key_t rules[] = {{"partial_rotary_factor", ONLY_ONE, NULL}, {NULL, ONLY_EMPTY, NULL}};
  bl_status_t status = check_fixed(object, rules, err);
  if (status == BL_OK) {
    status = read_kind(object, &rope->kind, err);
  }
  if (status == BL_OK) {
    status = read_rotation(object, rope, err);
  }
  if (status != BL_OK) {
    bl_error_prefix(err, "%s", key);
  }
  return status;
}

static bl_status_t read_tied(const json_t *document, bool preset, bool *tied, bl_error_t *err) {
  const json_t *value = json_object_get(document, "tie_word_embeddings");
  char text[VALUE_TEXT];
  if (!absent(value) && !json_is_boolean(value)) {
    return bl_error_set(err, BL_INVALID, "tie_word_embeddings: must be true or false, is %s", show(value, text));
  }
  *tied = absent(value) ? preset : json_is_true(value);
  return BL_OK;
}

static bl_status_t read_sizes(const json_t *document, const size_key_t *keys, bl_hf_config_t *config, bl_error_t *err) {
  for (const size_key_t *key = keys; key->key != NULL; key++) {
    bl_status_t status = read_size(document, key, config, err);
    if (status != BL_OK) {
      return status;
    }
  }
  return BL_OK;
}

static bool divides(uint32_t part, uint32_t whole) {
  return part != 0 && whole % part == 0;
}

static bl_status_t read_gpt2(const json_t *document, bl_hf_config_t *config, bl_error_t *err) {
  bl_status_t status = check_fixed(document, gpt2_fixed, err);
  if (status == BL_OK) {
    status = read_sizes(document, gpt2_sizes, config, err);
  }
  if (status == BL_OK) {
    status = read_tied(document, true, &config->tied, err);
  }
  if (status == BL_OK) {
    status = read_positive(document, "layer_norm_epsilon", 1e-5, &config->norm_epsilon, err);
  }
  if (status != BL_OK) {
    return status;
  }
  if (!divides(config->heads, config->hidden)) {
    return bl_error_set(err, BL_INVALID, "n_head: %" PRIu32 " heads do not divide n_embd %" PRIu32, config->heads,
                        config->hidden);
  }
  if (config->ffn == 0) {
    if (config->hidden > SIZE_MAX_VALUE / 4) {
      return bl_error_set(err, BL_INVALID, "n_embd: %" PRIu32 " is too large", config->hidden);
    }
    config->ffn = 4 * config->hidden;
  }
  config->kv_heads = config->heads;
  config->head_dim = config->hidden / config->heads;
  return BL_OK;
}

// Models that compute what a llama does, but for what their configurations say.
static const struct {
  const char *model_type;
  const fixed_key_t *fixed;
  uint32_t kv_heads; // where the key is absent; 0: as many as heads
} llamas[] = {
    [BL_VARIANT_LLAMA] = {"llama", llama_fixed, 0},
    [BL_VARIANT_MISTRAL] = {"mistral", mistral_fixed, MISTRAL_KV_HEADS_DEFAULT},
    [BL_VARIANT_QWEN2] = {"qwen2", qwen2_fixed, QWEN2_KV_HEADS_DEFAULT},
};

// Absent is transformers' default, null is none.
static bl_status_t read_window(const json_t *document, bl_hf_config_t *config, bl_error_t *err) {
  static const size_key_t key = {"sliding_window", NULL, offsetof(bl_hf_config_t, window), false};
  if (json_object_get(document, key.key) == NULL) {
    config->window = MISTRAL_WINDOW_DEFAULT;
  }
  return read_size(document, &key, config, err);
}

static bl_status_t read_llama(const json_t *document, bl_hf_config_t *config, bl_error_t *err) {
  bl_status_t status = check_fixed(document, llamas[config->variant].fixed, err);
  if (status == BL_OK && config->variant == BL_VARIANT_MISTRAL) {
    status = read_window(document, config, err);
  }
  if (status == BL_OK) {
    status = read_sizes(document, llama_sizes, config, err);
  }
  if (status == BL_OK) {
    status = read_tied(document, false, &config->tied, err);
  }
  if (status == BL_OK) {
    status = read_positive(document, "rms_norm_eps", 1e-6, &config->norm_epsilon, err);
  }
  if (status == BL_OK) {
    status = read_positive(document, "rope_theta", ROPE_THETA_DEFAULT, &config->rope.theta, err);
  }
  if (status == BL_OK) {
    status = read_rope_object(document, "rope_scaling", &config->rope, err);
  }
  if (status == BL_OK) {
    status = read_rope_object(document, "rope_parameters", &config->rope, err);
  }
  if (status != BL_OK) {
    return status;
  }
  if (config->head_dim == 0) {
    if (!divides(config->heads, config->hidden)) {
      return bl_error_set(err, BL_INVALID, "num_attention_heads: %" PRIu32 " heads do not divide hidden_size %" PRIu32,
                          config->heads, config->hidden);
    }
    config->head_dim = config->hidden / config->heads;
  }
  if (config->kv_heads == 0) {
    const bool given = json_object_get(document, "num_key_value_heads") != NULL; // null: as many as heads
    const uint32_t preset = llamas[config->variant].kv_heads;
    config->kv_heads = preset > 0 && !given ? preset : config->heads;
  }
  if (!divides(config->kv_heads, config->heads)) {
    return bl_error_set(err, BL_INVALID,
                        "num_key_value_heads: %" PRIu32 " does not divide num_attention_heads %" PRIu32,
                        config->kv_heads, config->heads);
  }
  return BL_OK;
}

static bl_status_t read_document(const json_t *document, bl_hf_config_t *config, bl_error_t *err) {
  if (!json_is_object(document)) {
    return bl_error_set(err, BL_INVALID, "not a JSON object");
  }
  const json_t *type = json_object_get(document, "model_type");
  if (!json_is_string(type)) {
    return bl_error_set(err, BL_INVALID, "model_type: missing; gpt2, llama, mistral and qwen2 are supported");
  }
  const char *family = json_string_value(type);
  if (strcmp(family, "gpt2") == 0) {
    config->family = BL_HF_GPT2;
    return read_gpt2(document, config, err);
  }
  for (size_t i = 0; i < sizeof llamas / sizeof llamas[0]; i++) {
    if (strcmp(family, llamas[i].model_type) == 0) {
      config->family = BL_HF_LLAMA;
      config->variant = (bl_variant_t)i;
      return read_llama(document, config, err);
    }
  }
  return bl_error_set(err, BL_UNIMPLEMENTED, "model_type: '%.60s' is not supported; gpt2, llama, mistral and qwen2 are",
                      family);
}

bl_status_t bl_hf_config_parse(bl_hf_config_t *config, const char *bytes, size_t size_bytes, bl_error_t *err) {
  json_error_t fault;
  json_t *document = json_loadb(bytes, size_bytes, JSON_REJECT_DUPLICATES, &fault);
  if (document == NULL) {
    return bl_error_set(err, BL_INVALID, "line %d column %d: %s", fault.line, fault.column, fault.text);
  }
  bl_hf_config_t read = {0};
  bl_status_t status = read_document(document, &read, err);
  json_decref(document);
  if (status == BL_OK) {
    *config = read;
  }
  return status;
}
