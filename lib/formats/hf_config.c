// SPDX-License-Identifier: Apache-2.0
#include "formats/hf_config.h"

#include "formats/hf_family.h"
#include "formats/hf_keys.h"
#include "formats/hf_rope.h"
#include "formats/hf_window.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static bl_status_t read_sizes(const json_t *document, const bl__hf_size_t *sizes, bl_model_t *model, bl_error_t *err) {
  for (const bl__hf_size_t *size = sizes; size->key != NULL; size++) {
    const bool second = size->other != NULL && bl__hf_absent(json_object_get(document, size->key));
    const char *key = second ? size->other : size->key;
    if (size->required && bl__hf_absent(json_object_get(document, key))) {
      return bl_error_set(err, BL_INVALID, "%s%s%s: missing", size->key, size->other != NULL ? " or " : "",
                          size->other != NULL ? size->other : "");
    }
    uint32_t *field = (uint32_t *)((char *)model + size->offset);
    bl_status_t status = bl__hf_size_read(document, key, 1, field, err);
    if (status != BL_OK) {
      return status;
    }
  }
  return BL_OK;
}

static bool divides(uint32_t part, uint32_t whole) {
  return part != 0 && whole % part == 0;
}

static bl_status_t read_gpt2(const json_t *document, bl_model_t *model, bl_error_t *err) {
  *model = (bl_model_t){.family = BL_FAMILY_GPT2, .tied = true, .norm_epsilon = BL_NORM_EPSILON_DEFAULT};
  bl_status_t status = bl__hf_rules_check(document, BL__HF_GPT2, err);
  if (status == BL_OK) {
    status = read_sizes(document, bl__hf_gpt2_sizes, model, err);
  }
  if (status == BL_OK) {
    status = bl__hf_flag_read(document, "tie_word_embeddings", &model->tied, err);
  }
  if (status == BL_OK) {
    status = bl__hf_number_read(document, "layer_norm_epsilon", &model->norm_epsilon, err);
  }
  if (status != BL_OK) {
    return status;
  }
  if (!divides(model->heads, model->hidden)) {
    return bl_error_set(err, BL_INVALID, "n_head: %" PRIu32 " heads do not divide n_embd %" PRIu32, model->heads,
                        model->hidden);
  }
  if (model->ffn == 0) {
    if (model->hidden > BL__HF_SIZE_MAX / 4) {
      return bl_error_set(err, BL_INVALID, "n_embd: %" PRIu32 " is too large", model->hidden);
    }
    model->ffn = 4 * model->hidden;
  }
  model->kv_heads = model->heads;
  model->head_dim = model->hidden / model->heads;
  return BL_OK;
}

static bl_status_t read_heads(const json_t *document, bl_model_t *model, bl_error_t *err) {
  if (model->head_dim == 0) {
    if (!divides(model->heads, model->hidden)) {
      return bl_error_set(err, BL_INVALID, "num_attention_heads: %" PRIu32 " heads do not divide hidden_size %" PRIu32,
                          model->heads, model->hidden);
    }
    model->head_dim = model->hidden / model->heads;
  }
  const json_t *given = json_object_get(document, "num_key_value_heads");
  if (model->kv_heads == 0 || (given != NULL && json_is_null(given))) { // null: equals heads
    model->kv_heads = model->heads;
  }
  if (!divides(model->kv_heads, model->heads)) {
    return bl_error_set(err, BL_INVALID,
                        "num_key_value_heads: %" PRIu32 " does not divide num_attention_heads %" PRIu32,
                        model->kv_heads, model->heads);
  }
  return BL_OK;
}

// An absent key means the family's default, null means no softcap.
static bl_status_t read_softcap(const json_t *document, const char *key, double *softcap, bl_error_t *err) {
  const json_t *given = json_object_get(document, key);
  if (given != NULL && json_is_null(given)) {
    *softcap = 0;
  }
  return bl__hf_number_read(document, key, softcap, err);
}

