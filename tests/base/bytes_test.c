// SPDX-License-Identifier: Apache-2.0
// Verifies the text form of byte quantities, both ways, and checked arithmetic at its edges.
#include "base/bytes.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void formats(void **state) {
  (void)state;
  char text[BL_BYTES_TEXT];
  assert_string_equal(bl_bytes_format(0, text), "0 B");
  assert_string_equal(bl_bytes_format(1023, text), "1023 B");
  assert_string_equal(bl_bytes_format(1024, text), "1.00 KiB");
  assert_string_equal(bl_bytes_format(12ull << 20, text), "12.0 MiB");
  assert_string_equal(bl_bytes_format(UINT64_MAX, text), "16.0 EiB");
}

static void parses(void **state) {
  (void)state;
  uint64_t bytes = 7;
  assert_true(bl_bytes_parse("64 KiB", &bytes));
  assert_int_equal(bytes, 65536);
  assert_true(bl_bytes_parse("1.5gib", &bytes));
  assert_int_equal(bytes, 3ull << 29);
  assert_true(bl_bytes_parse("2MB", &bytes));
  assert_int_equal(bytes, 2000000);
  const char *const bad[] = {"", "-1", "inf", "nan", "1 parsec", "99999 EiB", "KiB", "0x10", "0X1p4"};
  for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    assert_false(bl_bytes_parse(bad[i], &bytes));
  }
  assert_int_equal(bytes, 2000000);
}

static void arithmetic_refuses_overflow(void **state) {
  (void)state;
  uint64_t result = 5;
  assert_false(bl_mul_u64(1ull << 33, 1ull << 33, &result));
  assert_false(bl_add_u64(UINT64_MAX, 1, &result));
  assert_int_equal(result, 5);
  assert_true(bl_mul_u64(3, 4, &result));
  assert_int_equal(result, 12);
  assert_int_equal(bl_align_up(65, 64), 128);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(formats),
      cmocka_unit_test(parses),
      cmocka_unit_test(arithmetic_refuses_overflow),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
