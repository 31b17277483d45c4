// SPDX-License-Identifier: Apache-2.0
// Verifies numbers in order and medians, also of nothing and of one.
#include "base/sort.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void sorts_what_does_not_fit_a_difference(void **state) {
  (void)state;
  uint64_t numbers[] = {UINT64_MAX, 1, 0, UINT64_MAX - 1, 1};
  const uint64_t expected[] = {0, 1, 1, UINT64_MAX - 1, UINT64_MAX};
  bl_sort_u64(numbers, 5);
  assert_memory_equal(numbers, expected, sizeof expected);
  double reals[] = {1e-300, -1e300, 0, 1e300};
  const double ascending[] = {-1e300, 0, 1e-300, 1e300};
  bl_sort_f64(reals, 4);
  assert_memory_equal(reals, ascending, sizeof ascending);
}

static void median_is_the_middle(void **state) {
  (void)state;
  double odd[] = {9, 1, 4}, even[] = {9, 1, 4, 2}, one[] = {7};
  assert_true(bl_median(odd, 3) == 4);
  assert_true(bl_median(even, 4) == 3);
  assert_true(bl_median(one, 1) == 7);
  assert_true(bl_median(NULL, 0) == 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sorts_what_does_not_fit_a_difference),
      cmocka_unit_test(median_is_the_middle),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
