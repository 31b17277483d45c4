// SPDX-License-Identifier: Apache-2.0
// Verifies the slowed path: transfers follow each other at its rate, a rest is not saved up, and no rate is no limit.
#include "parking/throttle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define SECOND UINT64_C(1000000000)

static void transfers_follow_each_other(void **state) {
  (void)state;
  bl_throttle_t throttle = {.bytes_per_second = 1000};
  assert_int_equal(bl_throttle_take(&throttle, 10 * SECOND, 500), 10 * SECOND + SECOND / 2);
  assert_int_equal(bl_throttle_take(&throttle, 10 * SECOND, 500), 11 * SECOND);
  assert_int_equal(bl_throttle_take(&throttle, 20 * SECOND, 2000), 22 * SECOND);
}

static void no_rate_is_no_limit(void **state) {
  (void)state;
  bl_throttle_t throttle = {0};
  assert_int_equal(bl_throttle_take(&throttle, 7, 1u << 30), 7);
  assert_int_equal(bl_throttle_take(&throttle, 8, 1u << 30), 8);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(transfers_follow_each_other),
      cmocka_unit_test(no_rate_is_no_limit),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
