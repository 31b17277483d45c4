// SPDX-License-Identifier: Apache-2.0
// Verifies the sampler: the sequential formula of the contract, and that a shuffled epoch is a permutation that depends
// on seed and epoch, looks random, and never changes.
#include "formats/sampler.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void windows_are_counted(void **state) {
  (void)state;
  assert_int_equal(bl_sampler_window_count(0, 4), 0);
  assert_int_equal(bl_sampler_window_count(4, 4), 0);
  assert_int_equal(bl_sampler_window_count(5, 4), 1);
  assert_int_equal(bl_sampler_window_count(8, 4), 1);
  assert_int_equal(bl_sampler_window_count(9, 4), 2);
}

static void sequential_is_the_contract(void **state) {
  (void)state;
  bl_sampler_t sampler = {.windows = 7, .micro_batches = 3, .micro_batch = 2};
  uint64_t expected = 0;
  for (uint64_t k = 0; k < 10; k++) {
    for (uint32_t i = 0; i < 3; i++) {
      for (uint32_t j = 0; j < 2; j++) {
        assert_int_equal(bl_sampler_window(&sampler, k, i, j), expected % 7);
        expected++;
      }
    }
  }
}

static void every_epoch_is_a_permutation(void **state) {
  (void)state;
  for (uint64_t windows = 1; windows < 300; windows = windows < 20 ? windows + 1 : windows * 3 / 2) {
    for (uint64_t epoch = 0; epoch < 3; epoch++) {
      char seen[300] = {0};
      for (uint64_t i = 0; i < windows; i++) {
        uint64_t w = bl_sampler_permute(5, epoch, windows, i);
        assert_true(w < windows);
        assert_int_equal(seen[w], 0);
        seen[w] = 1;
      }
    }
  }
}

static void a_run_walks_through_epochs(void **state) {
  (void)state;
  bl_sampler_t sampler = {.windows = 12, .micro_batches = 2, .micro_batch = 3, .shuffled = true, .seed = 9};
  for (uint64_t epoch = 0; epoch < 4; epoch++) {
    char seen[12] = {0};
    for (uint64_t k = 2 * epoch; k < 2 * epoch + 2; k++) {
      for (uint32_t i = 0; i < 2; i++) {
        for (uint32_t j = 0; j < 3; j++) {
          seen[bl_sampler_window(&sampler, k, i, j)]++;
        }
      }
    }
    for (int w = 0; w < 12; w++) {
      assert_int_equal(seen[w], 1);
    }
  }
}

// Of two independent permutations of n about 1 place in n agrees.
static unsigned agreements(uint64_t seed_a, uint64_t epoch_a, uint64_t seed_b, uint64_t epoch_b) {
  unsigned same = 0;
  for (uint64_t i = 0; i < 1000; i++) {
    same += bl_sampler_permute(seed_a, epoch_a, 1000, i) == bl_sampler_permute(seed_b, epoch_b, 1000, i);
  }
  return same;
}

static void seed_and_epoch_change_the_order(void **state) {
  (void)state;
  assert_int_equal(agreements(1, 0, 1, 0), 1000);
  assert_true(agreements(1, 0, 2, 0) < 10);
  assert_true(agreements(1, 0, 1, 1) < 10);
  unsigned ascending = 0; // of neighbours: about half
  for (uint64_t i = 1; i < 1000; i++) {
    ascending += bl_sampler_permute(1, 0, 1000, i) > bl_sampler_permute(1, 0, 1000, i - 1);
  }
  assert_in_range(ascending, 440, 560);
}

static void the_order_never_changes(void **state) {
  (void)state;
  // Frozen values: a run resumed with a newer version must read the same data.
  static const uint64_t expected[] = {19, 810, 849, 480, 46, 74};
  for (uint64_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
    assert_int_equal(bl_sampler_permute(42, 3, 1000, i), expected[i]);
  }
  assert_true(bl_sampler_permute(42, 0, UINT64_C(1) << 62, 12345) < UINT64_C(1) << 62);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(windows_are_counted),
      cmocka_unit_test(sequential_is_the_contract),
      cmocka_unit_test(every_epoch_is_a_permutation),
      cmocka_unit_test(a_run_walks_through_epochs),
      cmocka_unit_test(seed_and_epoch_change_the_order),
      cmocka_unit_test(the_order_never_changes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
