// SPDX-License-Identifier: Apache-2.0
// Verifies mixtures against counting one by one: the index of a pick is the number of earlier picks of its source, shares
// stay within a few sequences of the weights everywhere, across 2^32 as well, and weights too small are refused.
#include "formats/mixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define SOURCES 5

static void indices_count_earlier_picks(void **state) {
  (void)state;
  static const double weights[][SOURCES] = {
      {1, 1, 1, 1, 1}, {0.7, 0.1, 0.1, 0.05, 0.05}, {1e-3, 5, 0.25, 100, 3}, {1, 1e6, 1, 1e6, 1}};
  for (size_t w = 0; w < sizeof weights / sizeof weights[0]; w++) {
    for (uint32_t offset = 0; offset < 3; offset++) {
      uint64_t bounds[SOURCES + 1], counts[SOURCES] = {0};
      assert_true(bl_mixture_bounds(weights[w], SOURCES, bounds));
      const bl_mixture_t mixture = {.bounds = bounds, .sources = SOURCES, .offset = offset * 0x7fffffffu};
      for (uint64_t n = 0; n < 20000; n++) {
        const bl_mixture_pick_t pick = bl_mixture_pick(&mixture, n);
        assert_true(pick.source < SOURCES);
        assert_int_equal(pick.index, counts[pick.source]);
        counts[pick.source]++;
        const double share = (double)(bounds[pick.source + 1] - bounds[pick.source]) / 4294967296.0;
        assert_true(fabs((double)counts[pick.source] - share * (double)(n + 1)) < 6);
      }
    }
  }
}

// Far from zero the counts of neighbours still differ by what lies between them.
static void large_numbers_go_on(void **state) {
  (void)state;
  const double weights[2] = {2, 1};
  uint64_t bounds[3];
  assert_true(bl_mixture_bounds(weights, 2, bounds));
  const bl_mixture_t mixture = {.bounds = bounds, .sources = 2, .offset = 12345};
  static const uint64_t starts[] = {(UINT64_C(1) << 32) - 500, UINT64_C(7) << 32, UINT64_C(3) << 40};
  for (size_t s = 0; s < 3; s++) {
    uint64_t next[2];
    bool known[2] = {false, false};
    for (uint64_t n = starts[s]; n < starts[s] + 1000; n++) {
      const bl_mixture_pick_t pick = bl_mixture_pick(&mixture, n);
      if (known[pick.source]) {
        assert_int_equal(pick.index, next[pick.source]);
      }
      known[pick.source] = true;
      next[pick.source] = pick.index + 1;
    }
    assert_true(fabs((double)next[0] / (double)(starts[s] + 1000) - 2.0 / 3) < 1e-6);
  }
}

static void one_source_takes_all(void **state) {
  (void)state;
  const double weight = 0.3;
  uint64_t bounds[2];
  assert_true(bl_mixture_bounds(&weight, 1, bounds));
  const bl_mixture_t mixture = {.bounds = bounds, .sources = 1};
  for (uint64_t n = 0; n < 100; n++) {
    const bl_mixture_pick_t pick = bl_mixture_pick(&mixture, n);
    assert_int_equal(pick.source, 0);
    assert_int_equal(pick.index, n);
  }
}

static void what_would_never_come_is_refused(void **state) {
  (void)state;
  const double weights[3] = {1, 1e-12, 1};
  uint64_t bounds[4];
  assert_false(bl_mixture_bounds(weights, 3, bounds));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(indices_count_earlier_picks),
      cmocka_unit_test(large_numbers_go_on),
      cmocka_unit_test(one_source_takes_all),
      cmocka_unit_test(what_would_never_come_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
