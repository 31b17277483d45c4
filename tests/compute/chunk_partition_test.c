// SPDX-License-Identifier: Apache-2.0
// Verifies that the number of chunks, the order of operations, fused or split or delayed backward, lean blocks and every
// kind of recomputation change no bit, in fp32 and in bf16: losses, gradient norms and weights after two steps are
// compared with one chunk under gpipe. Buffers are NaN before each operation that must not read them (trainer.h).
#include "compute/properties.h"
#include "compute/trainer.h"
#include "instrumented.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define STEPS         2
#define MICRO_BATCHES 5
#define MICRO_BATCH   2

typedef struct {
  double losses[STEPS][MICRO_BATCHES];
  double norms[STEPS];
  float *weights; // all parameters in canonical order
  uint64_t elements;
} outcome_t;

static bl_instruction_set_t instruction_set; // of all trainers

typedef struct {
  uint32_t chunks;
  bl_layout_options_t layout;
  trainer_order_t order;
  bool prepack;
  uint32_t threads;
} variant_t;

static void collect_weights(trainer_t *trainer, const bl_model_t *model, uint32_t chunks, outcome_t *outcome) {
  outcome->elements = bl_model_parameter_elements(model);
  outcome->weights = malloc(outcome->elements * sizeof *outcome->weights);
  assert_non_null(outcome->weights);
  uint64_t at = 0;
  for (uint32_t c = 0; c < chunks; c++) {
    bl_chunk_t *chunk = trainer_chunk(trainer, c);
    for (uint32_t i = 0; i < bl_chunk_parameter_count(chunk); i++) {
      bl_chunk_parameter_t p = bl_chunk_parameter(chunk, i);
      if (p.owned) {
        memcpy(outcome->weights + at, p.weight, p.parameter.elements * sizeof(float));
        at += p.parameter.elements;
      }
    }
  }
  assert_int_equal(at, outcome->elements);
}

static void train(const bl_model_t *model, variant_t variant, outcome_t *outcome) {
  trainer_options_t options = {.model = *model,
                               .chunks = variant.chunks,
                               .micro_batches = MICRO_BATCHES,
                               .layout = variant.layout,
                               .prepack = variant.prepack,
                               .threads = variant.threads,
                               .instruction_set = instruction_set,
                               .seed = 17};
  trainer_t *trainer = trainer_create(&options);
  const uint64_t count = (uint64_t)MICRO_BATCHES * MICRO_BATCH * model->seq;
  int32_t *tokens = malloc(count * sizeof *tokens), *labels = malloc(count * sizeof *labels);
  assert_true(tokens && labels);
  trainer_op_t ops[TRAINER_OPS_MAX];
  size_t op_count = trainer_make_order(variant.order, variant.chunks, MICRO_BATCHES, ops);
  bl_adamw_settings_t settings = {.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1};
  for (int step = 0; step < STEPS; step++) {
    trainer_random_tokens(model, (uint64_t)step, count, tokens, labels);
    trainer_run(trainer, tokens, labels, ops, op_count, outcome->losses[step]);
    outcome->norms[step] = trainer_gradient_norm(trainer);
    trainer_update(trainer, &settings, (uint64_t)step + 1, 1e-2, 1.0, outcome->norms[step]);
  }
  collect_weights(trainer, model, variant.chunks, outcome);
  free(tokens);
  free(labels);
  trainer_destroy(trainer);
}

static void expect_equal(const outcome_t *expected, const outcome_t *found, const char *what) {
  for (int step = 0; step < STEPS; step++) {
    for (int i = 0; i < MICRO_BATCHES; i++) {
      if (expected->losses[step][i] != found->losses[step][i]) {
        fail_msg("%s: loss of step %d, micro-batch %d is %.17g, expected %.17g", what, step, i, found->losses[step][i],
                 expected->losses[step][i]);
      }
    }
    if (expected->norms[step] != found->norms[step]) {
      fail_msg("%s: gradient norm of step %d is %.17g, expected %.17g", what, step, found->norms[step],
               expected->norms[step]);
    }
  }
  for (uint64_t i = 0; i < expected->elements; i++) {
    if (expected->weights[i] != found->weights[i]) { // NaN is different, too
      fail_msg("%s: weight %llu is %.9g, expected %.9g", what, (unsigned long long)i, (double)found->weights[i],
               (double)expected->weights[i]);
    }
  }
}

