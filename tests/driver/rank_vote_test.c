// SPDX-License-Identifier: Apache-2.0
// Verifies how votes are counted: the same bits however the model is cut, every tensor once, and refusals that name
// what is missing, doubled or not finite.
#include "rank_vote.h"

#include "model/models.h"
#include "model/shard.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#define TENSORS 16 // of GPT-2 with one layer
#define PARTS   2  // of a gradient
#define SHARES  16 // of its matrices

static double losses[] = {2.1, 2.3, 1.9};
// Sums of these depend on the order.
static double squares[TENSORS] = {1e16, 1.0, 3.0, 1e-3, 7e8, 1.0, 2e15, 5.0, 1e9, 1e-2, 3.0, 1e16, 1.0, 7.0, 1e7, 0.1};
static uint32_t indices[TENSORS] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

static bl_model_t small(void) {
  bl_model_t model = gpt2_small();
  model.layers = 1;
  return model;
}

static bl_rank_vote_t vote(size_t first, size_t count, bool head) {
  return (bl_rank_vote_t){.step = 4,
                          .attempt = 9,
                          .finite = true,
                          .nonfinite_micro_batch = -1,
                          .losses = head ? losses : NULL,
                          .loss_count = head ? 3 : 0,
                          .parameter_indices = indices + first,
                          .squares = squares + first,
                          .square_count = count,
                          .tokens = head ? 96 : 0};
}

static bl_status_t count(const bl_rank_vote_t *votes, uint32_t stages, bl_vote_result_t *result, bl_error_t *err) {
  double scratch[TENSORS];
  const bl_model_t model = small();
  const bl_grid_t grid = {.stages = stages, .tensor = 1, .data = 1, .tensor_parts = 1, .data_parts = 1};
  assert_int_equal(bl_square_numbers(&grid, bl_parameter_count(&model)), TENSORS);
  return bl_vote_result_count(votes, &grid, 3, &model, 0, scratch, result, err);
}

static void test_bits_do_not_depend_on_the_cut(void **state) {
  (void)state;
  bl_vote_result_t whole, cut;
  bl_error_t err;
  const bl_rank_vote_t one[] = {vote(0, TENSORS, true)};
  assert_int_equal(count(one, 1, &whole, &err), BL_OK);
  double sum = 0;
  for (size_t i = 0; i < TENSORS; i++) {
    sum += squares[i];
  }
  assert_true(whole.grad_norm == sqrt(sum));
  assert_true(whole.loss == (2.1 + 2.3 + 1.9) / 3);
  assert_int_equal(whole.tokens, 96);
  for (size_t at = 1; at < TENSORS; at++) {
    const bl_rank_vote_t two[] = {vote(0, at, false), vote(at, TENSORS - at, true)};
    const bl_rank_vote_t turned[] = {two[1], two[0]}; // a V-shaped placement: the head is on the first stage
    assert_int_equal(count(two, 2, &cut, &err), BL_OK);
    assert_memory_equal(&cut, &whole, sizeof cut);
    assert_int_equal(count(turned, 2, &cut, &err), BL_OK);
    assert_memory_equal(&cut, &whole, sizeof cut);
  }
}

// Squares of tensors [first, end) in shares: of matrices those of [0, SHARES) that are in `mask`, of vectors the only
// one, if the mask has share 0.
typedef struct shares {
  double squares[TENSORS * SHARES];
  uint32_t numbers[TENSORS * SHARES];
} shares_t;

static bl_rank_vote_t share_vote(const bl_grid_t *grid, shares_t *shares, uint32_t first, uint32_t end, uint32_t mask) {
  const bl_model_t model = small();
  bl_rank_vote_t made = vote(0, 0, false);
  made.parameter_indices = shares->numbers;
  made.squares = shares->squares;
  for (uint32_t i = first; i < end; i++) {
    const bl_parameter_t parameter = bl_parameter_get(&model, i);
    for (uint32_t share = 0; share < bl_shard_count(&parameter, PARTS); share++) {
      if ((mask >> share & 1) != 0) {
        made.parameter_indices[made.square_count] = bl_square_number(grid, i, 0, share);
        made.squares[made.square_count++] = squares[i] * (share + 0.3);
      }
    }
  }
  return made;
}

static void have_losses(bl_rank_vote_t *of, size_t first, size_t count_of) {
  of->losses = losses + first;
  of->loss_count = count_of;
  of->tokens = 32 * count_of;
}

