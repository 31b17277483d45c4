// SPDX-License-Identifier: Apache-2.0
// Verifies that available and resident memory are plausible and that resident memory follows what is touched.
#include "sys/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

static void available_is_plausible(void **state) {
  (void)state;
  uint64_t available = bl_memory_available_bytes();
  assert_true(available > 1u << 20);
  assert_true(available < 1ull << 50); // /proc is there on every machine the project promises
}

static void resident_follows_touching(void **state) {
  (void)state;
  const size_t bytes = 64u << 20;
  void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_ptr_not_equal(map, MAP_FAILED);
  uint64_t before = bl_memory_resident_bytes();
  memset(map, 1, bytes);
  uint64_t after = bl_memory_resident_bytes();
  assert_true(after >= before + bytes * 9 / 10);
  munmap(map, bytes);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(available_is_plausible),
      cmocka_unit_test(resident_follows_touching),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
