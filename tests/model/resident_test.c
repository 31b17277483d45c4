// SPDX-License-Identifier: Apache-2.0
// Verifies which weights stay on a device whose optimizer is on its host: all in fp32, where they lie as before; in bf16
// those that operations read as they are, without overlap, together where one operation reads them together.
#include "model/resident.h"

#include "base/bytes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LINE (BL_CACHE_LINE_BYTES / sizeof(float))

static bl_model_t llama(bool tied) {
  return (bl_model_t){.family = BL_FAMILY_LLAMA,
                      .layers = 3,
                      .hidden = 20,
                      .heads = 2,
                      .kv_heads = 1,
                      .head_dim = 10,
                      .ffn = 30,
                      .vocab = 11,
                      .seq = 8,
                      .tied = tied,
                      .qkv_bias = true,
                      .norm_epsilon = 1e-5};
}

static bool is_matrix(const bl_parameter_t *p) {
  return p->rank == 2 && p->role != BL_PARAMETER_TOKEN_EMBEDDING;
}

static void check(bl_model_t model, bl_chunk_span_t span) {
  const bl_layer_parts_t whole = {0};
  const uint32_t count = bl_chunk_span_place_count(&model, span, whole);
  bl_parameter_place_t *places = calloc(count, sizeof *places);
  uint64_t *offsets = calloc(count, sizeof *offsets), end = 0;
  assert_true(places != NULL && offsets != NULL);
  const uint64_t all = bl_chunk_span_places(&model, span, whole, places);
  assert_int_equal(bl_resident_weights(&model, span, BL_DTYPE_FP32, places, count, offsets), all);
  for (uint32_t i = 0; i < count; i++) {
    assert_int_equal(offsets[i], places[i].offset_elements);
  }
  const uint64_t some = bl_resident_weights(&model, span, BL_DTYPE_BF16, places, count, offsets);
  assert_int_equal(bl_resident_weights(&model, span, BL_DTYPE_BF16, places, count, NULL), some);
  for (uint32_t i = 0; i < count; i++) {
    const bl_parameter_t p = bl_parameter_get(&model, places[i].canonical_index);
    const bool copy = p.role == BL_PARAMETER_TOKEN_EMBEDDING && !span.embedding; // a tied head's
    assert_int_equal(offsets[i] == BL_RESIDENT_NOWHERE, is_matrix(&p) || copy);
    if (offsets[i] == BL_RESIDENT_NOWHERE) {
      continue;
    }
    assert_true(offsets[i] >= end);
    const bool follows =
        i > 0 && places[i].offset_elements == places[i - 1].offset_elements + places[i - 1].reserved_elements;
    assert_true(offsets[i] % LINE == 0 || (follows && offsets[i] == end));
    if (p.role == BL_PARAMETER_K_BIAS || p.role == BL_PARAMETER_V_BIAS) {
      assert_int_equal(offsets[i], offsets[i - 1] + places[i - 1].reserved_elements); // read with those before
    }
    end = offsets[i] + places[i].reserved_elements;
  }
  assert_int_equal(some, bl_align_up(end, LINE));
  free(offsets);
  free(places);
}

static void what_products_read_leaves(void **state) {
  (void)state;
  for (int tied = 0; tied < 2; tied++) {
    const bl_model_t model = llama(tied == 1);
    check(model, bl_chunk_span_whole(&model));
    check(model, (bl_chunk_span_t){.layer_count = 1, .embedding = true});
    check(model, (bl_chunk_span_t){.first_layer = 1, .layer_count = 1});
    check(model, (bl_chunk_span_t){.first_layer = 2, .layer_count = 1, .head = true});
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(what_products_read_leaves)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
