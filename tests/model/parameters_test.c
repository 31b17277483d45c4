// SPDX-License-Identifier: Apache-2.0
// Verifies the canonical parameter list against published models, its lookups, which chunk holds what, and that
// initial values depend on (seed, name, element) alone.
#include "model/parameters.h"

#include "model/chunk_span.h"
#include "model/models.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

static void published_models_have_their_parameters(void **state) {
  (void)state;
  bl_model_t gpt2 = gpt2_small(), llama = tiny_llama();
  assert_int_equal(bl_parameter_count(&gpt2), 2 + 12 * 12 + 2);
  assert_int_equal(bl_model_parameter_elements(&gpt2), 124439808);
  assert_int_equal(bl_parameter_count(&llama), 1 + 9 * 22 + 2);
  assert_int_equal(bl_model_parameter_elements(&llama), 1100048384);
  gpt2.tied = false;
  assert_int_equal(bl_model_parameter_elements(&gpt2), 124439808 + 50257 * 768);
  const struct {
    bl_model_t model;
    uint64_t elements;
  } published[] = {
      {qwen3_600m(), 596049920}, {phi3_mini(), 3821079552}, {gemma2_2b(), 2614341888}, {gemma3_1b(), 999885952}};
  for (size_t i = 0; i < sizeof published / sizeof published[0]; i++) {
    assert_int_equal(bl_model_check(&published[i].model, NULL), BL_OK);
    assert_int_equal(bl_model_parameter_elements(&published[i].model), published[i].elements);
  }
}

// Gains that are kept as distances from one begin at one all the same.
static void gains_begin_at_one(void **state) {
  (void)state;
  const bl_model_t models[] = {qwen3_600m(), gemma3_1b()};
  for (size_t i = 0; i < 2; i++) {
    bl_parameter_t p;
    float values[128];
    assert_true(bl_parameter_find(&models[i], "model.layers.3.self_attn.k_norm.weight", &p));
    assert_int_equal(p.elements, models[i].head_dim);
    assert_false(p.decays);
    bl_parameter_initial(&models[i], &p, 1, 0, 128, values);
    for (size_t k = 0; k < 128; k++) {
      assert_true(values[k] + (models[i].gains_from_one ? 1.0f : 0.0f) == 1.0f);
    }
  }
}

static void names_shapes_and_orientation(void **state) {
  (void)state;
  bl_model_t gpt2 = gpt2_small(), llama = tiny_llama();
  bl_parameter_t p;
  assert_true(bl_parameter_find(&gpt2, "transformer.h.11.attn.c_attn.weight", &p));
  assert_int_equal(p.shape[0], 768);
  assert_int_equal(p.shape[1], 2304);
  assert_true(p.input_major && p.decays);
  assert_int_equal(p.layer, 11);
  assert_true(bl_parameter_find(&gpt2, "h.0.ln_1.bias", &p));
  assert_string_equal(p.name, "transformer.h.0.ln_1.bias");
  assert_false(p.decays);
  assert_true(bl_parameter_find(&gpt2, "wte.weight", &p));
  assert_false(p.input_major);
  gpt2.seq = 256;
  gpt2.positions = 1024; // a checkpoint's table stays whole when sequences are shorter
  assert_true(bl_parameter_find(&gpt2, "wpe.weight", &p));
  assert_int_equal(p.shape[0], 1024);
  assert_false(bl_parameter_find(&gpt2, "lm_head.weight", &p));
  assert_false(bl_parameter_find(&gpt2, "transformer.h.12.ln_1.bias", &p));
  assert_true(bl_parameter_find(&llama, "model.layers.21.self_attn.k_proj.weight", &p));
  assert_int_equal(p.shape[0], 256);
  assert_int_equal(p.shape[1], 2048);
  assert_false(p.input_major);
  assert_true(bl_parameter_find(&llama, "lm_head.weight", &p));
  assert_int_equal(p.index, bl_parameter_count(&llama) - 1);
}

static void every_index_is_found_again(void **state) {
  (void)state;
  for (int tied = 0; tied < 2; tied++) {
    bl_model_t models[] = {gpt2_small(), tiny_llama(), qwen3_600m(), phi3_mini(), gemma2_2b(), gemma3_1b()};
    for (int m = 0; m < 6; m++) {
      models[m].tied = tied;
      for (uint32_t i = 0; i < bl_parameter_count(&models[m]); i++) {
        bl_parameter_t p = bl_parameter_get(&models[m], i), found;
        assert_int_equal(bl_parameter_index(&models[m], p.role, p.layer < 0 ? 0 : (uint32_t)p.layer), i);
        assert_true(bl_parameter_find(&models[m], p.name, &found));
        assert_int_equal(found.index, i);
      }
    }
  }
}

