// SPDX-License-Identifier: Apache-2.0
// Verifies the block layout: sizes in units of T * hidden, disjoint segments, the evicted prefix, lean and recomputed
// forms, the block of a forward that keeps nothing, and that absurd sizes are refused.
#include "model/layout.h"

#include "model/models.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static bl_layout_t make_with(bl_model_t model, bl_chunk_span_t span, bl_layout_options_t options) {
  bl_layout_t layout;
  assert_int_equal(bl_layout_init(&layout, &model, span, options), BL_OK);
  return layout;
}

static bl_layout_t make(bl_model_t model, bl_chunk_span_t span, bl_attention_t attention, bl_backward_t backward,
                        bool lean) {
  return make_with(model, span,
                   (bl_layout_options_t){.micro_batch = 2, .attention = attention, .backward = backward, .lean = lean});
}

// Units of T * hidden that activations of one more layer add to the slot, statistics and norm parts left out.
static double units_per_layer(bl_backward_t backward, bool lean, bool evicted) {
  bl_model_t model = gpt2_small();
  bl_layout_t layout = make(model, (bl_chunk_span_t){1, 2, false, false}, BL_ATTENTION_FLASH, backward, lean);
  uint64_t small = 0;
  const bl_segment_kind_t extras[] = {BL_SEGMENT_NORM1_STATS, BL_SEGMENT_NORM2_STATS, BL_SEGMENT_SCORES,
                                      BL_SEGMENT_NORM1_GRADIENT, BL_SEGMENT_NORM2_GRADIENT};
  for (size_t i = 0; i < sizeof extras / sizeof extras[0]; i++) {
    bl_segment_t segment;
    assert_true(bl_layout_segment(&layout, 1, extras[i], &segment));
    small += evicted && segment.lifetime == BL_LIFETIME_I_TO_W ? 0 : segment.bytes;
  }
  uint64_t bytes = layout.kept_stride_bytes + (evicted ? 0 : layout.gradient_stride_bytes);
  return (double)(bytes - small) / (double)layout.edge_bytes;
}

static void a_gpt_layer_is_16_units_and_10_when_lean(void **state) {
  (void)state;
  assert_true(units_per_layer(BL_BACKWARD_SPLIT, false, false) == 16);
  assert_true(units_per_layer(BL_BACKWARD_SPLIT, false, true) == 16);
  assert_true(units_per_layer(BL_BACKWARD_SPLIT, true, false) == 16);
  assert_true(units_per_layer(BL_BACKWARD_SPLIT, true, true) == 10);
  assert_true(units_per_layer(BL_BACKWARD_FUSED, true, false) == 10);
  bl_layout_t lean =
      make(gpt2_small(), (bl_chunk_span_t){1, 2, false, false}, BL_ATTENTION_FLASH, BL_BACKWARD_FUSED, true);
  assert_int_equal(lean.backward_stride_bytes, 6 * lean.edge_bytes);
  assert_int_equal(lean.shared_bytes, 0);
}

// Activations and edges take half the bytes in bf16; statistics, log-sum-exp and parts of gradients stay floats.
static void bf16_halves_what_is_not_float(void **state) {
  (void)state;
  const bl_attention_t kinds[] = {BL_ATTENTION_NAIVE, BL_ATTENTION_FLASH};
  const bl_model_t models[] = {gpt2_small(), gemma3_1b()};
  for (int i = 0; i < 4; i++) {
    const bl_model_t model = models[i / 2];
    bl_layout_options_t options = {.micro_batch = 2, .attention = kinds[i % 2]};
    bl_layout_t wide = make_with(model, (bl_chunk_span_t){0, 2, true, true}, options);
    options.dtype = BL_DTYPE_BF16;
    bl_layout_t half = make_with(model, (bl_chunk_span_t){0, 2, true, true}, options);
    assert_int_equal(2 * half.edge_bytes, wide.edge_bytes);
    for (int kind = 0; kind < BL_SEGMENT_KINDS; kind++) {
      const bool flash_scores = kind == BL_SEGMENT_SCORES && kinds[i % 2] == BL_ATTENTION_FLASH;
      const bool is_float = flash_scores || kind == BL_SEGMENT_NORM1_STATS || kind == BL_SEGMENT_NORM2_STATS ||
                            kind == BL_SEGMENT_POST1_STATS || kind == BL_SEGMENT_POST2_STATS ||
                            kind >= BL_SEGMENT_NORM1_GRADIENT;
      bl_segment_t a, b;
      const bool there = bl_layout_segment(&wide, 1, (bl_segment_kind_t)kind, &a);
      assert_int_equal(bl_layout_segment(&half, 1, (bl_segment_kind_t)kind, &b), there);
      if (!there) {
        assert_true(!model.head_norm); // gemma has every kind
        continue;
      }
      assert_int_equal(b.bytes * (is_float ? 1 : 2), a.bytes);
    }
    assert_in_range(half.slot_bytes, wide.slot_bytes / 2, wide.slot_bytes / 2 + wide.slot_bytes / 200);
  }
}

