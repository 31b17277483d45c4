// SPDX-License-Identifier: Apache-2.0
// Verifies that available memory is plausible.
#include "sys/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void available_is_plausible(void **state) {
  (void)state;
  uint64_t available = bl_memory_available_bytes();
  assert_true(available > 1u << 20);
  assert_true(available < 1ull << 50); // /proc is there on every machine the project promises
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(available_is_plausible),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