// All variants of a model and an attention kind against one chunk, gpipe, fused, nothing lean.
static void check_model(bl_model_t model, bl_attention_t attention, bl_dtype_t dtype, bool prepack, uint32_t threads) {
  const trainer_order_t gpipe = {0}, one_f_one_b = {.one_forward_one_backward = true};
  const trainer_order_t split = {.split = true},
                        delayed = {.one_forward_one_backward = true, .split = true, .delay = 2};
  const trainer_order_t last = {.one_forward_one_backward = true, .split = true, .delay = 9};
  const trainer_order_t again = {.one_forward_one_backward = true, .recompute = true};
  const trainer_order_t again_split = {.split = true, .delay = 1, .recompute = true};
  const bl_layout_options_t plain = {.micro_batch = MICRO_BATCH, .attention = attention, .dtype = dtype};
  const trainer_order_t gpipe_again = {.recompute = true, .gradient_first = true};
  const trainer_order_t early = {.one_forward_one_backward = true, .gradient_first = true};
  bl_layout_options_t lean = plain, lean_fused = plain, fused = plain;
  fused.backward = BL_BACKWARD_FUSED;
  lean.lean = lean_fused.lean = true;
  lean_fused.backward = BL_BACKWARD_FUSED;
  bl_layout_options_t remade = fused, remade_lean = lean_fused, remade_split = plain, full = fused, full_lean = lean;
  remade.recompute = remade_lean.recompute = remade_split.recompute = BL_RECOMPUTE_ATTENTION;
  full.recompute = full_lean.recompute = BL_RECOMPUTE_FULL;
  const struct {
    const char *name;
    variant_t variant;
  } cases[] = {
      {"1 chunk, 1f1b", {1, fused, one_f_one_b, prepack, threads}},
      {"1 chunk, split", {1, plain, split, prepack, threads}},
      {"2 chunks, gpipe", {2, fused, gpipe, prepack, threads}},
      {"2 chunks, 1f1b, W delayed by 2", {2, plain, delayed, prepack, threads}},
      {"2 chunks, 1f1b, lean, fused", {2, lean_fused, one_f_one_b, prepack, threads}},
      {"2 chunks, lean, W after all I", {2, lean, last, prepack, threads}},
      {"3 chunks, 1f1b", {3, plain, one_f_one_b, prepack, threads}},
      {"3 chunks, recomputed", {3, plain, again, prepack, threads}},
      {"3 chunks, recomputed, split, lean", {3, lean, again_split, prepack, threads}},
      {"3 chunks, recomputed, fused, lean", {3, lean_fused, again, prepack, threads}},
      {"2 chunks, 1f1b, lean, gradient first", {2, lean_fused, early, prepack, threads}},
      {"1 chunk, recomputed attention", {1, remade, one_f_one_b, prepack, threads}},
      {"2 chunks, recomputed attention, gradient first", {2, remade, early, prepack, threads}},
      {"2 chunks, recomputed attention, lean, gradient first", {2, remade_lean, early, prepack, threads}},
      {"3 chunks, recomputed attention, W delayed by 2", {3, remade_split, delayed, prepack, threads}},
      {"1 chunk, full recomputation", {1, full, again, prepack, threads}},
      {"2 chunks, full recomputation, gpipe, gradient first", {2, full, gpipe_again, prepack, threads}},
      {"3 chunks, full recomputation", {3, full, again, prepack, threads}},
      {"3 chunks, full recomputation, split, lean", {3, full_lean, again_split, prepack, threads}},
  };
  outcome_t expected, found;
  train(&model, (variant_t){1, fused, gpipe, prepack, threads}, &expected);
  // bf16 has kernels of its own, not rules of its own: every third variant.
  const size_t step = dtype == BL_DTYPE_BF16 ? FEW_OR_ALL(8, 3) : FEW_OR_ALL(5, 1);
  for (size_t i = dtype == BL_DTYPE_BF16 ? 2 : 0; i < sizeof cases / sizeof cases[0]; i += step) {
    train(&model, cases[i].variant, &found);
    expect_equal(&expected, &found, cases[i].name);
    free(found.weights);
  }
  free(expected.weights);
}

