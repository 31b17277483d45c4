// SPDX-License-Identifier: Apache-2.0
// Verifies that words of messages go by their number.
#include "base/words.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>

static void one_has_no_plural(void **state) {
  (void)state;
  const char *const expected[] = {"0 stages, none of 0 entries", "1 stage, none of 1 entry",
                                  "2 stages, none of 2 entries"};
  for (unsigned count = 0; count < 3; count++) {
    char text[64];
    snprintf(text, sizeof text, "%u stage%s, none of %u %s", count, bl_plural(count), count,
             bl_one_or_many(count, "entry", "entries"));
    assert_string_equal(text, expected[count]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_has_no_plural),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
