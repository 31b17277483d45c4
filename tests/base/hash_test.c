// SPDX-License-Identifier: Apache-2.0
// Verifies bl_hash64: known answers of XXH3, and the same values from every build that this processor can run; and
// bl_hash64_copy: the same value, the same bytes and no other byte, for any size, alignment and build.
#include "base/hash.h"
#include "base/hash_dispatch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

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

#define EDGE 64u // around what is written

typedef struct copies {
  const uint8_t *from;
  uint8_t *area; // EDGE more on both sides of what is written
  size_t from_at, to_at;
} copies_t;

// Checks one copy that was made to area + EDGE + to_at, and wipes the area.
static void check_copy(const copies_t *copies, size_t size, uint64_t hash, uint64_t expected) {
  uint8_t *to = copies->area + EDGE + copies->to_at;
  assert_int_equal(hash, expected);
  if (size > 0) {
    assert_memory_equal(to, copies->from + copies->from_at, size);
  }
  for (size_t i = 1; i <= EDGE; i++) {
    assert_int_equal(to[-(ptrdiff_t)i], 0xee);
    assert_int_equal(to[size + i - 1], 0xee);
  }
  memset(to, 0xee, size);
}

static void copies_hash_the_same(const copies_t *copies, size_t size, uint64_t seed) {
  const uint8_t *from = copies->from + copies->from_at;
  uint8_t *to = copies->area + EDGE + copies->to_at;
  uint64_t expected = bl_hash64(from, size, seed);
  check_copy(copies, size, bl_hash64_copy(to, from, size, seed, false), expected);
  check_copy(copies, size, bl_hash64_copy(to, from, size, seed, true), expected);
  check_copy(copies, size, bl__hash64_copy_baseline(to, from, size, seed), expected);
#if defined(__x86_64__)
  if (size >= 1024 && __builtin_cpu_supports("avx2")) {
    check_copy(copies, size, bl__hash64_copy_avx2(to, from, size, seed, false), expected);
    check_copy(copies, size, bl__hash64_copy_avx2(to, from, size, seed, true), expected);
  }
#endif
}

static void copies_give_the_hash(void **state) {
  (void)state;
  size_t most = 300001;
  uint8_t *from = malloc(most + EDGE), *area = aligned_alloc(EDGE, 300160 + 4 * EDGE);
  assert_non_null(from);
  assert_non_null(area);
  for (size_t i = 0; i < most + EDGE; i++) {
    from[i] = (uint8_t)(i * 2654435761u >> 11);
  }
  memset(area, 0xee, 300160 + 4 * EDGE);
  // Every size around the ends of stripes and groups, both ends aligned and not.
  static const size_t alignments[][2] = {{0, 0}, {0, 32}, {1, 0}, {0, 1}, {3, 5}, {31, 33}};
  for (size_t i = 0; i < sizeof alignments / sizeof alignments[0]; i++) {
    copies_t copies = {.from = from, .area = area, .from_at = alignments[i][0], .to_at = alignments[i][1]};
    for (size_t size = 0; size <= most; size = size < 300 ? size + 1 : size < 5000 ? size + 13 : size * 9 / 8 + 1) {
      copies_hash_the_same(&copies, size, size % 3 * 0x9e3779b97f4a7c15ull);
    }
    for (size_t group = 1024; group <= 131072; group *= 2) {
      for (size_t size = group - 65; size <= group + 65; size++) {
        copies_hash_the_same(&copies, size, i);
      }
    }
    copies_hash_the_same(&copies, most, UINT64_MAX);
  }
  free(from);
  free(area);
}

// Memory of exactly the size: a sanitizer sees what is read or written beyond it.
static void copies_stay_inside(void **state) {
  (void)state;
  for (size_t size = 1024; size <= 5000; size += 119) {
    uint8_t *from = malloc(size), *to = malloc(size);
    assert_non_null(from);
    assert_non_null(to);
    memset(from, (int)size, size);
    assert_int_equal(bl_hash64_copy(to, from, size, 7, true), bl_hash64(from, size, 7));
    free(from);
    free(to);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(known_answers),
      cmocka_unit_test(builds_agree),
      cmocka_unit_test(copies_give_the_hash),
      cmocka_unit_test(copies_stay_inside),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