// Two replicas of two stages: each head has its micro-batches, and each share is reported where it is updated.
static void test_bits_do_not_depend_on_replicas(void **state) {
  (void)state;
  bl_vote_result_t whole, shared;
  bl_error_t err;
  double scratch[TENSORS * SHARES];
  const bl_model_t model = small();
  const bl_grid_t alone = {.stages = 1, .tensor = 1, .data = 1, .tensor_parts = 1, .data_parts = PARTS};
  const bl_grid_t grid = {.stages = 2, .tensor = 1, .data = 2, .tensor_parts = 1, .data_parts = PARTS};
  shares_t of_one, of[4];
  bl_rank_vote_t one = share_vote(&alone, &of_one, 0, TENSORS, 0xffff);
  have_losses(&one, 0, 3);
  assert_int_equal(bl_vote_result_count(&one, &alone, 3, &model, 0, scratch, &whole, &err), BL_OK);
  double sum = 0;
  for (uint32_t i = 0; i < TENSORS; i++) {
    double of_tensor = 0;
    for (int share = 0; share < (bl_parameter_get(&model, i).rank > 1 ? SHARES : 1); share++) {
      of_tensor += squares[i] * (share + 0.3);
    }
    sum += of_tensor;
  }
  assert_true(whole.grad_norm == sqrt(sum));
  bl_rank_vote_t four[] = {share_vote(&grid, &of[0], 0, 5, 0xff), share_vote(&grid, &of[1], 5, TENSORS, 0xff),
                           share_vote(&grid, &of[2], 0, 5, 0xff00), share_vote(&grid, &of[3], 5, TENSORS, 0xff00)};
  have_losses(&four[1], 0, 1);
  have_losses(&four[3], 1, 2);
  assert_int_equal(bl_vote_result_count(four, &grid, 3, &model, 0, scratch, &shared, &err), BL_OK);
  assert_memory_equal(&shared, &whole, sizeof shared);

  four[2].square_count--;
  assert_int_equal(bl_vote_result_count(four, &grid, 3, &model, 0, scratch, &shared, &err), BL_INTERNAL);
  assert_non_null(strstr(err.text, "no stage reports the gradient of tensor 4"));
  four[2].square_count++;
  of[2].numbers[0] = bl_square_number(&grid, 2, 0, 1); // a vector has one share
  assert_int_equal(bl_vote_result_count(four, &grid, 3, &model, 0, scratch, &shared, &err), BL_INTERNAL);
  four[2].finite = false;
  assert_int_equal(bl_vote_result_count(four, &grid, 3, &model, 0, scratch, &shared, &err), BL_PRECONDITION);
  assert_non_null(strstr(err.text, "a gradient of stage 0 of replica 1"));
  four[3].finite = false;
  four[3].nonfinite_micro_batch = 2;
  assert_int_equal(bl_vote_result_count(four, &grid, 3, &model, 0, scratch, &shared, &err), BL_PRECONDITION);
  assert_non_null(strstr(err.text, "micro-batch 2 is not finite (stage 1 of replica 1)"));
  four[2] = share_vote(&grid, &of[2], 0, 1, 1);
  four[3].finite = true;
  assert_int_equal(bl_vote_result_count(four, &grid, 3, &model, 0, scratch, &shared, &err), BL_INTERNAL);
  assert_non_null(strstr(err.text, "stage 0 of replica 1 reports tensor 0, which another rank has reported"));
}

// Two pipes on two stages: the head of the first, with the first micro-batches, is on the last stage.
static void test_bits_do_not_depend_on_pipes(void **state) {
  (void)state;
  bl_vote_result_t whole, shared;
  bl_error_t err;
  double scratch[TENSORS * SHARES];
  const bl_model_t model = small();
  const bl_grid_t alone = {.stages = 1, .tensor = 1, .data = 1, .tensor_parts = 1, .data_parts = PARTS};
  const bl_grid_t grid = {.stages = 2, .tensor = 1, .data = 1, .tensor_parts = 1, .data_parts = PARTS, .pipes = 2};
  shares_t of_one, of[2];
  bl_rank_vote_t one = share_vote(&alone, &of_one, 0, TENSORS, 0xffff);
  have_losses(&one, 0, 3);
  assert_int_equal(bl_vote_result_count(&one, &alone, 3, &model, 0, scratch, &whole, &err), BL_OK);
  bl_rank_vote_t two[] = {share_vote(&grid, &of[0], 0, TENSORS, 0xfff0), share_vote(&grid, &of[1], 0, TENSORS, 0xf)};
  have_losses(&two[1], 0, 1);
  have_losses(&two[0], 1, 2);
  assert_int_equal(bl_vote_result_count(two, &grid, 3, &model, 0, scratch, &shared, &err), BL_OK);
  assert_memory_equal(&shared, &whole, sizeof shared);
}

