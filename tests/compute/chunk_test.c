// SPDX-License-Identifier: Apache-2.0
// Verifies what chunks refuse, that a micro-batch may run again without counting its head gradient twice, that
// F, R and I leave weights and gradients alone and R the output too, and that logits and draws agree with the loss.
#include "compute/model/chunk.h"

#include "compute/trainer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const bl_model_t model = {.family = BL_FAMILY_GPT2,
                                 .layers = 2,
                                 .hidden = 24,
                                 .heads = 2,
                                 .kv_heads = 2,
                                 .head_dim = 12,
                                 .ffn = 50,
                                 .vocab = 33,
                                 .seq = 9,
                                 .norm_epsilon = 1e-5};

// In layers of `parts` parts; `ops` NULL: the host's.
static trainer_t *make_trainer_of(bl_model_t of, uint32_t parts, const bl_ops_t *ops) {
  trainer_options_t options = {.model = of,
                               .chunks = 1,
                               .micro_batches = 1,
                               .layout = {.micro_batch = 2, .layer_parts.count = parts},
                               .seed = 5,
                               .ops = ops};
  return trainer_create(&options);
}

static trainer_t *make_trainer(bl_model_t of) {
  return make_trainer_of(of, 1, NULL);
}

static void expect_refused(bl_model_t refused, bl_chunk_span_t span, uint32_t micro_batch, uint32_t micro_batches,
                           const char *expected) {
  bl_error_t err;
  bl_error_clear(&err);
  bl_compute_t *compute;
  assert_int_equal(bl_ops_host()->create(&(bl_compute_options_t){.threads = 1}, &compute, &err), BL_OK);
  bl_chunk_options_t options = {.ops = bl_ops_host(),
                                .compute = compute,
                                .model = &refused,
                                .span = span,
                                .layout = {.micro_batch = micro_batch},
                                .micro_batches = micro_batches};
  bl_chunk_t *chunk = NULL;
  assert_int_equal(bl_chunk_create(&options, &chunk, &err), BL_INVALID);
  assert_null(chunk);
  if (strstr(err.text, expected) == NULL) {
    fail_msg("expected a message with \"%s\", got: %s", expected, err.text);
  }
  bl_ops_host()->destroy(compute);
}

static void what_cannot_be_is_refused(void **state) {
  (void)state;
  const bl_chunk_span_t whole = bl_chunk_span_whole(&model);
  expect_refused(model, (bl_chunk_span_t){1, 2, false, true}, 1, 1, "2 layers from layer 1");
  expect_refused(model, (bl_chunk_span_t){0, 0, true, false}, 1, 1, "0 layers");
  expect_refused(model, whole, 1, 0, "train.micro_batches");
  expect_refused(model, whole, 0, 1, "train.micro_batch:");
  bl_model_t odd = model;
  odd.heads = odd.kv_heads = 5;
  expect_refused(odd, whole, 1, 1, "model.heads");
}

// A back end whose norms take rows up to a length says so before anything is made.
static void rows_that_norms_cannot_take_are_refused(void **state) {
  (void)state;
  bl_error_t err = {0};
  bl_compute_t *compute;
  bl_ops_t narrow = *bl_ops_host();
  assert_int_equal(narrow.create(&(bl_compute_options_t){.threads = 1}, &compute, &err), BL_OK);
  for (uint64_t most = 23; most <= 24; most++) {
    narrow.norm_width_max = most;
    const bl_chunk_options_t options = {.ops = &narrow,
                                        .compute = compute,
                                        .model = &model,
                                        .span = bl_chunk_span_whole(&model),
                                        .layout = {.micro_batch = 1},
                                        .micro_batches = 1};
    bl_chunk_t *chunk = NULL;
    assert_int_equal(bl_chunk_create(&options, &chunk, &err), most < 24 ? BL_UNIMPLEMENTED : BL_OK);
    bl_chunk_destroy(chunk);
  }
  assert_non_null(strstr(err.text, "model.hidden: rows of 24 elements"));
  bl_ops_host()->destroy(compute);
}

static float *copy_all_gradients(bl_chunk_t *chunk) {
  bl_chunk_parameter_t first = bl_chunk_parameter(chunk, 0);
  float *copy = malloc(bl_chunk_sizes(chunk).gradient_bytes);
  assert_non_null(copy);
  memcpy(copy, first.gradient, bl_chunk_sizes(chunk).gradient_bytes); // parameter 0 lies first
  return copy;
}

