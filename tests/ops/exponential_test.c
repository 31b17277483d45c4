// SPDX-License-Identifier: Apache-2.0
// Verifies the error bounds that kernels/kernel.h states for the vectorizable exponential and what is made of it.
#include "compute/ops/host/kernels/kernel.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

// Every 499th float of the range, both signs: about 4 million.
static void powers_of_two_are_within_their_bound(void **state) {
  (void)state;
  double worst = 0;
  for (uint32_t bits = 0; bits <= 0x42fe0000u; bits += 499) { // 0 to 127
    float x;
    memcpy(&x, &bits, sizeof x);
    for (int sign = 0; sign < 2; sign++) {
      const float value = sign ? -x : x;
      if (value < -126.0f) {
        continue;
      }
      const double want = exp2((double)value);
      const double error = fabs((double)bl__exp2(value) - want) / want;
      worst = error > worst ? error : worst;
    }
  }
  printf("largest relative error of bl__exp2: 2^%.2f\n", log2(worst));
  assert_true(worst < 0x1p-22);
}

static void ends_are_clamped_and_nan_passes(void **state) {
  (void)state;
  assert_true(bl__exp2(-INFINITY) == 0x1p-126f);
  assert_true(bl__exp2(-1000.0f) == 0x1p-126f);
  assert_true(bl__exp2(INFINITY) == 0x1p127f);
  assert_true(isnan(bl__exp2(NAN)));
  assert_true(bl__exp2(0.0f) == 1.0f);
}

static void sigmoid_is_within_its_bound(void **state) {
  (void)state;
  for (float x = -40.0f; x < 40.0f; x += 0.000731f) {
    const float e = bl__exp_of_minus(x);
    const double want = 1 / (1 + exp(-(double)x)), got = (double)(1.0f / (1.0f + e));
    const double rest = (double)(e / (1.0f + e)), rest_want = 1 / (1 + exp((double)x));
    const double bound = 0x1p-21 + fabs((double)x) * 0x1p-23;
    assert_true(fabs(got - want) <= bound * want);
    assert_true(fabs(rest - rest_want) <= bound * rest_want);
  }
}

// Every 499th float, both signs: from denormal numbers to where it is 1.
static void tanh_is_within_its_bound(void **state) {
  (void)state;
  double worst = 0;
  for (uint32_t bits = 0x00800000u; bits <= 0x42c80000u; bits += 499) { // 2^-126 to 100
    float x;
    memcpy(&x, &bits, sizeof x);
    const double want = tanh((double)x), got = (double)bl__tanh(x);
    const double error = fabs(got - want) / want;
    worst = error > worst ? error : worst;
    assert_true(bl__tanh(-x) == -bl__tanh(x));
    assert_true(got <= 1.0);
  }
  printf("largest relative error of bl__tanh: 2^%.2f\n", log2(worst));
  assert_true(worst < 0x1p-22);
  assert_true(bl__tanh(0.0f) == 0.0f);
  assert_true(bl__tanh(INFINITY) == 1.0f && bl__tanh(-INFINITY) == -1.0f);
  assert_true(isnan(bl__tanh(NAN)));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(powers_of_two_are_within_their_bound),
      cmocka_unit_test(ends_are_clamped_and_nan_passes),
      cmocka_unit_test(sigmoid_is_within_its_bound),
      cmocka_unit_test(tanh_is_within_its_bound),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
