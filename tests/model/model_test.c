// SPDX-License-Identifier: Apache-2.0
// Verifies the checks of a model's numbers (each refusal names its field) and the operation counts.
#include "model/model.h"

#include "model/flops.h"
#include "model/models.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void expect_refused(bl_model_t model, const char *field) {
  bl_error_t err;
  bl_error_clear(&err);
  assert_int_equal(bl_model_check(&model, &err), BL_INVALID);
  if (strncmp(err.text, field, strlen(field)) != 0) {
    fail_msg("expected a message about %s, got: %s", field, err.text);
  }
}

static void bad_models_are_refused_by_field(void **state) {
  (void)state;
  bl_error_t err;
  bl_model_t good = gpt2_small(), llama = tiny_llama();
  assert_int_equal(bl_model_check(&good, &err), BL_OK);
  assert_int_equal(bl_model_check(&llama, &err), BL_OK);
  bl_model_t bad = good;
  bad.layers = 0;
  expect_refused(bad, "model.layers:");
  bad = good;
  bad.heads = bad.kv_heads = 10;
  bad.head_dim = 76;
  expect_refused(bad, "model.heads:");
  bad = good;
  bad.kv_heads = 4;
  expect_refused(bad, "model.kv_heads:");
  bad = llama;
  bad.kv_heads = 5;
  expect_refused(bad, "model.kv_heads:");
  bad = llama;
  bad.head_dim = 63;
  expect_refused(bad, "model.heads:");
  bad = llama;
  bad.rope.theta = 0;
  expect_refused(bad, "model.rope: rope_theta");
  bad = good;
  bad.norm_epsilon = -1;
  expect_refused(bad, "model.norm_epsilon:");
  bad = good;
  bad.positions = bad.seq - 1;
  expect_refused(bad, "model.seq:");
  bad = llama; // each number alone is allowed, their product is not
  bad.hidden = bad.ffn = BL_MODEL_DIMENSION_MAX;
  expect_refused(bad, "model.layers:");
  bad = llama;
  bad.rope.dims = 66;
  expect_refused(bad, "model.rope:");
  bad = llama;
  bad.window_rope.theta = -1;
  expect_refused(bad, "model.rope:");
  bad = llama;
  bad.logit_softcap = -30;
  expect_refused(bad, "model.logit_softcap:");
  bad = good;
  bad.post_norm = true;
  expect_refused(bad, "model.family:");
  bad = good;
  bad.vocab = UINT32_MAX;
  expect_refused(bad, "model.vocab:");
}

// 6 operations per weight and token, the embedding tables left out, the tied head counted as a product.
static void operations_of_gpt2(void **state) {
  (void)state;
  bl_model_t model = gpt2_small();
  bl_flops_t matmul = bl_flops_matmul(&model, bl_chunk_span_whole(&model), 1);
  double weights = 12.0 * 12 * 768 * 768 + 50257.0 * 768;
  assert_true(bl_flops_total(matmul) == 6 * 1024 * weights);
  bl_flops_t square = bl_flops_attention(&model, bl_chunk_span_whole(&model), 1, BL_ATTENTION_NAIVE, false);
  assert_true(square.forward == 4.0 * 1024 * 1024 * 768 * 12);
  bl_flops_t causal = bl_flops_attention(&model, bl_chunk_span_whole(&model), 1, BL_ATTENTION_NAIVE, true);
  assert_true(causal.forward == square.forward * 1025 / 2048);
  bl_flops_t published = bl_flops_attention_published(&model, bl_chunk_span_whole(&model), 1);
  assert_true(bl_flops_total(published) == bl_flops_total(square));
}

// Which layers have a window, and what their queries see, counted one by one.
static void operations_with_windows(void **state) {
  (void)state;
  bl_model_t model = gemma3_1b();
  model.seq = 700;
  model.window_first = 3;
  double seen = 0;
  for (uint32_t layer = 0; layer < model.layers; layer++) {
    const bool window = layer >= 3 && layer != 5 && layer != 11 && layer != 17 && layer != 23;
    assert_int_equal(bl_model_has_window(&model, layer), window);
    assert_true(bl_model_rope(&model, window)->theta == (window ? 1e4 : 1e6));
    for (uint32_t query = 0; query < model.seq; query++) {
      seen += window && query >= model.window ? model.window : query + 1;
    }
  }
  bl_flops_t found = bl_flops_attention(&model, bl_chunk_span_whole(&model), 1, BL_ATTENTION_NAIVE, true);
  const double expected = 4 * seen * bl_model_query_width(&model);
  assert_true(found.forward > 0.999999 * expected && found.forward < 1.000001 * expected);
  // Published figures count no mask, but the window: 512 keys for every query, or all 700 in a layer without.
  found = bl_flops_attention_published(&model, bl_chunk_span_whole(&model), 1);
  const double keys = 19 * 512.0 + 7 * 700.0; // the first three layers have none either
  assert_true(fabs(found.forward / (4 * 700 * keys * bl_model_query_width(&model)) - 1) < 1e-6);
  model.seq = 512; // as long as the window: it hides nothing, but its layers keep their rotation
  assert_true(bl_model_has_window(&model, 3) && bl_model_keys(&model, true) == 512);
  assert_true(bl_flops_recompute_share(&model, bl_chunk_span_whole(&model), BL_ATTENTION_NAIVE) == 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bad_models_are_refused_by_field),
      cmocka_unit_test(operations_of_gpt2),
      cmocka_unit_test(operations_with_windows),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
