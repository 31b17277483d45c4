// SPDX-License-Identifier: Apache-2.0
// Verifies that recomputed blocks are counted over the hour that has just passed, and forgotten after it, also after
// long silence.
#include "recomputes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define MINUTE (60 * UINT64_C(1000000000))

static void an_hour_counts(void **state) {
  (void)state;
  bl_recomputes_t recomputes = {0};
  uint64_t start_ns = 1234567 * MINUTE + 17;
  assert_int_equal(bl_recomputes_count(&recomputes, start_ns), 0);
  for (uint64_t i = 0; i < 200; i++) {
    bl_recomputes_add(&recomputes, start_ns + i * MINUTE, 2);
    bl_recomputes_add(&recomputes, start_ns + i * MINUTE + 5, 1);
    assert_int_equal(bl_recomputes_count(&recomputes, start_ns + i * MINUTE + 6), 3 * (i < 60 ? i + 1 : 60));
  }
  uint64_t end_ns = start_ns + 199 * MINUTE;
  assert_int_equal(bl_recomputes_count(&recomputes, end_ns + 30 * MINUTE), 3 * 30);
  assert_int_equal(bl_recomputes_count(&recomputes, end_ns + 59 * MINUTE), 3);
  assert_int_equal(bl_recomputes_count(&recomputes, end_ns + 60 * MINUTE), 0);
  bl_recomputes_add(&recomputes, end_ns + 60 * MINUTE, 7);
  assert_int_equal(bl_recomputes_count(&recomputes, end_ns + 100000 * MINUTE), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(an_hour_counts)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
