// SPDX-License-Identifier: Apache-2.0
// Verifies every operation of the host back end, on each instruction set this CPU has and with one and two threads,
// against the fp64 reference: odd sizes, poisoned outputs, guard zones, unchanged inputs, same bits when repeated. The
// reference's own gradients are checked by finite differences. `test_compute_ops speed` takes times instead.
#include "instrumented.h"
#include "ops/cases/op_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static op_host_t open_host(bl_instruction_set_t set, uint32_t threads, bl_error_t *err) {
  op_host_t host = {.ops = bl_ops_host()};
  bl_compute_options_t options = {.threads = threads, .instruction_set = set};
  if (host.ops->create(&options, &host.compute, err) == BL_OK) {
    host.ops->attach(host.compute);
  }
  return host;
}

// Kernels that are instrumented take a hundred times as long.
static bool one_host_is_enough(const op_case_t *c) {
#if defined(__SANITIZE_THREAD__)
  return c->flags & OP_BF16;
#else
  (void)c;
  return INSTRUMENTED;
#endif
}

// Every instruction set that this CPU has, and two threads; where one is enough, another one for each case.
static void every_host_agrees(void **state) {
  (void)state;
  static const bl_instruction_set_t sets[] = {BL_ISA_BASELINE, BL_ISA_AVX2, BL_ISA_AVX512, BL_ISA_AUTO};
  op_host_t hosts[sizeof sets / sizeof sets[0]];
  size_t count = 0, wrong = 0;
  for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
    const uint32_t threads = sets[i] == BL_ISA_AUTO ? 2 : 1;
    bl_error_t err = {0};
    if (!op_sees_threads(threads)) {
      continue;
    }
    hosts[count] = open_host(sets[i], threads, &err);
    printf("%s\n", hosts[count].compute ? hosts[count].ops->describe(hosts[count].compute) : err.text);
    count += hosts[count].compute != NULL;
  }
  assert_true(count > 0);
  for (size_t i = 0; i < op_cases_count; i++) {
    const bool one = one_host_is_enough(&op_cases[i]);
    wrong += op_case_compare(&hosts[one ? i % count : 0], one ? 1 : count, &op_cases[i]);
  }
  printf("%zu cases on %zu hosts, %zu wrong\n", op_cases_count, count, wrong);
  for (size_t i = 0; i < count; i++) {
    hosts[i].ops->destroy(hosts[i].compute);
  }
  assert_int_equal(wrong, 0);
}

static void reference_gradients_agree_with_finite_differences(void **state) {
  (void)state;
  if (INSTRUMENTED) {
    skip(); // the reference is not
  }
  for (size_t i = 0; i < op_cases_count; i++) {
    // A residual's gradient passes by the norm: dx then is not the derivative of y alone.
    const bool norm_residual = op_cases[i].kind == &op_norm && op_cases[i].flags & OP_RESIDUAL;
    if (!norm_residual && !(op_cases[i].flags & (OP_LARGE | OP_BF16))) { // the reference is the same for bf16
      assert_true(op_case_gradients(&op_cases[i]));
    }
  }
}

static int take_times(void) {
  static const op_case_t cases[] = {
      {&op_linear, {1024, 768, 3072}, OP_BIAS | OP_PREPACK},
      {&op_norm, {1024, 768}, OP_RESIDUAL},
      {&op_gelu, {1024 * 3072}, 0},
      {&op_gated, {1024, 2048}, 0},
      {&op_attention, {1, 1024, 12, 12, 64}, OP_FLASH},
      {&op_attention, {1, 1024, 12, 12, 64}, 0},
      {&op_adamw, {4 << 20}, 0},
  };
  bl_error_t err = {0};
  op_host_t host = open_host(BL_ISA_AUTO, 1, &err);
  if (!host.compute) {
    fprintf(stderr, "%s\n", err.text);
    return 1;
  }
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char name[128];
    op_case_name(&cases[i], name, sizeof name);
    printf("%-44s %9.3f ms forward and backward\n", name, 1e3 * op_case_seconds(&host, &cases[i]));
  }
  host.ops->destroy(host.compute);
  return 0;
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], "speed") == 0) {
    return take_times();
  }
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(reference_gradients_agree_with_finite_differences),
      cmocka_unit_test(every_host_agrees),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
