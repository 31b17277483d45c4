// SPDX-License-Identifier: Apache-2.0
// Verifies the bound for operations on any CPU against what this CPU's back end plans, with each of its instruction sets
// (one a run: ONEDNN_MAX_CPU_ISA): never less, and of copies of weights hardly more where sides have whole blocks. Covers
// shapes with and without padding, 50 million parameters in two layers, fp32 and bf16, threads, parts, slices.
#include "compute/model/operations.h"

#include "compute/ops/select.h"
#include "device/open.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

typedef struct setting {
  bl_family_t family;
  uint32_t hidden, heads, ffn, vocab, seq, micro_batch, threads, slices, parts, ranks;
} setting_t;

static const setting_t settings[] = {
    {BL_FAMILY_GPT2, 1024, 16, 4096, 50257, 128, 1, 1, 1, 1, 1},
    {BL_FAMILY_GPT2, 768, 12, 3072, 8192, 32, 1, 4, 1, 1, 1},
    {BL_FAMILY_GPT2, 250, 5, 1000, 1000, 64, 8, 1, 1, 1, 1},
    {BL_FAMILY_GPT2, 36, 2, 144, 101, 15, 3, 2, 3, 1, 1},
    {BL_FAMILY_GPT2, 512, 8, 2048, 5000, 256, 2, 1, 1, 4, 2},
    {BL_FAMILY_LLAMA, 2048, 16, 5504, 32000, 512, 1, 8, 1, 1, 1},
    {BL_FAMILY_LLAMA, 256, 4, 688, 320, 1024, 1, 2, 4, 4, 4},
    {BL_FAMILY_LLAMA, 64, 1, 172, 61, 2048, 1, 16, 1, 1, 1},
};

static void expect_most(const setting_t *s, bl_dtype_t dtype, const char *what, uint64_t measured, uint64_t bound) {
  if (measured > bound) {
    fail_msg("hidden %u, vocab %u, dtype %d, %u threads: %s: %" PRIu64 " bytes planned, bound %" PRIu64, s->hidden,
             s->vocab, (int)dtype, s->threads, what, measured, bound);
  }
}

static void check(bl_device_t *device, const bl_ops_t *ops, const setting_t *s, bl_dtype_t dtype,
                  bl_attention_t attention) {
  const bl_model_t model = {.family = s->family,
                            .layers = 2,
                            .hidden = s->hidden,
                            .heads = s->heads,
                            .kv_heads = s->heads,
                            .head_dim = s->hidden / s->heads,
                            .ffn = s->ffn,
                            .vocab = s->vocab,
                            .seq = s->seq,
                            .norm_epsilon = BL_NORM_EPSILON_DEFAULT,
                            .rope.theta = BL_ROPE_THETA_DEFAULT};
  const bl_layout_options_t options = {.micro_batch = s->micro_batch,
                                       .slices = s->slices,
                                       .layer_parts = {.count = s->parts, .ranks = s->ranks},
                                       .attention = attention,
                                       .dtype = dtype};
  const bl_operation_memory_t bound = bl_operation_memory_of_cpu(&model, options, s->threads);
  bl_operation_memory_t m;
  bl_error_t err;
  if (bl_operations_measure(ops, device, s->threads, &model, options, &m, &err) != BL_OK) {
    fail_msg("hidden %u: %s", s->hidden, err.text);
  }
  assert_int_equal(m.held_bytes, 0);
  expect_most(s, dtype, "copies of a layer's weights", m.packed_layer_bytes, bound.packed_layer_bytes);
  expect_most(s, dtype, "copies of the head's weight", m.packed_head_bytes, bound.packed_head_bytes);
  expect_most(s, dtype, "workspace of layers", m.layer_workspace_bytes, bound.layer_workspace_bytes);
  expect_most(s, dtype, "workspace of the head", m.head_workspace_bytes, bound.head_workspace_bytes);
  if (s->hidden >= 512) {
    assert_in_range(bound.packed_layer_bytes, 0, m.packed_layer_bytes * 11 / 10);
  }
}

static void a_bound_is_never_below_a_plan(void **state) {
  (void)state;
  bl_device_t *device;
  const bl_ops_t *ops;
  bl_error_t err;
  assert_int_equal(bl_device_open(BL_DEVICE_HOST, 0, &device, &err), BL_OK);
  assert_int_equal(bl_ops_select(BL_DEVICE_HOST, &ops, &err), BL_OK);
  for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
    for (int k = 0; k < 4; k++) {
      check(device, ops, &settings[i], k % 2 == 0 ? BL_DTYPE_FP32 : BL_DTYPE_BF16,
            k / 2 == 0 ? BL_ATTENTION_FLASH : BL_ATTENTION_NAIVE);
    }
  }
  bl_device_close(device);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(a_bound_is_never_below_a_plan)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
