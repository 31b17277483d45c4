// SPDX-License-Identifier: Apache-2.0
// Verifies the gradient of every parameter of a whole chunk (embedding, layers, head) against central differences of
// the loss, for both families and all properties of models, both attentions, tied and untied heads; of sequences in slices
// against those of the whole sequence's loss.
#include "base/random.h"
#include "compute/properties.h"
#include "compute/trainer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#if defined(__SANITIZE_ADDRESS__) // which sees the same code for each
#define INSTRUMENTED    true
#define SINGLE_ELEMENTS 1
#else
#define INSTRUMENTED    false
#define SINGLE_ELEMENTS 6
#endif
#define STEP 1e-2
// Losses carry fp32 noise of about 1e-7, so that a difference quotient is good to 1e-5 plus the cubic term.
#define ABSOLUTE_TOLERANCE 5e-5
#define RELATIVE_TOLERANCE 1e-2

typedef struct {
  bl_chunk_t *chunk;
  trainer_buffers_t buffers;
} fixture_t;

static const bl_ops_t *back_end; // NULL: the host's

static double loss_of(fixture_t *f) {
  bl_chunk_weights_changed(f->chunk);
  bl_chunk_forward(f->chunk, f->buffers.tokens, f->buffers.in, f->buffers.slot, f->buffers.out);
  bl_chunk_loss_t loss;
  bl_chunk_loss(f->chunk, f->buffers.labels, f->buffers.out, &loss);
  assert_int_equal(loss.first_bad_row, -1);
  return bl_chunk_loss_mean(f->chunk, &loss);
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
  float *copy = calloc(total + 1, sizeof *copy);
  assert_non_null(copy);
  for (uint32_t i = 0; i < bl_chunk_parameter_count(chunk); i++) {
    bl_chunk_parameter_t p = bl_chunk_parameter(chunk, i);
    memcpy(copy + offsets[i], p.gradient, p.parameter.elements * sizeof *copy);
  }
  return copy;
}

// Checks the parameters from canonical index `first` on. The gradients are those of sequences in slices, the losses those of
// whole ones.
static void check_slices(bl_model_t model, bl_attention_t attention, uint32_t slices, uint32_t first) {
  trainer_options_t options = {.model = model,
                               .chunks = 1,
                               .micro_batches = 1,
                               .layout = {.micro_batch = 2, .attention = attention},
                               .seed = 3,
                               .ops = back_end};
  trainer_t *trainer = trainer_create(&options);
  options.layout.slices = slices;
  trainer_t *sliced = slices > 1 ? trainer_create(&options) : trainer;
  fixture_t f = {.chunk = trainer_chunk(trainer, 0), .buffers = trainer_make_buffers(trainer, 0)};
  roughen_weights(f.chunk);
  if (sliced != trainer) {
    roughen_weights(trainer_chunk(sliced, 0));
  }

  trainer_op_t ops[TRAINER_OPS_MAX];
  size_t count = trainer_make_order((trainer_order_t){.split = true, .slices = slices}, 1, 1, ops);
  double loss;
  trainer_run(sliced, f.buffers.tokens, f.buffers.labels, ops, count, &loss);
  trainer_gradient_norm(sliced); // joins tied gradients
  assert_true(slices > 1 ? fabs(loss - loss_of(&f)) < 1e-5 : loss == loss_of(&f));
  uint64_t offsets[64] = {0};
  assert_true(bl_chunk_parameter_count(f.chunk) <= 64);
  float *gradients = copy_gradients(trainer_chunk(sliced, 0), offsets);
  for (uint32_t i = first; i < bl_chunk_parameter_count(f.chunk); i++) {
    check_parameter(&f, i, gradients + offsets[i]);
  }
  free(gradients);
  trainer_free_buffers(&f.buffers);
  if (sliced != trainer) {
    trainer_destroy(sliced);
  }
  trainer_destroy(trainer);
}