// What keeping no scores and no attention saves in a slot and in an eviction, and what workspace it takes.
static void recomputed_attention_is_not_kept(void **state) {
  (void)state;
  const bl_chunk_span_t span = {1, 3, false, false};
  bl_layout_options_t options = {.micro_batch = 2, .attention = BL_ATTENTION_NAIVE, .backward = BL_BACKWARD_FUSED};
  bl_model_t model = gpt2_small();
  const uint64_t scores = 2ull * model.heads * model.seq * model.seq * 4;
  for (int split = 0; split < 2; split++) {
    options.backward = split ? BL_BACKWARD_SPLIT : BL_BACKWARD_FUSED;
    options.recompute = BL_RECOMPUTE_NONE;
    bl_layout_t kept = make_with(model, span, options);
    options.recompute = BL_RECOMPUTE_ATTENTION;
    bl_layout_t remade = make_with(model, span, options);
    const uint64_t attention = kept.edge_bytes;
    assert_int_equal(kept.evict_bytes - remade.evict_bytes, 3 * (scores + attention));
    assert_int_equal(kept.slot_bytes - remade.slot_bytes, 3 * (scores + (split ? 0 : attention)));
    assert_int_equal(remade.shared_bytes, scores);
    assert_int_equal(remade.backward_stride_bytes, split ? 0 : attention);
  }
}

// With full recomputation a slot is what it was; the block of one layer has all kinds but x1, apart from each other.
static void a_forward_that_keeps_nothing_needs_one_layer(void **state) {
  (void)state;
  const bl_chunk_span_t one = {0, 1, true, false}, five = {0, 5, true, false};
  bl_layout_options_t options = {.micro_batch = 2, .attention = BL_ATTENTION_FLASH, .backward = BL_BACKWARD_FUSED};
  bl_layout_t plain = make_with(gpt2_small(), five, options);
  options.recompute = BL_RECOMPUTE_FULL;
  for (int lean = 0; lean < 2; lean++) {
    options.lean = lean;
    bl_layout_t layout = make_with(gpt2_small(), five, options), single = make_with(gpt2_small(), one, options);
    assert_true(lean || layout.slot_bytes == plain.slot_bytes);
    assert_int_equal(bl_layout_layer_bytes(&layout), single.slot_bytes);
    for (int kind = 0; kind < BL_SEGMENT_KINDS; kind++) {
      bl_segment_t expected = {0}, found = {0};
      bool exists = bl_layout_segment(&single, 0, (bl_segment_kind_t)kind, &expected);
      assert_int_equal(bl_layout_layer_segment(&layout, 3, (bl_segment_kind_t)kind, &found), exists);
      if (exists && expected.lifetime != BL_LIFETIME_BACKWARD) {
        assert_int_equal(found.offset_bytes, expected.offset_bytes);
        assert_int_equal(found.bytes, expected.bytes);
      }
    }
  }
}

// Marks every byte of every segment once; the prefix up to evict_bytes holds exactly what lives between F and I.
static void check_disjoint(bl_model_t model, bl_chunk_span_t span, bl_layout_options_t options) {
  bl_layout_t layout = make_with(model, span, options);
  const uint64_t backward_bytes = span.layer_count * layout.backward_stride_bytes;
  unsigned char *used = calloc(1, layout.slot_bytes + 1), *backward = calloc(1, backward_bytes + 1);
  assert_true(used != NULL && backward != NULL);
  for (uint32_t layer = 0; layer < (span.layer_count ? span.layer_count : 1); layer++) {
    for (int kind = 0; kind < BL_SEGMENT_KINDS; kind++) {
      bl_segment_t segment;
      if ((kind == BL_SEGMENT_FINAL_GRADIENT && layer > 0) ||
          !bl_layout_segment(&layout, layer, (bl_segment_kind_t)kind, &segment)) {
        continue;
      }
      assert_int_equal(segment.offset_bytes % 64, 0);
      if (segment.lifetime == BL_LIFETIME_LAYER) {
        assert_true(segment.offset_bytes + segment.bytes <= layout.shared_bytes);
        continue;
      }
      if (segment.lifetime == BL_LIFETIME_BACKWARD) {
        assert_true(segment.offset_bytes + segment.bytes <= backward_bytes);
        for (uint64_t i = 0; i < segment.bytes; i++) {
          assert_int_equal(backward[segment.offset_bytes + i]++, 0);
        }
        continue;
      }
      assert_true(segment.offset_bytes + segment.bytes <= layout.slot_bytes);
      assert_true((segment.lifetime == BL_LIFETIME_I_TO_W) == (segment.offset_bytes >= layout.evict_bytes));
      for (uint64_t i = 0; i < segment.bytes; i++) {
        assert_int_equal(used[segment.offset_bytes + i]++, 0);
      }
    }
  }
  free(backward);
  free(used);
}

