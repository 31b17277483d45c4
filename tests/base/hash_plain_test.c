// SPDX-License-Identifier: Apache-2.0
// Verifies that the hash of a build without xxHash has the library's values: sizes around every border, seeds, alignments.
#include "base/hash.h"

#define bl_hash64      plain_hash64
#define bl_hash64_copy plain_hash64_copy
uint64_t plain_hash64(const void *bytes, size_t size_bytes, uint64_t seed);
uint64_t plain_hash64_copy(void *restrict to, const void *restrict from, size_t size_bytes, uint64_t seed,
                           bool past_caches);
#include "base/plain/hash.c"
#undef bl_hash64
#undef bl_hash64_copy

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static void values_agree(void **state) {
  (void)state;
  static const uint64_t seeds[] = {0, 1, 42, UINT64_C(0x9e3779b97f4a7c15), UINT64_MAX};
  uint8_t *bytes = malloc(70001), *copy = malloc(70001);
  for (size_t i = 0; i < 70001; i++) {
    bytes[i] = (uint8_t)(i * 2654435761u >> 11);
  }
  for (size_t size = 0; size <= 70000; size = size < 3000 ? size + 1 : size * 9 / 8) {
    for (size_t s = 0; s < sizeof seeds / sizeof seeds[0]; s++) {
      const uint64_t expected = bl_hash64(bytes + 1, size, seeds[s]);
      assert_int_equal(plain_hash64(bytes + 1, size, seeds[s]), expected);
      assert_int_equal(plain_hash64_copy(copy, bytes + 1, size, seeds[s], false), expected);
    }
  }
  free(bytes);
  free(copy);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(values_agree)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
