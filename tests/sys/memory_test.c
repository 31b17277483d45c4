// SPDX-License-Identifier: Apache-2.0
// Verifies that available memory is plausible and follows a limit of address space.
#include "sys/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>

#include <cmocka.h>

static void available_is_plausible(void **state) {
  (void)state;
  uint64_t available = bl_memory_available_bytes();
  assert_true(available > 1u << 20);
  assert_true(available < 1ull << 50); // /proc is there on every machine the project promises
}

static void a_limit_of_address_space_counts(void **state) {
  (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  skip(); // their shadow takes more address space than any limit leaves
#endif
  struct rlimit before, limit;
  assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
  limit = (struct rlimit){.rlim_cur = UINT64_C(1) << 30, .rlim_max = before.rlim_max};
  assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
  const uint64_t under = bl_memory_available_bytes();
  assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
  assert_in_range(under, 1, (UINT64_C(1) << 30) - 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(available_is_plausible),
      cmocka_unit_test(a_limit_of_address_space_counts),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