// Sizes that are no multiple of a vector, and layers that no number of chunks but 1 and 5 divides.
static const bl_model_t gpt2 = {.family = BL_FAMILY_GPT2,
                                .layers = 5,
                                .hidden = 28,
                                .heads = 4,
                                .kv_heads = 4,
                                .head_dim = 7,
                                .ffn = 60,
                                .vocab = 41,
                                .seq = 19,
                                .tied = true,
                                .norm_epsilon = 1e-5,
                                .rope.theta = 10000};
static const bl_model_t llama = {.family = BL_FAMILY_LLAMA,
                                 .layers = 5,
                                 .hidden = 32,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .head_dim = 8,
                                 .ffn = 56,
                                 .vocab = 41,
                                 .seq = 19,
                                 .norm_epsilon = 1e-5,
                                 .rope.theta = 10000};

static void gpt2_tied_naive(void **state) {
  (void)state;
  check_model(gpt2, BL_ATTENTION_NAIVE, BL_DTYPE_FP32, false, 1);
}

static void gpt2_untied_flash(void **state) {
  (void)state;
  bl_model_t untied = gpt2;
  untied.tied = false;
  check_model(untied, BL_ATTENTION_FLASH, BL_DTYPE_FP32, true, 1);
}

static void llama_untied_flash(void **state) {
  (void)state;
  check_model(llama, BL_ATTENTION_FLASH, BL_DTYPE_FP32, false, 1);
}

static void llama_tied_naive(void **state) {
  (void)state;
  bl_model_t tied = llama;
  tied.tied = true;
  check_model(tied, BL_ATTENTION_NAIVE, BL_DTYPE_FP32, true, 1);
}

static void two_threads(void **state) {
  (void)state;
  check_model(gpt2, BL_ATTENTION_FLASH, BL_DTYPE_FP32, false, 2);
}

// Every tensor that passes from layer to layer is rounded there, so where chunks are cut does not show.
static void gpt2_bf16(void **state) {
  (void)state;
  check_model(gpt2, BL_ATTENTION_FLASH, BL_DTYPE_BF16, true, 1);
}

static void llama_bf16(void **state) {
  (void)state;
  check_model(llama, BL_ATTENTION_NAIVE, BL_DTYPE_BF16, false, 2);
}

static void norms_softcaps_and_windows(void **state) {
  (void)state;
  bl_model_t model = with_norms_softcaps_and_windows(llama);
  check_model(model, BL_ATTENTION_NAIVE, BL_DTYPE_FP32, true, 1);
  model.tied = true;
  check_model(model, BL_ATTENTION_FLASH, BL_DTYPE_BF16, false, 2);
}

static void fused_projections(void **state) {
  (void)state;
  check_model(fused_with_a_window(llama), BL_ATTENTION_FLASH, BL_DTYPE_FP32, true, 2);
  check_model(fused_with_a_window(llama), BL_ATTENTION_NAIVE, BL_DTYPE_BF16, true, 1);
}

static void bf16_without_instructions_for_it(void **state) {
  (void)state;
  instruction_set = BL_ISA_BASELINE;
  check_model(gpt2, BL_ATTENTION_FLASH, BL_DTYPE_BF16, true, 1);
  instruction_set = BL_ISA_AUTO;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(gpt2_tied_naive),    cmocka_unit_test(gpt2_untied_flash),
      cmocka_unit_test(llama_untied_flash), cmocka_unit_test(llama_tied_naive),
      cmocka_unit_test(two_threads),        cmocka_unit_test(gpt2_bf16),
      cmocka_unit_test(llama_bf16),         cmocka_unit_test(norms_softcaps_and_windows),
      cmocka_unit_test(fused_projections),  cmocka_unit_test(bf16_without_instructions_for_it),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
