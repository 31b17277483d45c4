// SPDX-License-Identifier: Apache-2.0
// Verifies the gradient of every parameter of a whole chunk (embedding, layers, head) against central differences of
// the loss, for both families, both attentions, tied and untied heads.
#include "base/random.h"
#include "compute/trainer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SINGLE_ELEMENTS 6
#define STEP            1e-2
// Losses carry fp32 noise of about 1e-7, so that a difference quotient is good to 1e-5 plus the cubic term.
#define ABSOLUTE_TOLERANCE 5e-5
#define RELATIVE_TOLERANCE 1e-2

typedef struct {
  trainer_t *trainer;
  bl_chunk_t *chunk;
  float *in, *out;
  void *slot;
  int32_t *tokens, *labels;
} fixture_t;

static double loss_of(fixture_t *f) {
  bl_chunk_weights_changed(f->chunk);
  bl_chunk_forward(f->chunk, f->tokens, f->in, f->slot, f->out);
  bl_chunk_loss_t loss;
  bl_chunk_loss(f->chunk, f->labels, f->out, &loss);
  assert_int_equal(loss.first_bad_row, -1);
  return loss.mean;
}

// Compares the derivative along `direction` (of length 1) with the quotient.
static void check_direction(fixture_t *f, const bl_chunk_parameter_t *p, const float *gradient, const float *direction,
                            double norm, const char *what) {
  const uint64_t count = p->parameter.elements;
  float *kept = malloc(count * sizeof *kept);
  assert_non_null(kept);
  memcpy(kept, p->weight, count * sizeof *kept);
  double expected = 0, losses[2];
  for (int side = 0; side < 2; side++) {
    for (uint64_t i = 0; i < count; i++) {
      p->weight[i] = kept[i] + (float)((side ? -STEP : STEP) * direction[i]);
    }
    losses[side] = loss_of(f);
  }
  memcpy(p->weight, kept, count * sizeof *kept);
  for (uint64_t i = 0; i < count; i++) {
    expected += (double)gradient[i] * direction[i];
  }
  double quotient = (losses[0] - losses[1]) / (2 * STEP);
  if (!(fabs(quotient - expected) <= ABSOLUTE_TOLERANCE + RELATIVE_TOLERANCE * fmin(norm, fabs(expected) * 4))) {
    fail_msg("%s, %s: gradient says %.9g, differences say %.9g (norm %.3g)", p->parameter.name, what, expected,
             quotient, norm);
  }
  free(kept);
}

static void check_parameter(fixture_t *f, uint32_t index, const float *gradient) {
  bl_chunk_parameter_t p = bl_chunk_parameter(f->chunk, index);
  const uint64_t count = p.parameter.elements;
  float *direction = calloc(count, sizeof *direction);
  assert_non_null(direction);
  double norm = 0;
  for (uint64_t i = 0; i < count; i++) {
    norm += (double)gradient[i] * gradient[i];
  }
  norm = sqrt(norm);
  assert_true(norm > 1e-4);
  for (uint64_t i = 0; i < count; i++) {
    direction[i] = (float)(gradient[i] / norm);
  }
  check_direction(f, &p, gradient, direction, norm, "along itself");
  double length = 0;
  for (uint64_t i = 0; i < count; i++) {
    direction[i] = (float)bl_random_normal(11, i);
    length += (double)direction[i] * direction[i];
  }
  for (uint64_t i = 0; i < count; i++) {
    direction[i] /= (float)sqrt(length);
  }
  check_direction(f, &p, gradient, direction, norm, "along a random direction");
  for (uint64_t n = 0; n < SINGLE_ELEMENTS; n++) {
    uint64_t element = bl_random_below(index, n, count);
    memset(direction, 0, count * sizeof *direction);
    direction[element] = 1;
    check_direction(f, &p, gradient, direction, norm, "one element");
  }
  free(direction);
}

// Initial weights are too small for differences: matrices times 10, and noise on biases and gains.
static void roughen_weights(bl_chunk_t *chunk) {
  for (uint32_t i = 0; i < bl_chunk_parameter_count(chunk); i++) {
    bl_chunk_parameter_t p = bl_chunk_parameter(chunk, i);
    for (uint64_t k = 0; k < p.parameter.elements; k++) {
      p.weight[k] = p.parameter.rank == 2 ? 10 * p.weight[k] : p.weight[k] + 0.2f * (float)bl_random_normal(i, k);
    }
  }
  bl_chunk_weights_changed(chunk);
}

