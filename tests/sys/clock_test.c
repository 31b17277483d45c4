// SPDX-License-Identifier: Apache-2.0
// Verifies that the clocks go forward, and that the units hold products of more than 32 bits.
#include "sys/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

static void units_do_not_wrap(void **state) {
  (void)state;
  const int minute = 60, hour_ms = 3600 * 1000;
  assert_true(minute * BL_NS_PER_S == UINT64_C(60000000000));
  assert_true(hour_ms * BL_NS_PER_MS == UINT64_C(3600000000000));
}

static void clocks_go_forward(void **state) {
  (void)state;
  const uint64_t monotonic_ns = bl_clock_now_ns();
  usleep(1);
  assert_true(bl_clock_now_ns() > monotonic_ns);
  assert_true(bl_clock_wall_ns() > UINT64_C(1600000000) * BL_NS_PER_S); // 2020
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(units_do_not_wrap),
      cmocka_unit_test(clocks_go_forward),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