static void expect(const bl_rank_vote_t *votes, uint32_t stages, bl_status_t status, const char *text) {
  bl_vote_result_t result = {.loss = -7};
  bl_error_t err;
  assert_int_equal(count(votes, stages, &result, &err), status);
  if (strstr(err.text, text) == NULL) {
    fail_msg("'%s' is not in '%s'", text, err.text);
  }
  assert_true(result.loss == -7);
}

static void test_what_is_refused(void **state) {
  (void)state;
  bl_rank_vote_t two[] = {vote(0, 3, false), vote(3, TENSORS - 3, true)};
  two[0].square_count = 2;
  expect(two, 2, BL_INTERNAL, "tensor 2");
  two[0] = vote(0, 4, false);
  expect(two, 2, BL_INTERNAL, "tensor 3");
  two[0] = vote(0, 3, true);
  expect(two, 2, BL_INTERNAL, "6 losses were reported, the step has 3");
  two[0] = vote(0, 3, false);
  two[1].loss_count = 2;
  expect(two, 2, BL_INTERNAL, "2 losses");
  two[1] = vote(3, TENSORS - 3, true);
  two[0].finite = false;
  expect(two, 2, BL_PRECONDITION, "a gradient of stage 0");
  two[1].finite = false;
  two[1].nonfinite_micro_batch = 2;
  expect(two, 2, BL_PRECONDITION, "step 4: the loss of micro-batch 2 is not finite (stage 1)");
  // Every square is finite, their sum is not.
  double large[TENSORS] = {1e308, 1e308};
  bl_rank_vote_t overflow = vote(0, TENSORS, true);
  overflow.squares = large;
  expect(&overflow, 1, BL_PRECONDITION, "gradient norm");
}

static void test_the_advice_knows_what_is_set(void **state) {
  (void)state;
  const double clips[] = {0, 1};
  const char *advice[] = {"lower train.lr or set train.clip", "lower train.lr or train.clip"};
  double large[TENSORS] = {1e308, 1e308}, scratch[TENSORS];
  const bl_model_t model = small();
  const bl_grid_t grid = {.stages = 1, .tensor = 1, .data = 1, .tensor_parts = 1, .data_parts = 1};
  for (int i = 0; i < 2; i++) {
    bl_rank_vote_t votes[] = {vote(0, TENSORS, true), vote(0, TENSORS, true), vote(0, TENSORS, true)};
    votes[0].finite = false;
    votes[0].nonfinite_micro_batch = 2;
    votes[1].finite = false;
    votes[2].squares = large;
    for (int k = 0; k < 3; k++) {
      bl_vote_result_t result;
      bl_error_t err;
      assert_int_equal(bl_vote_result_count(&votes[k], &grid, 3, &model, clips[i], scratch, &result, &err),
                       BL_PRECONDITION);
      if (strstr(err.text, advice[i]) == NULL) {
        fail_msg("clip %g: '%s' does not say '%s'", clips[i], err.text, advice[i]);
      }
    }
  }
}

static void test_clipping(void **state) {
  (void)state;
  assert_true(bl_clip_scale(0, 100) == 1);
  assert_true(bl_clip_scale(1, 0.5) == 1);
  assert_true(bl_clip_scale(1, 4) == 1 / (4 + 1e-6));
}

static void test_copies_own_what_they_hold(void **state) {
  (void)state;
  bl_rank_vote_t copy = {0};
  bl_rank_vote_t from = vote(0, TENSORS, true), less = vote(1, 2, false);
  assert_int_equal(bl_rank_vote_copy(&copy, &from), BL_OK);
  assert_memory_equal(copy.squares, squares, sizeof squares);
  assert_ptr_not_equal(copy.squares, squares);
  assert_int_equal(bl_rank_vote_copy(&copy, &less), BL_OK);
  assert_null(copy.losses);
  assert_int_equal(copy.parameter_indices[1], 2);
  bl_rank_vote_cleanup(&copy);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_bits_do_not_depend_on_the_cut), cmocka_unit_test(test_bits_do_not_depend_on_replicas),
      cmocka_unit_test(test_bits_do_not_depend_on_pipes),   cmocka_unit_test(test_what_is_refused),
      cmocka_unit_test(test_the_advice_knows_what_is_set),  cmocka_unit_test(test_clipping),
      cmocka_unit_test(test_copies_own_what_they_hold),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