// Chunks of 5 + 7 layers hold every parameter once; the tied head's copy is there but not owned.
static void chunks_cover_the_model_once(void **state) {
  (void)state;
  for (int tied = 0; tied < 2; tied++) {
    bl_model_t model = gpt2_small();
    model.tied = tied;
    bl_chunk_span_t spans[] = {{0, 5, true, false}, {5, 7, false, true}};
    uint32_t expected = 0;
    for (int s = 0; s < 2; s++) {
      uint32_t count = bl_chunk_span_parameter_count(&model, spans[s]);
      for (uint32_t i = 0; i < count; i++) {
        uint32_t index = bl_chunk_span_parameter(&model, spans[s], i);
        if (bl_chunk_span_owns(&model, spans[s], index)) {
          assert_int_equal(index, expected++);
        } else {
          assert_true(tied && s == 1 && i == 0 && index == 0);
        }
      }
    }
    assert_int_equal(expected, bl_parameter_count(&model));
  }
}

static void places_are_disjoint_and_groups_adjacent(void **state) {
  (void)state;
  bl_model_t model = tiny_llama();
  model.hidden = 2046; // so that k's size is no multiple of a cache line
  model.head_dim = 66;
  bl_chunk_span_t span = bl_chunk_span_whole(&model);
  uint32_t count = bl_chunk_span_parameter_count(&model, span);
  bl_parameter_place_t *places = calloc(count, sizeof *places);
  assert_non_null(places);
  uint64_t elements = bl_chunk_span_places(&model, span, (bl_layer_parts_t){0}, places), end = 0;
  for (uint32_t i = 0; i < count; i++) {
    bl_parameter_role_t role = bl_parameter_get(&model, places[i].canonical_index).role;
    if (role == BL_PARAMETER_K_WEIGHT || role == BL_PARAMETER_V_WEIGHT || role == BL_PARAMETER_UP_WEIGHT) {
      assert_int_equal(places[i].offset_elements, end);
    } else {
      assert_true(places[i].offset_elements >= end);
      assert_int_equal(places[i].offset_elements % 16, 0);
    }
    end = places[i].offset_elements + places[i].elements;
  }
  assert_true(elements >= end);
  free(places);
}

static void initial_values_follow_the_rule(void **state) {
  (void)state;
  bl_model_t model = gpt2_small();
  const struct {
    bl_parameter_role_t role;
    double mean, deviation;
  } cases[] = {
      {BL_PARAMETER_QKV_WEIGHT, 0, 0.02},
      {BL_PARAMETER_FFN_OUT_WEIGHT, 0, 0.02 / 4.898979485566356},
      {BL_PARAMETER_ATTENTION_OUT_WEIGHT, 0, 0.02 / 4.898979485566356},
      {BL_PARAMETER_QKV_BIAS, 0, 0},
      {BL_PARAMETER_NORM1_WEIGHT, 1, 0},
      {BL_PARAMETER_TOKEN_EMBEDDING, 0, 0.02},
  };
  enum { COUNT = 2000 };
  static float values[COUNT], again[COUNT];
  for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
    bl_parameter_t p = bl_parameter_get(&model, bl_parameter_index(&model, cases[c].role, 3));
    uint64_t count = p.elements < COUNT ? p.elements : COUNT;
    bl_parameter_initial(&model, &p, 5, 0, count, values);
    bl_parameter_initial(&model, &p, 5, 100, count - 100, again);
    double sum = 0, squares = 0;
    for (uint64_t i = 0; i < count; i++) {
      sum += values[i];
      squares += (double)values[i] * values[i];
      if (i >= 100) {
        assert_true(values[i] == again[i - 100]);
      }
    }
    double mean = sum / (double)count, deviation = sqrt(fmax(0, squares / (double)count - mean * mean));
    assert_true(fabs(mean - cases[c].mean) <= 0.1 * cases[c].deviation);
    assert_true(fabs(deviation - cases[c].deviation) <= 0.1 * cases[c].deviation);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(published_models_have_their_parameters),
      cmocka_unit_test(gains_begin_at_one),
      cmocka_unit_test(names_shapes_and_orientation),
      cmocka_unit_test(every_index_is_found_again),
      cmocka_unit_test(chunks_cover_the_model_once),
      cmocka_unit_test(places_are_disjoint_and_groups_adjacent),
      cmocka_unit_test(initial_values_follow_the_rule),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
