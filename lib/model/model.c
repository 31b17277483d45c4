// SPDX-License-Identifier: Apache-2.0
#include "model/model.h"

#include "base/words.h"
#include "model/parameters.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

static const char *const family_names[] = {[BL_FAMILY_GPT2] = "gpt2", [BL_FAMILY_LLAMA] = "llama"};

const char *bl_family_name(bl_family_t family) {
  return family_names[family];
}

// More parameters than any machine holds. Below this bound no product of sizes of a model overflows 64 bits.
#define PARAMETERS_MAX 0x1p50

static double approximate_parameters(const bl_model_t *model) {
  const double layer =
      (double)bl_model_qkv_width(model) + bl_model_query_width(model) + bl_model_pre_width(model) + (double)model->ffn;
  return model->hidden * (2.0 * model->vocab + bl_model_positions(model) + model->layers * layer);
}

static bl_status_t check_ranges(const bl_model_t *model, bl_error_t *err) {
  const struct {
    const char *name;
    uint32_t value, maximum;
  } fields[] = {
      {"layers", model->layers, BL_MODEL_LAYERS_MAX},        {"hidden", model->hidden, BL_MODEL_DIMENSION_MAX},
      {"heads", model->heads, BL_MODEL_DIMENSION_MAX},       {"kv_heads", model->kv_heads, BL_MODEL_DIMENSION_MAX},
      {"head_dim", model->head_dim, BL_MODEL_DIMENSION_MAX}, {"ffn", model->ffn, BL_MODEL_DIMENSION_MAX},
      {"vocab", model->vocab, BL_MODEL_DIMENSION_MAX},       {"seq", model->seq, BL_MODEL_DIMENSION_MAX},
  };
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
    if (fields[i].value < 1 || fields[i].value > fields[i].maximum) {
      return bl_error_set(err, BL_INVALID, "model.%s: must be between 1 and %" PRIu32 ", is %" PRIu32, fields[i].name,
                          fields[i].maximum, fields[i].value);
    }
  }
  if ((uint64_t)model->heads * model->head_dim > BL_MODEL_DIMENSION_MAX) {
    return bl_error_set(err, BL_INVALID, "model.heads: %" PRIu32 " head%s of %" PRIu32 " exceed%s %u columns",
                        model->heads, bl_plural(model->heads), model->head_dim, bl_one_or_many(model->heads, "s", ""),
                        BL_MODEL_DIMENSION_MAX);
  }
  return BL_OK;
}

static bl_status_t check_llama(const bl_model_t *model, bl_error_t *err) {
  if (model->head_dim % 2 != 0) {
    return bl_error_set(err, BL_INVALID,
                        "model.heads: rotary positions need an even head size, with %" PRIu32 " it is %" PRIu32,
                        model->heads, model->head_dim);
  }
  if (bl_rope_fault(&model->rope, model->head_dim) != NULL) {
    return bl_error_set(err, BL_INVALID, "model.rope: %s", bl_rope_fault(&model->rope, model->head_dim));
  }
  if (model->window_rope.theta != 0 && bl_rope_fault(&model->window_rope, model->head_dim) != NULL) {
    return bl_error_set(err, BL_INVALID, "model.rope: of layers with a window: %s",
                        bl_rope_fault(&model->window_rope, model->head_dim));
  }
  if (model->rope.dims > model->head_dim || model->window_rope.dims > model->head_dim) {
    return bl_error_set(err, BL_INVALID, "model.rope: more dimensions rotate than the %" PRIu32 " that a head has",
                        model->head_dim);
  }
  const struct {
    const char *name;
    double value;
  } scales[] = {{"embedding_scale", model->embedding_scale},
                {"score_scale", model->score_scale},
                {"score_softcap", model->score_softcap},
                {"logit_softcap", model->logit_softcap}};
  for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++) {
    if (!isfinite(scales[i].value) || scales[i].value < 0) {
      return bl_error_set(err, BL_INVALID, "model.%s: must be above 0, is %g", scales[i].name, scales[i].value);
    }
  }
  return BL_OK;
}

bl_status_t bl_model_check(const bl_model_t *model, bl_error_t *err) {
  bl_status_t status = check_ranges(model, err);
  if (status != BL_OK) {
    return status;
  }
  if (model->heads % model->kv_heads != 0) {
    return bl_error_set(err, BL_INVALID, "model.kv_heads: %" PRIu32 " does not divide model.heads, which is %" PRIu32,
                        model->kv_heads, model->heads);
  }
  if (approximate_parameters(model) > PARAMETERS_MAX) {
    return bl_error_set(err, BL_INVALID,
                        "model.layers: %" PRIu32 " layer%s of hidden %" PRIu32 " and ffn %" PRIu32
                        " have more parameters than any machine holds",
                        model->layers, bl_plural(model->layers), model->hidden, model->ffn);
  }
  if (!isfinite(model->norm_epsilon) || model->norm_epsilon <= 0) {
    return bl_error_set(err, BL_INVALID, "model.norm_epsilon: must be above 0, is %g", model->norm_epsilon);
  }
  if (model->family == BL_FAMILY_GPT2) {
    if (model->qkv_bias || model->fused || model->head_norm || model->post_norm || model->gains_from_one) {
      return bl_error_set(err, BL_INVALID, "model.family: gpt2 has biases and norms of its own");
    }
    if (model->kv_heads != model->heads) {
      return bl_error_set(err, BL_INVALID,
                          "model.kv_heads: gpt2 has as many as model.heads (%" PRIu32 "), not %" PRIu32
                          "; grouped queries need model.family llama",
                          model->heads, model->kv_heads);
    }
    if ((uint64_t)model->heads * (model->shard == 0 ? 1 : model->shard) * model->head_dim != model->hidden) {
      return bl_error_set(err, BL_INVALID, "model.heads: %" PRIu32 " does not divide model.hidden, which is %" PRIu32,
                          model->heads, model->hidden);
    }
    if (bl_model_positions(model) < model->seq || bl_model_positions(model) > BL_MODEL_DIMENSION_MAX) {
      return bl_error_set(err, BL_INVALID,
                          "model.seq: sequences of %" PRIu32 " tokens do not fit a position table of %" PRIu32 " row%s",
                          model->seq, bl_model_positions(model), bl_plural(bl_model_positions(model)));
    }
    return BL_OK;
  }
  return check_llama(model, err);
}

uint64_t bl_model_parameter_elements(const bl_model_t *model) {
  uint64_t elements = 0;
  for (uint32_t i = 0; i < bl_parameter_count(model); i++) {
    elements += bl_parameter_get(model, i).elements;
  }
  return elements;
}
