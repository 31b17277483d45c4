// SPDX-License-Identifier: Apache-2.0
// Verifies that executing operations allocates nothing by our code: the linker sends the allocations of everything
// linked statically here. What oneDNN allocates inside its shared library is its own.
#include "ops/cases/op_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static size_t allocations;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);

void *__wrap_malloc(size_t bytes) {
  allocations++;
  return __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes) {
  allocations++;
  return __real_calloc(count, bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes) {
  allocations++;
  return __real_aligned_alloc(alignment, bytes);
}

enum { SEQ = 65, HIDDEN = 32, VOCAB = 90, HEAD_DIM = 16, HEADS = 2 };

static void run_step(bl_compute_dtype_t dtype) {
  const bl_ops_t *ops = bl_ops_host();
  bl_compute_t *compute;
  bl_error_t err = {0};
  bl_linear_op_t *linear;
  bl_attention_op_t *attention, *narrow;
  bl_rope_op_t *rope;
  op_skip_unseen_threads(2);
  assert_int_equal(ops->create(&(bl_compute_options_t){.threads = 2}, &compute, &err), BL_OK);
  assert_true(allocations > 0); // the wrappers are in place
  ops->attach(compute);
  const bl_linear_shape_t l = {.rows = SEQ,
                               .in = HIDDEN,
                               .out = VOCAB,
                               .order = BL_WEIGHT_OUT_IN,
                               .uses = BL_LINEAR_FORWARD | BL_LINEAR_INPUT | BL_LINEAR_WEIGHT,
                               .prepack = true,
                               .dtype = dtype};
  const bl_attention_shape_t a = {
      .batch = 1, .seq = SEQ, .heads = HEADS, .kv_heads = HEADS, .head_dim = HEAD_DIM, .flash = true, .dtype = dtype};
  bl_attention_shape_t window = a;
  window.flash = false;
  window.window = 20;
  window.softcap = 30;
  const bl_rope_shape_t r = {.batch = 1,
                             .seq = SEQ,
                             .heads = HEADS,
                             .kv_heads = HEADS,
                             .head_dim = HEAD_DIM,
                             .rope.theta = 10000,
                             .dtype = dtype};
  assert_int_equal(ops->linear_plan(compute, &l, &linear, &err), BL_OK);
  assert_int_equal(ops->attention_plan(compute, &a, &attention, &err), BL_OK);
  assert_int_equal(ops->attention_plan(compute, &window, &narrow, &err), BL_OK);
  assert_int_equal(ops->rope_plan(compute, &r, &rope, &err), BL_OK);
  op_host_workspace(&(op_host_t){ops, compute, NULL});
  void *packed = aligned_alloc(64, (ops->linear_packed_bytes(linear) + 63) / 64 * 64);
  const size_t floats = SEQ * (VOCAB + 3 * HIDDEN);
  float *x = calloc(floats, sizeof *x), *y = calloc(floats, sizeof *y), *w = calloc(floats, sizeof *w);
  float *stats = calloc(floats, sizeof *stats), *m = calloc(floats, sizeof *m), *v = calloc(floats, sizeof *v);
  int32_t *ids = calloc(SEQ, sizeof *ids);
  double losses[SEQ], loss;
  int64_t bad;
  const bl_norm_shape_t n = {.rows = SEQ, .width = HIDDEN, .epsilon = 1e-5f, .dtype = dtype};
  const bl_head_norm_shape_t h = {
      .rows = SEQ, .heads = HEADS, .kv_heads = HEADS, .head_dim = HEAD_DIM, .epsilon = 1e-6f, .dtype = dtype};
  const bl_adamw_tensor_t adamw = {.options = {1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.5f, 0.5f, 1.0f},
                                   .count = SEQ * HIDDEN,
                                   .dw = x,
                                   .w = w,
                                   .m = m,
                                   .v = v};

  allocations = 0;
  ops->linear_pack(linear, w, NULL, packed);
  ops->embedding_forward(compute, 1, SEQ, HIDDEN, 1.0f, dtype, ids, w, NULL, x);
  ops->norm_forward(compute, &n, x, w, w, y, stats);
  ops->head_norm_forward(compute, &h, y, w, w, x);
  ops->rope_forward(rope, x);
  ops->attention_forward(attention, x, y, stats);
  ops->attention_backward(attention, w, x, y, stats, x);
  ops->attention_forward(narrow, x, y, stats);
  ops->attention_backward(narrow, w, x, y, stats, x);
  ops->head_norm_backward(compute, &h, x, y, w, w, v, m);
  ops->linear_forward(linear, x, w, packed, NULL, NULL, y);
  ops->softcap_logits(compute, SEQ, VOCAB, VOCAB, 30.0f, y);
  ops->cross_entropy(compute, SEQ, VOCAB, VOCAB, dtype, ids, 1.0f, 30.0f, y, losses);
  ops->loss_sum(compute, SEQ, losses, &loss, &bad);
  ops->linear_backward_input(linear, y, w, packed, false, x);
  ops->linear_backward_weight(linear, x, y, true, w);
  ops->add_columns(compute, 1, &(bl_column_sum_t){SEQ, HIDDEN, dtype, y, m});
  ops->norm_backward(compute, &n, y, x, w, stats, NULL, v, m);
  ops->gelu_forward(compute, SEQ * HIDDEN, dtype, x, y);
  ops->gated_forward(compute, BL_GATE_GELU, SEQ, HIDDEN, dtype, x, y);
  ops->gated_backward(compute, BL_GATE_GELU, SEQ, HIDDEN, dtype, y, x, v);
  ops->embedding_backward(compute, 1, SEQ, HIDDEN, 1.0f, dtype, ids, x, w, NULL);
  ops->sum_squares(compute, 1, &(bl_squares_t){SEQ * HIDDEN, x, &loss});
  ops->adamw(compute, 1, &adamw);
  (void)ops->draw(compute, VOCAB, w, 1.0f, 0.5);
  const size_t counted = allocations;

  printf("allocations by our code in a step: %zu\n", counted);
  assert_int_equal(counted, 0);
  assert_int_equal(ops->status(compute, &err), BL_OK);
  void *blocks[] = {packed, x, y, w, stats, m, v, ids};
  for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
    free(blocks[i]);
  }
  ops->destroy(compute);
}

static void a_step_allocates_nothing(void **state) {
  (void)state;
  run_step(BL_COMPUTE_FP32);
}

static void a_step_in_bf16_allocates_nothing(void **state) {
  (void)state;
  run_step(BL_COMPUTE_BF16);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(a_step_allocates_nothing),
                                     cmocka_unit_test(a_step_in_bf16_allocates_nothing)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
