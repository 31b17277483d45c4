// SPDX-License-Identifier: Apache-2.0
// Verifies the bounded memory that messages are unpacked into.
#include "rpc/arena.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void pieces_are_apart_and_aligned(void **state) {
  (void)state;
  bl__arena_t arena;
  bl__arena_init(&arena, 1 << 20);
  unsigned char *pieces[200];
  for (size_t i = 0; i < 200; i++) {
    pieces[i] = bl__arena_take(&arena, i * 7);
    assert_non_null(pieces[i]);
    assert_int_equal((uintptr_t)pieces[i] % _Alignof(max_align_t), 0);
    memset(pieces[i], (int)i, i * 7);
  }
  for (size_t i = 0; i < 200; i++) {
    for (size_t k = 0; k < i * 7; k++) {
      assert_int_equal(pieces[i][k], i);
    }
  }
  bl__arena_reset(&arena);
}

static void the_limit_holds_and_reset_lifts_it(void **state) {
  (void)state;
  bl__arena_t arena;
  bl__arena_init(&arena, 10000);
  assert_null(bl__arena_take(&arena, 10001));
  assert_true(arena.exceeded);
  bl__arena_reset(&arena);
  assert_false(arena.exceeded);
  unsigned taken = 0;
  while (bl__arena_take(&arena, 1) != NULL) { // padding counts: single bytes do not get past the limit
    taken++;
  }
  assert_int_equal(taken, 10000 / _Alignof(max_align_t));
  assert_null(bl__arena_take(&arena, SIZE_MAX));
  bl__arena_reset(&arena);
  assert_non_null(bl__arena_take(&arena, 9000));
  bl__arena_reset(&arena);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(pieces_are_apart_and_aligned),
      cmocka_unit_test(the_limit_holds_and_reset_lifts_it),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