static float *copy_gradients(bl_chunk_t *chunk, uint64_t offsets[]) {
  uint64_t total = 0;
  for (uint32_t i = 0; i < bl_chunk_parameter_count(chunk); i++) {
    offsets[i] = total;
    total += bl_chunk_parameter(chunk, i).parameter.elements;
  }
  float *copy = malloc(total * sizeof *copy);
  assert_non_null(copy);
  for (uint32_t i = 0; i < bl_chunk_parameter_count(chunk); i++) {
    bl_chunk_parameter_t p = bl_chunk_parameter(chunk, i);
    memcpy(copy + offsets[i], p.gradient, p.parameter.elements * sizeof *copy);
  }
  return copy;
}

static void check_model(bl_model_t model, bl_attention_t attention) {
  trainer_options_t options = {
      .model = model, .chunks = 1, .micro_batches = 1, .layout = {.micro_batch = 2, .attention = attention}, .seed = 3};
  fixture_t f = {.trainer = trainer_create(&options)};
  f.chunk = trainer_chunk(f.trainer, 0);
  const uint64_t rows = 2ull * model.seq;
  bl_chunk_sizes_t sizes = bl_chunk_sizes(f.chunk);
  f.in = aligned_alloc(64, (sizes.edge_bytes + 63) / 64 * 64);
  f.out = aligned_alloc(64, (sizes.edge_bytes + 63) / 64 * 64);
  f.slot = aligned_alloc(64, sizes.slot_bytes);
  f.tokens = malloc(rows * sizeof(int32_t));
  f.labels = malloc(rows * sizeof(int32_t));
  assert_true(f.in && f.out && f.slot && f.tokens && f.labels);
  trainer_random_tokens(&model, 9, rows, f.tokens, f.labels);
  roughen_weights(f.chunk);

  trainer_op_t ops[TRAINER_OPS_MAX];
  size_t count = trainer_make_order((trainer_order_t){.split = true}, 1, 1, ops);
  double loss;
  trainer_run(f.trainer, f.tokens, f.labels, ops, count, &loss);
  trainer_gradient_norm(f.trainer); // joins tied gradients
  assert_true(loss == loss_of(&f));
  uint64_t offsets[64];
  assert_true(bl_chunk_parameter_count(f.chunk) <= 64);
  float *gradients = copy_gradients(f.chunk, offsets);
  for (uint32_t i = 0; i < bl_chunk_parameter_count(f.chunk); i++) {
    check_parameter(&f, i, gradients + offsets[i]);
  }
  free(gradients);
  free(f.in);
  free(f.out);
  free(f.slot);
  free(f.tokens);
  free(f.labels);
  trainer_destroy(f.trainer);
}

static const bl_model_t gpt2 = {.family = BL_FAMILY_GPT2,
                                .layers = 2,
                                .hidden = 12,
                                .heads = 3,
                                .kv_heads = 3,
                                .head_dim = 4,
                                .ffn = 30,
                                .vocab = 19,
                                .seq = 7,
                                .norm_epsilon = 1e-5,
                                .rope_theta = 10000};
static const bl_model_t llama = {.family = BL_FAMILY_LLAMA,
                                 .layers = 2,
                                 .hidden = 20,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .head_dim = 6,
                                 .ffn = 28,
                                 .vocab = 19,
                                 .seq = 7,
                                 .norm_epsilon = 1e-5,
                                 .rope_theta = 100};

static void gpt2_naive(void **state) {
  (void)state;
  check_model(gpt2, BL_ATTENTION_NAIVE);
}

static void gpt2_tied_flash(void **state) {
  (void)state;
  bl_model_t tied = gpt2;
  tied.tied = true;
  check_model(tied, BL_ATTENTION_FLASH);
}

// Odd sizes everywhere: head_dim 6, query width 24 over hidden 20.
static void llama_grouped_naive(void **state) {
  (void)state;
  check_model(llama, BL_ATTENTION_NAIVE);
}

static void llama_grouped_tied_flash(void **state) {
  (void)state;
  bl_model_t tied = llama;
  tied.tied = true;
  check_model(tied, BL_ATTENTION_FLASH);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(gpt2_naive),
      cmocka_unit_test(gpt2_tied_flash),
      cmocka_unit_test(llama_grouped_naive),
      cmocka_unit_test(llama_grouped_tied_flash),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