static void check_model(bl_model_t model, bl_attention_t attention, uint32_t first) {
  check_slices(model, attention, 1, first);
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
                                .rope.theta = 10000};
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
                                 .rope.theta = 100};

static void gpt2_naive(void **state) {
  (void)state;
  check_model(gpt2, BL_ATTENTION_NAIVE, 0);
}

static void gpt2_tied_flash(void **state) {
  (void)state;
  bl_model_t tied = gpt2;
  tied.tied = true;
  check_model(tied, BL_ATTENTION_FLASH, 0);
}

// Odd sizes everywhere: head_dim 6, query width 24 over hidden 20.
static void llama_grouped_naive(void **state) {
  (void)state;
  check_model(llama, BL_ATTENTION_NAIVE, 0);
}

static void llama_grouped_tied_flash(void **state) {
  (void)state;
  bl_model_t tied = llama;
  tied.tied = true;
  check_model(tied, BL_ATTENTION_FLASH, 0);
}

static void norms_softcaps_and_windows(void **state) {
  (void)state;
  bl_model_t model = with_norms_softcaps_and_windows(llama);
  check_model(model, BL_ATTENTION_NAIVE, 0);
  model.tied = true;
  check_model(model, BL_ATTENTION_FLASH, 0);
}

static void fused_projections(void **state) {
  (void)state;
  check_model(fused_with_a_window(llama), BL_ATTENTION_NAIVE, 0);
  check_model(fused_with_a_window(llama), BL_ATTENTION_FLASH, 0);
}

// A vocabulary so large that the head runs in two pieces of different length, 64 and 2 rows.
static void head_in_pieces(void **state) {
  (void)state;
  if (INSTRUMENTED) {
    skip(); // the next has such pieces of a small vocabulary
  }
  bl_model_t wide = gpt2;
  wide.layers = wide.heads = wide.kv_heads = 1;
  wide.hidden = wide.head_dim = 4;
  wide.vocab = 262145;
  wide.seq = 33;
  check_model(wide, BL_ATTENTION_FLASH, bl_parameter_index(&wide, BL_PARAMETER_FINAL_NORM_WEIGHT, 0));
}

// Pieces and rows of logits as a back end wants them: 64 and 2 rows, 32 floats apart where 19 are in use.
static void head_as_the_back_end_wants_it(void **state) {
  (void)state;
  bl_ops_t own = *bl_ops_host();
  own.logits = (bl_logits_t){.piece_elements = 64ull * gpt2.vocab, .row_multiple = 32};
  back_end = &own;
  bl_model_t model = gpt2;
  model.seq = 33;
  check_model(model, BL_ATTENTION_FLASH, bl_parameter_index(&model, BL_PARAMETER_FINAL_NORM_WEIGHT, 0));
  model = with_norms_softcaps_and_windows(llama); // logits with a softcap, a tied head
  model.tied = true;
  check_model(model, BL_ATTENTION_NAIVE, 0);
  back_end = NULL;
}

// Slices that end inside of tiles, and one that ends with a tile.
static void slices(void **state) {
  (void)state;
  bl_model_t model = gpt2;
  model.seq = 9;
  check_slices(model, BL_ATTENTION_NAIVE, 3, 0);
  model = llama;
  model.seq = 8;
  check_slices(model, BL_ATTENTION_FLASH, 4, 0);
  model.seq = 6;
  model = with_norms_softcaps_and_windows(model);
  check_slices(model, BL_ATTENTION_FLASH, 3, 0);
  model = llama;
  model.seq = 128;
  check_slices(model, BL_ATTENTION_NAIVE, 2, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(gpt2_naive),
      cmocka_unit_test(gpt2_tied_flash),
      cmocka_unit_test(llama_grouped_naive),
      cmocka_unit_test(llama_grouped_tied_flash),
      cmocka_unit_test(norms_softcaps_and_windows),
      cmocka_unit_test(fused_projections),
      cmocka_unit_test(head_in_pieces),
      cmocka_unit_test(head_as_the_back_end_wants_it),
      cmocka_unit_test(slices),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
