// SPDX-License-Identifier: Apache-2.0
// Verifies: every Unicode scalar value decodes to itself and its length; what is cut off, too long, a surrogate or no
// sequence is refused without a read past the end.
#include "base/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

static size_t encode(uint32_t code, unsigned char *text) {
  if (code < 0x80) {
    text[0] = (unsigned char)code;
    return 1;
  }
  size_t length = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
  for (size_t i = length; i-- > 1; code >>= 6) {
    text[i] = (unsigned char)(0x80 | (code & 0x3F));
  }
  text[0] = (unsigned char)(0xF00 >> length | code);
  return length;
}

// In memory of just that many bytes, so that a sanitizer sees a read past them.
static size_t decode_exactly(const unsigned char *text, size_t bytes, uint32_t *code) {
  char *copy = malloc(bytes);
  assert_non_null(copy);
  memcpy(copy, text, bytes);
  size_t length = bl_utf8_decode(copy, bytes, code);
  free(copy);
  return length;
}

static void every_scalar_value(void **state) {
  (void)state;
  for (uint32_t code = 0; code <= 0x10FFFF; code++) {
    unsigned char text[4];
    uint32_t found = UINT32_MAX;
    size_t length = encode(code, text);
    bool surrogate = code >= 0xD800 && code < 0xE000;
    assert_int_equal(bl_utf8_decode((char *)text, length, &found), surrogate ? 0 : length);
    assert_int_equal(found, surrogate ? UINT32_MAX : code);
    if (code % 97 == 0) {
      for (size_t cut = 1; cut < length; cut++) {
        assert_int_equal(decode_exactly(text, cut, &found), 0);
      }
    }
  }
}

static void what_is_no_text(void **state) {
  (void)state;
  static const char *const refused[] = {"\x80",
                                        "\xbf",
                                        "\xff",
                                        "\xfe",
                                        "\xc0\x80",
                                        "\xc1\xbf",
                                        "\xe0\x80\x80",
                                        "\xe0\x9f\xbf",
                                        "\xf0\x8f\xbf\xbf",
                                        "\xf4\x90\x80\x80",
                                        "\xf8\x88\x80\x80\x80",
                                        "\xc3(",
                                        "\xe2\x82("};
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
    uint32_t code = 7;
    assert_int_equal(bl_utf8_decode(refused[i], strlen(refused[i]), &code), 0);
    assert_int_equal(code, 7);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_scalar_value), cmocka_unit_test(what_is_no_text)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
