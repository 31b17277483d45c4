// SPDX-License-Identifier: Apache-2.0
// Verifies that the parts of a gradient are added in one tree, however many ranks share them: for every number of parts up
// to 64 and every number of ranks that divides it, at whichever rank the sum ends.
#include "model/fold.h"

#include "model/grid.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

// A sum is known by a number that every other tree over the same parts would hardly have; which of two comes first does
// not matter, as it does not in an addition.
static uint64_t mixed(uint64_t x) {
  x ^= x >> 31;
  x *= UINT64_C(0x9E3779B97F4A7C15);
  return x ^ x >> 29;
}

static uint64_t leaf(uint32_t part) {
  return mixed(part + 1);
}

static uint64_t sum(uint64_t a, uint64_t b) {
  return a < b ? mixed(mixed(a) + b) : mixed(mixed(b) + a);
}

// The parts [first, first + count) one after the other, as an executor does.
static uint64_t fold(uint32_t first, uint32_t count) {
  uint64_t waiting[7], current = 0;
  for (uint32_t part = 0; part < count; part++) {
    current = leaf(first + part);
    const uint32_t merges = bl_fold_merges(part);
    for (uint32_t level = 0; level < merges; level++) {
      current = sum(waiting[level], current);
    }
    if (part + 1 < count) {
      assert_in_range(merges, 0, bl_fold_levels(count) - 1); // there is room for it
      waiting[merges] = current;
    } else {
      assert_int_equal(merges, bl_fold_levels(count)); // nothing waits any more
    }
  }
  return current;
}

static uint64_t add_ranks(uint32_t parts, uint32_t ranks, uint32_t keep) {
  uint64_t sums[BL_GRID_REPLICAS_MAX];
  bool gone[BL_GRID_REPLICAS_MAX] = {false};
  for (uint32_t r = 0; r < ranks; r++) {
    sums[r] = fold(r * (parts / ranks), parts / ranks);
  }
  for (uint32_t i = 0; i + 1 < ranks; i++) {
    const bl_fold_pair_t pair = bl_fold_pair(ranks, i, keep);
    assert_in_range(pair.to, 0, ranks - 1);
    assert_in_range(pair.from, 0, ranks - 1);
    assert_true(!gone[pair.to] && !gone[pair.from] && pair.to != pair.from);
    assert_int_not_equal(pair.from, keep);
    gone[pair.from] = true;
    sums[pair.to] = sum(sums[pair.to], sums[pair.from]);
  }
  return sums[keep];
}

// (((0+1)+(2+3))+...) over all parts.
static uint64_t tree(uint32_t first, uint32_t count) {
  return count == 1 ? leaf(first) : sum(tree(first, count / 2), tree(first + count / 2, count / 2));
}

static void one_tree_for_every_number_of_ranks(void **state) {
  (void)state;
  uint32_t checked = 0;
  for (uint32_t parts = 1; parts <= BL_GRID_REPLICAS_MAX; parts *= 2) {
    for (uint32_t ranks = 1; ranks <= parts; ranks *= 2) {
      for (uint32_t keep = 0; keep < ranks; keep++, checked++) {
        assert_true(add_ranks(parts, ranks, keep) == tree(0, parts));
      }
    }
  }
  assert_int_equal(checked, 247);
}

static void other_numbers_of_ranks_add_from_the_left(void **state) {
  (void)state;
  for (uint32_t ranks = 1; ranks <= BL_GRID_REPLICAS_MAX; ranks++) {
    uint64_t left = leaf(0);
    for (uint32_t r = 1; r < ranks; r++) {
      left = sum(left, leaf(r));
    }
    for (uint32_t keep = 0; keep < ranks && !bl_grid_is_power_of_two(ranks); keep++) {
      assert_true(add_ranks(ranks, ranks, keep) == left);
    }
  }
}

static void ranks_count_replica_by_replica(void **state) {
  (void)state;
  const bl_grid_t grid = {.stages = 3, .tensor = 1, .data = 4, .tensor_parts = 1, .data_parts = 4};
  assert_int_equal(bl_grid_ranks(&grid), 12);
  for (uint32_t rank = 0; rank < 12; rank++) {
    const bl_coords_t coords = bl_grid_coords(&grid, rank);
    assert_int_equal(coords.stage, rank % 3);
    assert_int_equal(coords.data, rank / 3);
    assert_int_equal(bl_grid_rank(&grid, coords), rank);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_tree_for_every_number_of_ranks),
      cmocka_unit_test(other_numbers_of_ranks_add_from_the_left),
      cmocka_unit_test(ranks_count_replica_by_replica),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
