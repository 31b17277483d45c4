// SPDX-License-Identifier: Apache-2.0
// Verifies bl_hash64: known answers of XXH3, and the same values from every build that this processor can run.
#include "base/hash.h"
#include "base/hash_dispatch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static void known_answers(void **state) {
  (void)state;
  assert_int_equal(bl_hash64("", 0, 0), 0x2d06800538d394c2ull); // from xxHash's own sanity tests
  assert_int_not_equal(bl_hash64("", 0, 1), bl_hash64("", 0, 0));
  assert_int_not_equal(bl_hash64("a", 1, 0), bl_hash64("b", 1, 0));
}

static void builds_agree(void **state) {
  (void)state;
  uint8_t *bytes = malloc(70001);
  for (size_t i = 0; i < 70001; i++) {
    bytes[i] = (uint8_t)(i * 2654435761u >> 11);
  }
  for (size_t size = 0; size <= 70000; size = size < 3000 ? size + 1 : size * 9 / 8) {
    for (uint64_t seed = 0; seed < 2; seed++) {
      uint64_t expected = bl__hash64_baseline(bytes + 1, size, seed);
      assert_int_equal(bl_hash64(bytes + 1, size, seed), expected);
#if defined(__x86_64__)
      if (__builtin_cpu_supports("avx2")) {
        assert_int_equal(bl__hash64_avx2(bytes + 1, size, seed), expected);
      }
#endif
    }
  }
  free(bytes);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(known_answers),
      cmocka_unit_test(builds_agree),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