static void a_second_run_does_not_count_twice(void **state) {
  (void)state;
  trainer_t *trainer = make_trainer(model);
  bl_chunk_t *chunk = trainer_chunk(trainer, 0);
  trainer_buffers_t b = trainer_make_buffers(trainer, 0);
  bl_chunk_loss_t once, twice;
  bl_chunk_begin_step(chunk);
  bl_chunk_forward(chunk, b.tokens, b.in, b.slot, b.out);
  bl_chunk_backward(chunk, b.tokens, b.labels, b.in, b.slot, b.out, true, &once);
  float *expected = copy_all_gradients(chunk);

  bl_chunk_begin_step(chunk);
  bl_chunk_forward(chunk, b.tokens, b.in, b.slot, b.out);
  bl_chunk_backward_input(chunk, b.labels, b.in, b.slot, b.out, true, &once);
  memset(b.slot, 0xff, bl_chunk_sizes(chunk).slot_bytes); // the block is lost after I: all of it again
  bl_chunk_forward(chunk, b.tokens, b.in, b.slot, b.out);
  bl_chunk_backward_input(chunk, b.labels, b.in, b.slot, b.out, false, &twice);
  bl_chunk_backward_weight(chunk, b.tokens, b.in, b.slot, b.out);
  float *found = copy_all_gradients(chunk);
  assert_true(once.sum == twice.sum);
  assert_memory_equal(found, expected, bl_chunk_sizes(chunk).gradient_bytes);
  free(expected);
  free(found);
  trainer_free_buffers(&b);
  trainer_destroy(trainer);
}

// EXECUTION.md 1: only W adds to gradients, nothing before the update touches weights.
static void forward_and_backward_input_are_pure(void **state) {
  (void)state;
  trainer_options_t options = {
      .model = model, .chunks = 2, .micro_batches = 1, .layout = {.micro_batch = 2}, .seed = 5};
  trainer_t *trainer = trainer_create(&options);
  bl_chunk_t *chunk = trainer_chunk(trainer, 0);
  trainer_buffers_t b = trainer_make_buffers(trainer, 0);
  const bl_chunk_sizes_t sizes = bl_chunk_sizes(chunk);
  const float *weights = bl_chunk_parameter(chunk, 0).weight, *gradients = bl_chunk_parameter(chunk, 0).gradient;
  float *kept = malloc(sizes.weight_bytes), *zeros = calloc(1, sizes.gradient_bytes);
  assert_true(kept && zeros);
  memcpy(kept, weights, sizes.weight_bytes);
  bl_chunk_begin_step(chunk);
  bl_chunk_forward(chunk, b.tokens, b.in, b.slot, b.out);
  bl_chunk_recompute(chunk, b.in, b.slot);
  bl_chunk_backward_input(chunk, NULL, b.in, b.slot, b.out, true, NULL); // y serves as dy
  assert_memory_equal(gradients, zeros, sizes.gradient_bytes);
  bl_chunk_backward_weight(chunk, b.tokens, b.in, b.slot, b.out);
  assert_memory_not_equal(gradients, zeros, sizes.gradient_bytes);
  assert_memory_equal(weights, kept, sizes.weight_bytes);
  free(kept);
  free(zeros);
  trainer_free_buffers(&b);
  trainer_destroy(trainer);
}

// The forward of full recomputation: the same output, from workspace alone, and R then brings the block.
static void a_forward_that_keeps_nothing_makes_the_same_output(void **state) {
  (void)state;
  trainer_options_t options = {
      .model = model, .chunks = 1, .micro_batches = 1, .layout = {.micro_batch = 2}, .seed = 5};
  options.model.layers = 5; // both buffers between layers are used twice
  for (int lean = 0; lean < 2; lean++) {
    options.layout.lean = lean;
    options.layout.recompute = BL_RECOMPUTE_FULL;
    trainer_t *trainer = trainer_create(&options);
    bl_chunk_t *chunk = trainer_chunk(trainer, 0);
    trainer_buffers_t b = trainer_make_buffers(trainer, 0), kept = trainer_make_buffers(trainer, 0);
    const bl_chunk_sizes_t sizes = bl_chunk_sizes(chunk);
    bl_chunk_forward(chunk, b.tokens, kept.in, kept.slot, kept.out);
    bl_chunk_forward(chunk, b.tokens, b.in, NULL, b.out);
    assert_memory_equal(b.out, kept.out, sizes.edge_bytes);
    assert_memory_equal(b.in, kept.in, sizes.edge_bytes);
    bl_chunk_recompute(chunk, b.in, b.slot);
    bl_chunk_loss_t loss, expected;
    bl_chunk_begin_step(chunk);
    bl_chunk_backward_input(chunk, b.labels, b.in, b.slot, b.out, true, &loss);
    bl_chunk_backward_input(chunk, b.labels, kept.in, kept.slot, kept.out, true, &expected);
    assert_true(loss.sum == expected.sum);
    assert_memory_equal(b.in, kept.in, sizes.edge_bytes);
    trainer_free_buffers(&b);
    trainer_free_buffers(&kept);
    trainer_destroy(trainer);
  }
}

