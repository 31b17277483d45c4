// SPDX-License-Identifier: Apache-2.0
// Verifies the counter-based generator: known answers of Philox4x32-10, moments of its normals, bounds.
#include "base/random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void known_answers(void **state) {
  (void)state;
  // Random123's kat_vectors: philox4x32 10, counter 0, key 0 -> 6627e8d5 e169c58d bc57ac4c 9b00dbd8.
  assert_int_equal(bl_random_bits(0, 0), 0xe169c58d6627e8d5ull);
}

static void normals_have_the_right_moments(void **state) {
  (void)state;
  uint64_t key = bl_random_key(7, "transformer.wte.weight");
  double sum = 0, squares = 0;
  const int count = 100000;
  for (int i = 0; i < count; i++) {
    double x = bl_random_normal(key, (uint64_t)i);
    assert_true(isfinite(x));
    sum += x;
    squares += x * x;
  }
  assert_true(fabs(sum / count) < 0.02);
  assert_true(fabs(squares / count - 1) < 0.03);
}

static void bounds_hold(void **state) {
  (void)state;
  unsigned seen = 0;
  for (uint64_t i = 0; i < 1000; i++) {
    uint64_t x = bl_random_below(3, i, 5);
    assert_in_range(x, 0, 4);
    seen |= 1u << x;
    double u = bl_random_uniform(3, i);
    assert_true(u >= 0 && u < 1);
  }
  assert_int_equal(seen, 31);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(known_answers),
      cmocka_unit_test(normals_have_the_right_moments),
      cmocka_unit_test(bounds_hold),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