static bl_status_t read_scales(const json_t *document, const bl__hf_family_t *family, bl_model_t *model,
                               bl_error_t *err) {
  bl_status_t status = BL_OK;
  if (family->scales_embedding) {
    model->embedding_scale = sqrt(model->hidden);
  }
  if (family->score_scalar != 0) {
    uint32_t scalar = family->score_scalar;
    status = bl__hf_size_read(document, "query_pre_attn_scalar", 1, &scalar, err);
    model->score_scale = scalar == model->head_dim ? 0 : pow(scalar, -0.5);
  }
  if (status == BL_OK && family->softcaps_scores) {
    status = read_softcap(document, "attn_logit_softcapping", &model->score_softcap, err);
  }
  if (status == BL_OK && family->softcaps_logits) {
    status = read_softcap(document, "final_logit_softcapping", &model->logit_softcap, err);
  }
  return status;
}

static bl_status_t read_llama(const json_t *document, const bl__hf_family_t *family, bl_model_t *model,
                              bl_error_t *err) {
  *model = family->preset;
  bl_status_t status = bl__hf_rules_check(document, model->variant, err);
  if (status == BL_OK) {
    status = read_sizes(document, bl__hf_llama_sizes, model, err);
  }
  if (status == BL_OK) {
    status = bl__hf_flag_read(document, "tie_word_embeddings", &model->tied, err);
  }
  if (status == BL_OK) {
    status = bl__hf_number_read(document, "rms_norm_eps", &model->norm_epsilon, err);
  }
  if (status == BL_OK) {
    status = read_heads(document, model, err);
  }
  if (status == BL_OK) {
    status = bl__hf_rope_read(document, family, model, err);
  }
  if (status == BL_OK) {
    status = bl__hf_window_read(document, family, model, err);
  }
  return status != BL_OK ? status : read_scales(document, family, model, err);
}

// Returns "gpt2, llama, ... and gemma3_text", written to `text`.
static const char *supported(char *text, size_t size) {
  size_t at = (size_t)snprintf(text, size, "gpt2");
  for (uint32_t i = 0; i < BL_VARIANTS && at < size; i++) {
    at += (size_t)snprintf(text + at, size - at, "%s%s", i + 1 < BL_VARIANTS ? ", " : " and ",
                           bl__hf_families[i].model_type);
  }
  return text;
}

static bl_status_t read_document(const json_t *document, bl_model_t *model, bl_error_t *err) {
  if (!json_is_object(document)) {
    return bl_error_set(err, BL_INVALID, "not a JSON object");
  }
  char names[160];
  const json_t *type = json_object_get(document, "model_type");
  if (!json_is_string(type)) {
    return bl_error_set(err, BL_INVALID, "model_type: missing; %s are supported", supported(names, sizeof names));
  }
  const char *name = json_string_value(type);
  if (strcmp(name, "gpt2") == 0) {
    return read_gpt2(document, model, err);
  }
  for (size_t i = 0; i < BL_VARIANTS; i++) {
    if (strcmp(name, bl__hf_families[i].model_type) == 0) {
      return read_llama(document, &bl__hf_families[i], model, err);
    }
  }
  return bl_error_set(err, BL_UNIMPLEMENTED, "model_type: '%.60s' is not supported; %s are%s", name,
                      supported(names, sizeof names),
                      strcmp(name, "gemma3") == 0 ? ", of gemma3 the language model alone" : "");
}

bl_status_t bl_hf_config_parse(bl_model_t *model, const char *bytes, size_t size_bytes, bl_error_t *err) {
  json_error_t fault;
  json_t *document = json_loadb(bytes, size_bytes, JSON_REJECT_DUPLICATES, &fault);
  if (document == NULL) {
    return bl_error_set(err, BL_INVALID, "is no JSON: line %d column %d: %s", fault.line, fault.column, fault.text);
  }
  bl_model_t read;
  bl_status_t status = read_document(document, &read, err);
  json_decref(document);
  if (status == BL_OK) {
    *model = read;
  }
  return status;
}