static void recomputation_leaves_the_output_alone(void **state) {
  (void)state;
  trainer_t *trainer = make_trainer(model);
  bl_chunk_t *chunk = trainer_chunk(trainer, 0);
  trainer_buffers_t b = trainer_make_buffers(trainer, 0);
  const uint64_t slot_bytes = bl_chunk_sizes(chunk).slot_bytes, edge_bytes = bl_chunk_sizes(chunk).edge_bytes;
  memset(b.slot, 0, slot_bytes); // padding and what lives only after I
  bl_chunk_forward(chunk, b.tokens, b.in, b.slot, b.out);
  void *slot = malloc(slot_bytes), *out = malloc(edge_bytes);
  assert_true(slot && out);
  memcpy(slot, b.slot, slot_bytes);
  memcpy(out, b.out, edge_bytes);
  memset(b.slot, 0, slot_bytes);
  bl_chunk_recompute(chunk, b.in, b.slot);
  assert_memory_equal(b.slot, slot, slot_bytes);
  assert_memory_equal(b.out, out, edge_bytes);
  free(slot);
  free(out);
  trainer_free_buffers(&b);
  trainer_destroy(trainer);
}

// The loss of `row` from its logits; *best is the largest logit's token.
static double row_loss(bl_chunk_t *chunk, const trainer_buffers_t *b, uint64_t row, uint32_t vocab, float *logits,
                       int32_t *best) {
  bl_chunk_logits(chunk, b->out, row, logits);
  double sum = 0;
  *best = 0;
  for (uint32_t i = 0; i < vocab; i++) {
    sum += exp((double)logits[i]);
    *best = logits[i] > logits[*best] ? (int32_t)i : *best;
  }
  return log(sum) - logits[b->labels[row]];
}

static void check_logits(bl_model_t of, uint32_t parts, const bl_ops_t *ops, uint64_t bad_row) {
  trainer_t *trainer = make_trainer_of(of, parts, ops);
  bl_chunk_t *chunk = trainer_chunk(trainer, 0);
  trainer_buffers_t b = trainer_make_buffers(trainer, 0);
  float *logits = malloc(of.vocab * sizeof *logits);
  assert_non_null(logits);
  for (uint32_t part = 1; part <= parts; part++) {
    bl_chunk_parameter_t head = bl_chunk_parameter(chunk, bl_chunk_parameter_count(chunk) - part);
    assert_int_equal(head.parameter.role, BL_PARAMETER_HEAD_WEIGHT);
    for (uint64_t i = 0; i < head.elements; i++) {
      head.weight[i] *= 30; // so that rows differ
    }
  }
  bl_chunk_weights_changed(chunk);
  bl_chunk_forward(chunk, b.tokens, b.in, b.slot, b.out);
  bl_chunk_loss_t loss;
  bl_chunk_loss(chunk, b.labels, b.out, &loss);
  double mean = 0;
  for (uint64_t row = 0; row < b.rows; row++) {
    int32_t best;
    mean += row_loss(chunk, &b, row, of.vocab, logits, &best) / (double)b.rows;
    assert_int_equal(bl_chunk_draw(chunk, b.out, row, 0, 0.5), best);
    assert_in_range(bl_chunk_draw(chunk, b.out, row, 1, 0.5), 0, of.vocab - 1);
  }
  assert_int_equal(loss.first_bad_row, -1);
  const double found = bl_chunk_loss_mean(chunk, &loss);
  if (!(fabs(mean - found) < 1e-5)) {
    fail_msg("loss %.9g, from logits %.9g", found, mean);
  }
  ((float *)b.out)[bad_row * of.hidden] = NAN;
  bl_chunk_loss(chunk, b.labels, b.out, &loss);
  assert_int_equal(loss.first_bad_row, bad_row);
  assert_int_equal(bl_chunk_draw(chunk, b.out, bad_row, 1, 0.5), -1);
  free(logits);
  trainer_free_buffers(&b);
  trainer_destroy(trainer);
}

static void logits_and_draws_agree_with_the_loss(void **state) {
  (void)state;
  check_logits(model, 1, NULL, 5);
}

