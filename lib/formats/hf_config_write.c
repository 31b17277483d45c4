// SPDX-License-Identifier: Apache-2.0
#include "formats/hf_config.h"

#include "formats/hf_family.h"
#include "formats/hf_rope.h"
#include "formats/hf_window.h"

#include <jansson.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

// The functions that write return nonzero if memory runs out.

static int write_sizes(json_t *document, const bl__hf_size_t *sizes, const bl_model_t *model) {
  int failed = 0;
  for (const bl__hf_size_t *size = sizes; size->key != NULL; size++) {
    const uint32_t *field = (const uint32_t *)((const char *)model + size->offset);
    failed |= json_object_set_new(document, size->key, json_integer(*field));
  }
  return failed;
}

static int write_gpt2(json_t *document, const bl_model_t *model) {
  bl_model_t whole = *model;
  whole.seq = bl_model_positions(model);
  int failed = write_sizes(document, bl__hf_gpt2_sizes, &whole);
  failed |= json_object_set_new(document, "layer_norm_epsilon", json_real(model->norm_epsilon));
  return failed | json_object_set_new(document, "activation_function", json_string("gelu_new"));
}

static json_t *number_or_null(double number) {
  return number != 0 ? json_real(number) : json_null();
}

static int write_scales(json_t *document, const bl__hf_family_t *family, const bl_model_t *model) {
  int failed = 0;
  if (family->score_scalar != 0) {
    const double scalar = model->score_scale == 0 ? model->head_dim : 1 / (model->score_scale * model->score_scale);
    failed |= json_object_set_new(document, "query_pre_attn_scalar", json_integer((json_int_t)round(scalar)));
  }
  if (family->softcaps_scores) {
    failed |= json_object_set_new(document, "attn_logit_softcapping", number_or_null(model->score_softcap));
  }
  if (family->softcaps_logits) {
    failed |= json_object_set_new(document, "final_logit_softcapping", number_or_null(model->logit_softcap));
  }
  return failed;
}

static int write_llama(json_t *document, const bl__hf_family_t *family, const bl_model_t *model) {
  int failed = write_sizes(document, bl__hf_llama_sizes, model);
  failed |= json_object_set_new(document, "rms_norm_eps", json_real(model->norm_epsilon));
  const char *gate = model->gate == BL_GATE_GELU ? "gelu_pytorch_tanh" : "silu";
  failed |= json_object_set_new(document, "hidden_act", json_string(gate));
  if (model->gate == BL_GATE_GELU) { // model and version decide which of the two is read
    failed |= json_object_set_new(document, "hidden_activation", json_string(gate));
  }
  if (model->variant == BL_VARIANT_LLAMA) {
    failed |= json_object_set_new(document, "attention_bias", json_false());
    failed |= json_object_set_new(document, "mlp_bias", json_false());
  }
  failed |= bl__hf_rope_write(document, family, model);
  failed |= bl__hf_window_write(document, family, model);
  return failed | write_scales(document, family, model);
}

// Returns NULL if memory runs out.
static json_t *describe(const bl_model_t *model) {
  const bool llama = model->family == BL_FAMILY_LLAMA;
  const bl__hf_family_t *family = &bl__hf_families[model->variant];
  json_t *document = json_pack("{s:[s], s:s}", "architectures", llama ? family->architecture : "GPT2LMHeadModel",
                               "model_type", llama ? family->model_type : "gpt2");
  int failed = llama ? write_llama(document, family, model) : write_gpt2(document, model);
  failed |= json_object_set_new(document, "tie_word_embeddings", json_boolean(model->tied));
  failed |= json_object_set_new(document, "dtype", json_string("float32"));
  // Without these, some models default to token ids that a smaller vocabulary does not have.
  static const char *const tokens[] = {"bos_token_id", "eos_token_id", "pad_token_id"};
  for (size_t i = 0; i < sizeof tokens / sizeof tokens[0]; i++) {
    failed |= json_object_set_new(document, tokens[i], json_null());
  }
  if (failed != 0) {
    json_decref(document);
    return NULL;
  }
  return document;
}

static bl_status_t no_memory(bl_error_t *err) {
  return bl_error_set(err, BL_EXHAUSTED, "no memory for a config.json");
}

bl_status_t bl_hf_config_write(const bl_model_t *model, char **text, size_t *text_bytes, bl_error_t *err) {
  json_t *document = describe(model);
  char *made = document != NULL ? json_dumps(document, JSON_INDENT(2)) : NULL;
  json_decref(document);
  if (made == NULL) {
    return no_memory(err);
  }
  *text = made;
  *text_bytes = strlen(made);
  return BL_OK;
}

typedef struct {
  const char *key; // NULL: there is no difference
  const json_t *found, *wanted;
} difference_t;

// Finds the first key of `found` whose value in `wanted` is another or absent. An object is entered if both have it.
static difference_t find_difference(json_t *found, json_t *wanted) {
  const char *key;
  json_t *value;
  json_object_foreach(found, key, value) {
    json_t *other = json_object_get(wanted, key);
    const bool both = json_is_object(value) && json_is_object(other);
    const difference_t inner = both ? find_difference(value, other) : (difference_t){key, value, other};
    if (inner.key != NULL && (both || !json_equal(value, other))) {
      return inner;
    }
  }
  return (difference_t){0};
}

// Writes a value for a message: 1e-5 for 1.0000000000000001e-5.
static const char *show(const json_t *value, char text[BL__HF_VALUE_TEXT]) {
  if (!json_is_real(value)) {
    return value != NULL ? bl__hf_show(value, text) : "none";
  }
  (void)snprintf(text, BL__HF_VALUE_TEXT, "%.15g", json_real_value(value));
  return text;
}

static bl_status_t report(difference_t difference, bl_error_t *err) {
  char texts[2][BL__HF_VALUE_TEXT];
  const char *found = show(difference.found, texts[0]), *wanted = show(difference.wanted, texts[1]);
  return strcmp(found, wanted) == 0 // both are too long to be shown, or differ in the last place
             ? bl_error_set(err, BL_INVALID, "%s is not that of the job's model", difference.key)
             : bl_error_set(err, BL_INVALID, "%s is %s, the job's model has %s", difference.key, found, wanted);
}

bl_status_t bl_hf_config_compare(const bl_model_t *found, const bl_model_t *wanted, bl_error_t *err) {
  bl_model_t like = *found;
  like.seq = wanted->seq;
  like.positions = wanted->positions;
  json_t *documents[] = {describe(&like), describe(wanted)};
  bl_status_t status = BL_OK;
  if (documents[0] == NULL || documents[1] == NULL) {
    status = no_memory(err);
  } else {
    (void)json_object_del(documents[0], "architectures"); // model_type follows and says the same
    difference_t difference = find_difference(documents[0], documents[1]);
    if (difference.key == NULL) { // a key that only `wanted` has
      (void)json_object_del(documents[1], "architectures");
      difference = find_difference(documents[1], documents[0]);
      difference = (difference_t){difference.key, difference.wanted, difference.found};
    }
    status = difference.key != NULL ? report(difference, err) : BL_OK;
  }
  json_decref(documents[0]);
  json_decref(documents[1]);
  return status;
}
