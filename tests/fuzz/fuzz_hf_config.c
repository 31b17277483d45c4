// SPDX-License-Identifier: Apache-2.0
// Whatever bytes come, a config.json that is accepted has numbers that a model can have, and one that describes a model that
// can be computed is written as a file that is read as the same model.
#include "target.h"

#include "formats/hf_config.h"

#include <math.h>
#include <string.h>

static bool same(const bl_model_t *a, const bl_model_t *b) {
  return a->family == b->family && a->layers == b->layers && a->hidden == b->hidden && a->heads == b->heads &&
         a->kv_heads == b->kv_heads && a->head_dim == b->head_dim && a->ffn == b->ffn && a->vocab == b->vocab &&
         a->seq == b->seq && a->tied == b->tied && a->norm_epsilon == b->norm_epsilon && a->variant == b->variant &&
         bl_rope_equal(&a->rope, &b->rope) && bl_rope_equal(&a->window_rope, &b->window_rope) && a->gate == b->gate &&
         a->qkv_bias == b->qkv_bias && a->fused == b->fused && a->head_norm == b->head_norm &&
         a->post_norm == b->post_norm && a->gains_from_one == b->gains_from_one &&
         a->embedding_scale == b->embedding_scale && a->score_scale == b->score_scale &&
         a->score_softcap == b->score_softcap && a->logit_softcap == b->logit_softcap && a->window == b->window &&
         a->window_first == b->window_first && a->window_period == b->window_period;
}

static void check_round(const bl_model_t *model) {
  bl_error_t err = {0};
  bl_model_t again;
  char *text;
  size_t text_bytes;
  FUZZ_CHECK(bl_hf_config_write(model, &text, &text_bytes, &err) == BL_OK);
  FUZZ_CHECK(bl_hf_config_parse(&again, text, text_bytes, &err) == BL_OK);
  FUZZ_CHECK(same(&again, model));
  free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes) {
  bl_model_t model;
  bl_error_t err = {0};
  if (bl_hf_config_parse(&model, (const char *)bytes, size_bytes, &err) != BL_OK) {
    FUZZ_CHECK(err.status != BL_OK && err.text[0] != '\0');
    return 0;
  }
  FUZZ_CHECK(model.layers > 0 && model.hidden > 0 && model.heads > 0 && model.kv_heads > 0);
  FUZZ_CHECK(model.head_dim > 0 && model.ffn > 0 && model.vocab > 0 && model.seq > 0);
  FUZZ_CHECK(model.heads % model.kv_heads == 0);
  FUZZ_CHECK(isfinite(model.norm_epsilon) && model.norm_epsilon > 0);
  FUZZ_CHECK(model.family == BL_FAMILY_GPT2 ||
             (bl_rope_fault(&model.rope, model.head_dim) == NULL && model.rope.dims < model.head_dim));
  FUZZ_CHECK(model.window_rope.theta == 0 || bl_rope_fault(&model.window_rope, model.head_dim) == NULL);
  FUZZ_CHECK(model.window != 0 ? model.window_first < model.layers && model.window_period <= model.layers
                               : model.window_first == 0 && model.window_period == 0);
  FUZZ_CHECK(isfinite(model.score_scale) && model.score_scale >= 0 && isfinite(model.score_softcap));
  if (bl_model_check(&model, &err) == BL_OK) { // its layers are few enough to list
    check_round(&model);
  }
  return 0;
}