// Parts of 17 and 16 columns, whose rows are dense, or 32 floats apart.
static void parts_of_the_vocabulary_agree_too(void **state) {
  (void)state;
  bl_ops_t own = *bl_ops_host();
  check_logits(model, 2, NULL, 5);
  own.logits = (bl_logits_t){.row_multiple = 32};
  check_logits(model, 2, &own, 5);
}

// So many tokens that the loss is made in two pieces, of 64 and 2 rows.
static void the_same_in_pieces(void **state) {
  (void)state;
  bl_model_t wide = model;
  wide.layers = wide.heads = wide.kv_heads = 1;
  wide.hidden = wide.head_dim = 4;
  wide.vocab = 262145;
  wide.seq = 33;
  check_logits(wide, 1, NULL, 65);
}

// Logits over all rows at once, which leaves no row out, or in pieces of 64 rows.
static float *gradients_of(bool pieces, const bl_model_t *of, const int32_t *labels, bl_chunk_loss_t losses[3],
                           size_t *elements) {
  bl_ops_t own = *bl_ops_host();
  own.logits = (bl_logits_t){.piece_elements = pieces ? 64ull * of->vocab : 0};
  trainer_t *trainer = make_trainer_of(*of, 1, &own);
  bl_chunk_t *chunk = trainer_chunk(trainer, 0);
  trainer_buffers_t b = trainer_make_buffers(trainer, 0);
  bl_chunk_begin_step(chunk);
  bl_chunk_forward(chunk, b.tokens, b.in, b.slot, b.out);
  bl_chunk_loss(chunk, labels, b.out, &losses[0]);
  bl_chunk_backward(chunk, b.tokens, labels, b.in, b.slot, b.out, true, &losses[1]);
  float *gradients = copy_all_gradients(chunk);
  *elements = bl_chunk_sizes(chunk).gradient_bytes / sizeof *gradients;
  bl_chunk_forward(chunk, b.tokens, b.in, b.slot, b.out);
  ((float *)b.out)[150 * of->hidden] = NAN;
  bl_chunk_loss(chunk, labels, b.out, &losses[2]);
  trainer_free_buffers(&b);
  trainer_destroy(trainer);
  return gradients;
}

// Of 194 rows, in pieces of 64: losses and gradients are those of all rows at once.
static void rows_without_a_loss_are_left_out(void **state) {
  (void)state;
  bl_model_t of = model;
  of.seq = 97;
  size_t elements;
  int32_t labels[194];
  for (int every = 1; every <= 8; every++) { // 1: all have a loss; 8: none but row 150, and 7: none at all
    uint64_t counted = 0;
    for (int i = 0; i < 194; i++) {
      const bool counts = every < 7 ? i / 5 % every == 0 : every == 8 && i == 150;
      labels[i] = counts ? i * 7 % 33 : -1;
      counted += counts;
    }
    bl_chunk_loss_t expected[3], found[3];
    float *all = gradients_of(false, &of, labels, expected, &elements);
    float *some = gradients_of(true, &of, labels, found, &elements);
    for (int i = 0; i < 2; i++) {
      assert_true(fabs(found[i].sum - expected[i].sum) <= 1e-6 * expected[i].sum);
      assert_true((counted > 0) == (expected[i].sum > 0));
      assert_int_equal(found[i].first_bad_row, -1);
    }
    assert_int_equal(found[2].first_bad_row, labels[150] >= 0 ? 150 : -1);
    assert_int_equal(expected[2].first_bad_row, found[2].first_bad_row);
    double largest = 0, difference = 0;
    for (size_t i = 0; i < elements; i++) {
      largest = fmax(largest, fabs((double)all[i]));
      difference = fmax(difference, fabs((double)all[i] - (double)some[i]));
    }
    assert_true((largest > 0) == (counted > 0) && difference <= 1e-6 * largest);
    free(all);
    free(some);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_cannot_be_is_refused),
      cmocka_unit_test(rows_that_norms_cannot_take_are_refused),
      cmocka_unit_test(a_second_run_does_not_count_twice),
      cmocka_unit_test(forward_and_backward_input_are_pure),
      cmocka_unit_test(a_forward_that_keeps_nothing_makes_the_same_output),
      cmocka_unit_test(recomputation_leaves_the_output_alone),
      cmocka_unit_test(logits_and_draws_agree_with_the_loss),
      cmocka_unit_test(parts_of_the_vocabulary_agree_too),
      cmocka_unit_test(the_same_in_pieces),
      cmocka_unit_test(rows_without_a_loss_are_left_out),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
