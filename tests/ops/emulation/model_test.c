// SPDX-License-Identifier: Apache-2.0
// Verifies whole models on the CUDA back end without a GPU: the losses and gradient norms of two steps of small models, in whole
// layers, in layers of parts and over slices of sequences, are those of the host. What joins operations shows here: packed copies
// that the update writes, rows of logits that are apart, windows of parts, pages of slices, positions that begin in a slice.
#include "compute/ops/cuda/compute.h"
#include "compute/trainer.h"
#include "instrumented.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define STEPS 2

typedef struct {
  double losses[STEPS], norms[STEPS];
} outcome_t;

// Vocabulary and positions are no multiples of the parts.
static bl_model_t model_of(bl_family_t family) {
  const bool llama = family == BL_FAMILY_LLAMA;
  return (bl_model_t){.family = family,
                      .variant = llama ? BL_VARIANT_GEMMA2 : 0,
                      .layers = 2,
                      .hidden = 16,
                      .heads = 4,
                      .kv_heads = 4,
                      .head_dim = 4,
                      .ffn = llama ? 24 : 64,
                      .vocab = 71,
                      .seq = 6,
                      .positions = llama ? 0 : 7,
                      .tied = true,
                      .norm_epsilon = BL_NORM_EPSILON_DEFAULT,
                      .gate = llama ? BL_GATE_GELU : 0,
                      .gains_from_one = llama,
                      .post_norm = llama,
                      .embedding_scale = llama ? 2 : 0,
                      .logit_softcap = llama ? 6 : 0,
                      .rope.theta = BL_ROPE_THETA_DEFAULT};
}

static outcome_t train(const bl_ops_t *ops, const bl_model_t *model, bl_dtype_t dtype, uint32_t parts,
                       uint32_t slices) {
  const trainer_options_t options = {.model = *model,
                                     .chunks = 2,
                                     .micro_batches = 2,
                                     .layout = {.micro_batch = 2,
                                                .slices = slices,
                                                .attention = slices == 3 ? BL_ATTENTION_FLASH : BL_ATTENTION_NAIVE,
                                                .recompute = parts == 4 ? BL_RECOMPUTE_FULL : BL_RECOMPUTE_NONE,
                                                .dtype = dtype,
                                                .layer_parts.count = parts},
                                     .prepack = true,
                                     .seed = 3,
                                     .ops = ops};
  trainer_t *trainer = trainer_create(&options);
  int32_t tokens[24], labels[24];
  trainer_op_t order[TRAINER_OPS_MAX];
  const trainer_order_t how = {.split = true, .recompute = parts == 4, .slices = slices};
  const size_t count = trainer_make_order(how, options.chunks, options.micro_batches, order);
  const bl_adamw_settings_t settings = {.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1};
  outcome_t outcome;
  for (uint64_t step = 0; step < STEPS; step++) {
    double losses[2];
    trainer_random_tokens(model, step, 24, tokens, labels);
    trainer_run(trainer, tokens, labels, order, count, losses);
    outcome.losses[step] = (losses[0] + losses[1]) / 2;
    outcome.norms[step] = trainer_gradient_norm(trainer);
    trainer_update(trainer, &settings, step + 1, 1e-2, 1, outcome.norms[step]);
  }
  trainer_destroy(trainer);
  return outcome;
}

static void expect_near(const char *what, double found, double wanted, double tolerance) {
  if (!(fabs(found - wanted) <= tolerance * fabs(wanted))) {
    fail_msg("%s is %.9g, the host's %.9g", what, found, wanted);
  }
}

static void follows_the_host(bl_family_t family, bl_dtype_t dtype, uint32_t parts, uint32_t slices) {
#if defined(__SANITIZE_THREAD__)
  printf("skipped: the thread sanitizer does not follow fibers\n");
  skip();
#endif
  const bl_model_t model = model_of(family);
  const outcome_t host = train(bl_ops_host(), &model, dtype, parts, slices);
  const outcome_t emulated = train(bl__ops_cuda(), &model, dtype, parts, slices);
  const double tolerance = dtype == BL_DTYPE_BF16 ? 1e-2 : 1e-5;
  for (size_t step = 0; step < STEPS; step++) {
    expect_near("a loss", emulated.losses[step], host.losses[step], dtype == BL_DTYPE_BF16 ? 1e-3 : 1e-6);
    expect_near("a gradient norm", emulated.norms[step], host.norms[step], tolerance);
  }
  assert_true(fabs(host.losses[0] - host.losses[1]) > 1e-3); // the update is seen
}

static void whole_layers(void **state) {
  (void)state;
  follows_the_host(BL_FAMILY_GPT2, BL_DTYPE_FP32, 1, 1);
  follows_the_host(BL_FAMILY_LLAMA, BL_DTYPE_BF16, 1, 1);
}

static void layers_in_parts(void **state) {
  (void)state;
  follows_the_host(BL_FAMILY_GPT2, BL_DTYPE_FP32, 2, 1);
  if (INSTRUMENTED) {
    return;
  }
  follows_the_host(BL_FAMILY_GPT2, BL_DTYPE_BF16, 4, 1);
  follows_the_host(BL_FAMILY_LLAMA, BL_DTYPE_FP32, 4, 1);
  follows_the_host(BL_FAMILY_LLAMA, BL_DTYPE_BF16, 2, 1);
}

static void sequences_in_slices(void **state) {
  (void)state;
  follows_the_host(BL_FAMILY_LLAMA, BL_DTYPE_BF16, 2, 2);
  if (INSTRUMENTED) {
    return;
  }
  follows_the_host(BL_FAMILY_GPT2, BL_DTYPE_FP32, 1, 2);
  follows_the_host(BL_FAMILY_LLAMA, BL_DTYPE_FP32, 1, 3);
  follows_the_host(BL_FAMILY_GPT2, BL_DTYPE_BF16, 4, 3);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(whole_layers), cmocka_unit_test(layers_in_parts),
                                     cmocka_unit_test(sequences_in_slices)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