static void segments_are_disjoint(void **state) {
  (void)state;
  bl_model_t models[] = {gpt2_small(), tiny_llama(), gemma3_1b()};
  const bl_chunk_span_t spans[] = {{0, 1, true, false}, {1, 3, false, true}, {4, 0, false, true}};
  for (int m = 0; m < 3; m++) {
    models[m].hidden = 60; // sizes that are no multiple of a cache line
    models[m].heads = models[m].family == BL_FAMILY_GPT2 ? 6 : 4;
    models[m].kv_heads = models[m].family == BL_FAMILY_GPT2 ? 6 : 2;
    models[m].head_dim = 10;
    models[m].ffn = 100;
    models[m].seq = 7;
    for (int variant = 0; variant < 72; variant++) {
      bl_layout_options_t options = {.micro_batch = 2,
                                     .attention = variant & 1 ? BL_ATTENTION_FLASH : BL_ATTENTION_NAIVE,
                                     .backward = variant & 2 ? BL_BACKWARD_FUSED : BL_BACKWARD_SPLIT,
                                     .lean = variant & 4,
                                     .recompute = (bl_recompute_t)(variant / 24)};
      check_disjoint(models[m], spans[variant / 8 % 3], options);
    }
  }
}

// What is normalised after the projections is kept, two tensors more; heads are made again in workspace.
static void norms_after_projections_keep_their_inputs(void **state) {
  (void)state;
  const bl_chunk_span_t span = {1, 2, false, false};
  bl_model_t gemma = gemma3_1b(), plain = gemma;
  plain.head_norm = plain.post_norm = false;
  const bl_layout_t with = make(gemma, span, BL_ATTENTION_FLASH, BL_BACKWARD_FUSED, true);
  const bl_layout_t without = make(plain, span, BL_ATTENTION_FLASH, BL_BACKWARD_FUSED, true);
  const uint64_t rows = 2 * (uint64_t)gemma.seq, qkv = rows * bl_model_qkv_width(&gemma) * sizeof(float);
  assert_int_equal(with.kept_stride_bytes - without.kept_stride_bytes, 2 * (with.edge_bytes + rows * sizeof(float)));
  assert_int_equal(with.shared_bytes - without.shared_bytes, qkv);
  bl_segment_t segment;
  assert_false(bl_layout_segment(&without, 0, BL_SEGMENT_HEADS, &segment));
  assert_false(bl_layout_segment(&without, 0, BL_SEGMENT_POST2, &segment));
}

static void the_first_layer_keeps_no_input(void **state) {
  (void)state;
  bl_layout_t layout =
      make(gpt2_small(), (bl_chunk_span_t){3, 2, false, false}, BL_ATTENTION_NAIVE, BL_BACKWARD_SPLIT, false);
  bl_segment_t segment;
  assert_false(bl_layout_segment(&layout, 0, BL_SEGMENT_X1, &segment));
  assert_true(bl_layout_segment(&layout, 1, BL_SEGMENT_X1, &segment));
  assert_false(bl_layout_segment(&layout, 2, BL_SEGMENT_QKV, &segment));
  assert_false(bl_layout_segment(&layout, 0, BL_SEGMENT_FINAL_GRADIENT, &segment));
}

static void absurd_sizes_are_refused(void **state) {
  (void)state;
  bl_model_t model = tiny_llama();
  model.seq = model.hidden = BL_MODEL_DIMENSION_MAX;
  bl_layout_t layout;
  bl_layout_options_t options = {.micro_batch = UINT32_MAX, .attention = BL_ATTENTION_NAIVE};
  assert_int_equal(bl_layout_init(&layout, &model, bl_chunk_span_whole(&model), options), BL_INVALID);
  options.micro_batch = 0;
  assert_int_equal(bl_layout_init(&layout, &model, bl_chunk_span_whole(&model), options), BL_INVALID);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_gpt_layer_is_16_units_and_10_when_lean),
      cmocka_unit_test(bf16_halves_what_is_not_float),
      cmocka_unit_test(recomputed_attention_is_not_kept),
      cmocka_unit_test(a_forward_that_keeps_nothing_needs_one_layer),
      cmocka_unit_test(segments_are_disjoint),
      cmocka_unit_test(norms_after_projections_keep_their_inputs),
      cmocka_unit_test(the_first_layer_keeps_no_input),
      cmocka_unit_test(absurd_sizes_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
