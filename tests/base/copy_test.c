// SPDX-License-Identifier: Apache-2.0
// Verifies the copy past the caches for every small length and alignment: all of it arrives, nothing around it changes.
#include "base/copy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define BYTES 512

static void every_length_and_alignment(void **state) {
  (void)state;
  static _Alignas(64) uint8_t source[BYTES], target[BYTES], expected[BYTES];
  for (size_t i = 0; i < BYTES; i++) {
    source[i] = (uint8_t)(i * 7 + 1);
  }
  for (size_t bytes = 0; bytes < 300; bytes++) {
    for (size_t to = 0; to < 66; to += 3) {
      for (size_t from = 0; from < 66; from += 5) {
        memset(target, 0xee, BYTES);
        memset(expected, 0xee, BYTES);
        memcpy(expected + to, source + from, bytes);
        bl_copy_past_cache(target + to, source + from, bytes);
        assert_memory_equal(target, expected, BYTES);
      }
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_length_and_alignment)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
