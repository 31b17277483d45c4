// SPDX-License-Identifier: Apache-2.0
// Verifies heaps against a sorted array: any mix of pushes, pops and replacements of the first gives what comes first by the
// caller's order. The seed is printed; BALLAST_TEST_SEED sets it.
#include "base/heap.h"

#include "base/random.h"
#include "seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MOST 200

typedef struct order {
  bool descending;
} order_t;

static bool comes_before(const order_t *order, uint64_t a, uint64_t b) {
  return order->descending ? a > b : a < b;
}

BL_HEAP(numbers, uint64_t, const order_t *, comes_before)

static uint64_t sorted[MOST];
static size_t sorted_count;

static void insert(const order_t *order, uint64_t number) {
  size_t at = sorted_count++;
  for (; at > 0 && comes_before(order, number, sorted[at - 1]); at--) {
    sorted[at] = sorted[at - 1];
  }
  sorted[at] = number;
}

static void drop_first(void) {
  memmove(sorted, sorted + 1, --sorted_count * sizeof sorted[0]);
}

static void the_first_is_first(void **state) {
  (void)state;
  const uint64_t seed = test_seed(7);
  uint64_t index = 0;
  for (int round = 0; round < 200; round++) {
    const order_t order = {.descending = round % 2 == 1};
    const uint64_t most = 1 + bl_random_below(seed, index++, 40); // many that are equal, or few
    uint64_t heap[MOST];
    size_t count = 0;
    sorted_count = 0;
    for (int step = 0; step < 400; step++) {
      const uint64_t number = bl_random_below(seed, index++, most), what = bl_random_below(seed, index++, 5);
      if (count == 0 || (what < 3 && count < MOST)) {
        numbers_push(&order, heap, &count, number);
        insert(&order, number);
      } else if (what == 3) {
        assert_int_equal(numbers_pop(&order, heap, &count), sorted[0]);
        drop_first();
      } else {
        numbers_put(&order, heap, count, 0, number);
        drop_first();
        insert(&order, number);
      }
      assert_int_equal(count, sorted_count);
      assert_true(count == 0 || heap[0] == sorted[0]);
    }
    while (count > 0) {
      assert_int_equal(numbers_pop(&order, heap, &count), sorted[0]);
      drop_first();
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(the_first_is_first)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
