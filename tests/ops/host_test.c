// SPDX-License-Identifier: Apache-2.0
// Verifies the contract of the host back end around the arithmetic: plans are shared and refuse bad shapes, the first
// failure is kept, bits do not depend on the thread count where ops.h says so, denormals are flushed, losses that are
// not finite are found, drawing is exact.
#include "ops/cases/op_case.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static bl_compute_t *open_compute(uint32_t threads) {
  bl_error_t err = {0};
  bl_compute_t *compute = NULL;
  const bl_compute_options_t options = {.threads = threads};
  if (bl_ops_host()->create(&options, &compute, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  bl_ops_host()->attach(compute);
  return compute;
}

static void creation_checks_its_options(void **state) {
  (void)state;
  bl_error_t err = {0};
  bl_compute_t *compute = NULL;
  assert_int_equal(bl_ops_host()->create(&(bl_compute_options_t){.threads = 0}, &compute, &err), BL_INVALID);
  assert_non_null(strstr(err.text, "threads"));
  assert_null(compute);
  compute = open_compute(1);
  assert_non_null(strstr(bl_ops_host()->describe(compute), "oneDNN"));
  bl_ops_host()->destroy(compute);
  bl_ops_host()->destroy(NULL);
}

static void plans_are_shared(void **state) {
  (void)state;
  const bl_ops_t *ops = bl_ops_host();
  bl_compute_t *compute = open_compute(1);
  bl_error_t err = {0};
  bl_linear_shape_t shape = {.rows = 8, .in = 16, .out = 32, .uses = BL_LINEAR_FORWARD};
  bl_linear_op_t *first, *again, *other;
  assert_int_equal(ops->linear_plan(compute, &shape, &first, &err), BL_OK);
  assert_int_equal(ops->linear_plan(compute, &shape, &again, &err), BL_OK);
  shape.bias = true;
  assert_int_equal(ops->linear_plan(compute, &shape, &other, &err), BL_OK);
  assert_ptr_equal(first, again);
  assert_ptr_not_equal(first, other);
  ops->destroy(compute);
}

static void bad_shapes_are_refused(void **state) {
  (void)state;
  const bl_ops_t *ops = bl_ops_host();
  bl_compute_t *compute = open_compute(1);
  bl_error_t err = {0};
  bl_linear_op_t *linear;
  bl_attention_op_t *attention;
  bl_rope_op_t *rope;
  bl_linear_shape_t l = {.rows = 8, .in = 0, .out = 32, .uses = BL_LINEAR_FORWARD};
  assert_int_equal(ops->linear_plan(compute, &l, &linear, &err), BL_INVALID);
  l = (bl_linear_shape_t){.rows = 8, .in = 16, .out = 32, .y_stride = 31, .uses = BL_LINEAR_FORWARD};
  assert_int_equal(ops->linear_plan(compute, &l, &linear, &err), BL_INVALID);
  l = (bl_linear_shape_t){.rows = 8, .in = 16, .out = 32, .uses = BL_LINEAR_FORWARD, .residual = true, .float_y = true};
  assert_int_equal(ops->linear_plan(compute, &l, &linear, &err), BL_INVALID);
  bl_attention_shape_t a = {.batch = 1, .seq = 4, .heads = 3, .kv_heads = 2, .head_dim = 8};
  assert_int_equal(ops->attention_plan(compute, &a, &attention, &err), BL_INVALID);
  assert_non_null(strstr(err.text, "key heads must divide heads"));
  bl_rope_shape_t r = {.batch = 1, .seq = 4, .heads = 2, .kv_heads = 2, .head_dim = 7, .rope.theta = 10000};
  assert_int_equal(ops->rope_plan(compute, &r, &rope, &err), BL_INVALID);
  assert_int_equal(ops->status(compute, &err), BL_OK); // plans report their own failures
  ops->destroy(compute);
}

static void the_first_failure_is_kept(void **state) {
  (void)state;
  const bl_ops_t *ops = bl_ops_host();
  bl_compute_t *compute = open_compute(1);
  bl_error_t err = {0};
  bl_attention_op_t *attention;
  bl_attention_shape_t shape = {.batch = 1, .seq = 4, .heads = 2, .kv_heads = 2, .head_dim = 8, .flash = true};
  assert_int_equal(ops->attention_plan(compute, &shape, &attention, &err), BL_OK);
  assert_true(ops->workspace_bytes(compute) > 0);
  float qkv[4 * 48] = {0}, att[4 * 16], saved[8];
  ops->attention_forward(attention, qkv, att, saved); // no workspace given
  assert_int_equal(ops->status(compute, &err), BL_INTERNAL);
  assert_non_null(strstr(err.text, "attention forward"));
  ops->gelu_forward(compute, 1, BL_COMPUTE_BF16, qkv, att);
  assert_int_equal(ops->status(compute, &err), BL_INTERNAL);
  assert_non_null(strstr(err.text, "attention forward"));
  ops->destroy(compute);
}

static void an_unplanned_use_is_a_failure(void **state) {
  (void)state;
  const bl_ops_t *ops = bl_ops_host();
  bl_compute_t *compute = open_compute(1);
  bl_error_t err = {0};
  bl_linear_op_t *op;
  bl_linear_shape_t shape = {.rows = 2, .in = 2, .out = 2, .uses = BL_LINEAR_FORWARD};
  assert_int_equal(ops->linear_plan(compute, &shape, &op, &err), BL_OK);
  float x[4] = {1, 2, 3, 4}, w[4] = {1, 0, 0, 1}, dx[4];
  op_host_workspace(&(op_host_t){ops, compute, NULL});
  ops->linear_backward_input(op, x, w, NULL, false, dx);
  assert_int_equal(ops->status(compute, &err), BL_INTERNAL);
  assert_non_null(strstr(err.text, "not planned"));
  ops->destroy(compute);
}

static void thread_count_does_not_change_bits(void **state) {
  (void)state;
  op_skip_unseen_threads(3);
  op_host_t one = {bl_ops_host(), open_compute(1), NULL};
  op_host_t two = {bl_ops_host(), open_compute(2), NULL}, three = {bl_ops_host(), open_compute(3), NULL};
  for (size_t i = 0; i < op_cases_count; i++) {
    if (op_cases[i].kind != &op_linear &&
        (op_cases[i].kind != &op_columns || op_cases[i].dims[0] == 1)) { // ops.h, rule 6
      assert_true(op_case_same_bits(&one, &three, &op_cases[i]));
    }
    if (op_cases[i].kind == &op_norm || op_cases[i].kind == &op_head_norm) { // sums by ranges that belong to no thread
      assert_true(op_case_same_bits(&one, &two, &op_cases[i]));
    }
  }
  one.ops->destroy(one.compute);
  two.ops->destroy(two.compute);
  three.ops->destroy(three.compute);
}

static void denormals_are_flushed(void **state) {
  (void)state;
  bl_compute_t *compute = open_compute(1);
  volatile float small = 1e-38f, tenth = 0.1f;
  const float product = small * tenth;
#if defined(__x86_64__) || defined(__aarch64__)
  assert_true(product == 0.0f);
#else
  (void)product;
#endif
  bl_ops_host()->destroy(compute);
}

static void losses_that_are_not_finite_are_found(void **state) {
  (void)state;
  const bl_ops_t *ops = bl_ops_host();
  bl_compute_t *compute = open_compute(1);
  const float bad[] = {NAN, INFINITY};
  for (size_t kind = 0; kind < 2; kind++) {
    for (size_t column = 0; column < 70; column += 23) {
      float logits[3 * 70];
      double losses[3], loss;
      const int32_t labels[3] = {5, 6, 7};
      int64_t row;
      for (size_t i = 0; i < 3 * 70; i++) {
        logits[i] = (float)(i % 7);
      }
      logits[70 + column] = bad[kind];
      ops->cross_entropy(compute, 3, 70, 70, BL_COMPUTE_FP32, labels, 1.0f, 0.0f, logits, losses);
      ops->loss_sum(compute, 3, losses, &loss, &row);
      assert_int_equal(row, 1);
      assert_false(isfinite(loss));
      assert_true(isfinite(losses[0]) && isfinite(losses[2]));
    }
  }
  ops->destroy(compute);
}

static void drawing_follows_the_distribution(void **state) {
  (void)state;
  const bl_ops_t *ops = bl_ops_host();
  bl_compute_t *compute = open_compute(1);
  // Probabilities 1/8, 1/2, 1/8, 1/4 at temperature 1.
  float logits[4] = {0.0f, logf(4.0f), 0.0f, logf(2.0f)};
  const struct {
    double uniform;
    int32_t token;
  } draws[] = {{0.0, 0}, {0.124, 0}, {0.126, 1}, {0.624, 1}, {0.626, 2}, {0.749, 2}, {0.751, 3}, {0.999999, 3}};
  for (size_t i = 0; i < sizeof draws / sizeof draws[0]; i++) {
    assert_int_equal(ops->draw(compute, 4, logits, 1.0f, draws[i].uniform), draws[i].token);
  }
  // Half the temperature squares the odds: 1/22, 16/22, 1/22, 4/22.
  assert_int_equal(ops->draw(compute, 4, logits, 0.5f, 1.1 / 22), 1);
  assert_int_equal(ops->draw(compute, 4, logits, 0.5f, 16.9 / 22), 1);
  logits[3] = logits[1]; // the first of equals
  assert_int_equal(ops->draw(compute, 4, logits, 0.0f, 0.9), 1);
  logits[2] = NAN;
  assert_int_equal(ops->draw(compute, 4, logits, 1.0f, 0.5), -1);
  ops->destroy(compute);
}

typedef struct attended {
  float *att, *saved, *dqkv;
} attended_t;

// Forward and backward of `shape` with one head of 16 on qkv, whose gradient comes from datt.
static attended_t attend(bl_compute_t *compute, const bl_attention_shape_t *shape, const float *qkv,
                         const float *datt) {
  const bl_ops_t *ops = bl_ops_host();
  bl_error_t err = {0};
  bl_attention_op_t *op;
  assert_int_equal(ops->attention_plan(compute, shape, &op, &err), BL_OK);
  op_host_workspace(&(op_host_t){ops, compute, NULL});
  const attended_t made = {calloc(shape->seq * 16, sizeof(float)), calloc(shape->seq * shape->seq, sizeof(float)),
                           calloc(shape->seq * 48, sizeof(float))};
  ops->attention_forward(op, qkv, made.att, made.saved);
  ops->attention_backward(op, datt, qkv, made.att, made.saved, made.dqkv);
  return made;
}

static void drop(attended_t *attended) {
  free(attended->att);
  free(attended->saved);
  free(attended->dqkv);
}

static float *some_floats(size_t count) {
  float *made = calloc(count, sizeof *made);
  for (size_t i = 0; i < count; i++) {
    made[i] = (float)((int)(i * 37 % 101) - 50) * 0.05f;
  }
  return made;
}

// A window that hides nothing changes no bit.
static void a_wide_window_is_none(void **state) {
  (void)state;
  bl_compute_t *compute = open_compute(1);
  enum { SEQ = 150 };
  const uint64_t windows[] = {SEQ, SEQ + 1, UINT64_MAX};
  float *qkv = some_floats(SEQ * 48), *datt = some_floats(SEQ * 16);
  for (int flash = 0; flash < 2; flash++) {
    bl_attention_shape_t shape = {.batch = 1, .seq = SEQ, .heads = 1, .kv_heads = 1, .head_dim = 16, .flash = flash};
    attended_t full = attend(compute, &shape, qkv, datt);
    for (size_t i = 0; i < sizeof windows / sizeof windows[0]; i++) {
      shape.window = windows[i];
      attended_t wide = attend(compute, &shape, qkv, datt);
      assert_memory_equal(full.att, wide.att, SEQ * 16 * sizeof(float));
      assert_memory_equal(full.saved, wide.saved, SEQ * (flash ? 1 : SEQ) * sizeof(float));
      assert_memory_equal(full.dqkv, wide.dqkv, SEQ * 48 * sizeof(float));
      drop(&wide);
    }
    drop(&full);
  }
  free(qkv);
  free(datt);
  bl_ops_host()->destroy(compute);
}

// What a window hides does not matter, not even when it is huge: not to queries that do not see it any more, nor to keys
// that they see. With a window of 1 a query attends to itself alone.
static void attention_does_not_look_behind_its_window(void **state) {
  (void)state;
  bl_compute_t *compute = open_compute(1);
  enum { SEQ = 200, HUGE_ROW = 30 };
  const uint64_t windows[] = {1, 5, 16, 64, 65, 100};
  float *qkv = some_floats(SEQ * 48), *datt = some_floats(SEQ * 16);
  for (size_t n = 0; n < 2 * sizeof windows / sizeof windows[0]; n++) {
    const uint64_t window = windows[n / 2];
    const bl_attention_shape_t shape = {
        .batch = 1, .seq = SEQ, .heads = 1, .kv_heads = 1, .head_dim = 16, .flash = n % 2, .window = window};
    attended_t before = attend(compute, &shape, qkv, datt);
    float *huge = some_floats(SEQ * 48);
    for (size_t i = 16; i < 48; i++) {
      huge[HUGE_ROW * 48 + i] = 1e30f;
    }
    attended_t after = attend(compute, &shape, huge, datt);
    const size_t free_of_it = HUGE_ROW + window;
    assert_memory_equal(before.att + free_of_it * 16, after.att + free_of_it * 16,
                        (SEQ - free_of_it) * 16 * sizeof(float));
    for (size_t i = free_of_it; i < SEQ; i++) { // gradients of their queries
      assert_memory_equal(before.dqkv + i * 48, after.dqkv + i * 48, 16 * sizeof(float));
    }
    for (size_t i = 0; window == 1 && i < SEQ * 16; i++) {
      assert_true(before.att[i] == qkv[i / 16 * 48 + 32 + i % 16]);
    }
    free(huge);
    drop(&before);
    drop(&after);
  }
  free(qkv);
  free(datt);
  bl_ops_host()->destroy(compute);
}

// A later key does not matter to an earlier query, not even when it is infinite.
static void attention_does_not_look_ahead(void **state) {
  (void)state;
  const bl_ops_t *ops = bl_ops_host();
  bl_compute_t *compute = open_compute(1);
  enum { SEQ = 70, WIDTH = 3 * 16 };
  float *qkv = calloc(SEQ * WIDTH, sizeof *qkv), *before = calloc(SEQ * 16, sizeof *before);
  float *after = calloc(SEQ * 16, sizeof *after), *saved = calloc(SEQ * SEQ, sizeof *saved);
  for (int flash = 0; flash < 2; flash++) {
    bl_error_t err = {0};
    bl_attention_op_t *op;
    const bl_attention_shape_t shape = {
        .batch = 1, .seq = SEQ, .heads = 1, .kv_heads = 1, .head_dim = 16, .flash = flash};
    assert_int_equal(ops->attention_plan(compute, &shape, &op, &err), BL_OK);
    op_host_workspace(&(op_host_t){ops, compute, NULL});
    for (size_t i = 0; i < SEQ * WIDTH; i++) {
      qkv[i] = (float)((int)(i * 37 % 101) - 50) * 0.05f;
    }
    ops->attention_forward(op, qkv, before, saved);
    for (size_t i = 0; i < WIDTH; i++) {
      qkv[66 * WIDTH + i] = 1e30f; // row 66 sees itself; rows before must not
    }
    ops->attention_forward(op, qkv, after, saved);
    assert_memory_equal(before, after, 66 * 16 * sizeof(float));
    assert_memory_not_equal(before + 66 * 16, after + 66 * 16, 16 * sizeof(float));
  }
  free(qkv);
  free(before);
  free(after);
  free(saved);
  ops->destroy(compute);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(creation_checks_its_options),
      cmocka_unit_test(plans_are_shared),
      cmocka_unit_test(bad_shapes_are_refused),
      cmocka_unit_test(the_first_failure_is_kept),
      cmocka_unit_test(an_unplanned_use_is_a_failure),
      cmocka_unit_test(thread_count_does_not_change_bits),
      cmocka_unit_test(denormals_are_flushed),
      cmocka_unit_test(losses_that_are_not_finite_are_found),
      cmocka_unit_test(drawing_follows_the_distribution),
      cmocka_unit_test(attention_does_not_look_ahead),
      cmocka_unit_test(a_wide_window_is_none),
      cmocka_unit_test(attention_does_not_look_behind_its_window),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
