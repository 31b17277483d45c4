// SPDX-License-Identifier: Apache-2.0
// Verifies that threads share a range without a gap and without doing any of it twice, whatever its size, that small ones
// are not cut, and that they work at the same time.
#include "sys/ranges.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <pthread.h>

#include <cmocka.h>

#define MOST 1031

typedef struct {
  _Atomic uint8_t times[MOST + 1]; // the last one is nobody's
  _Atomic uint32_t ranges;
  uint64_t count;
  _Atomic uint64_t smallest;
} tally_t;

static void count_up(void *context, uint64_t first, uint64_t count) {
  tally_t *tally = context;
  tally->ranges++;
  uint64_t smallest = tally->smallest;
  while (count < smallest && !atomic_compare_exchange_weak(&tally->smallest, &smallest, count)) {
  }
  for (uint64_t i = first; i < first + count; i++) {
    tally->times[i < tally->count ? i : MOST]++;
  }
}

static void every_element_is_done_once(void **state) {
  (void)state;
  static const uint64_t counts[] = {0, 1, 2, 6, 7, 8, 63, 64, 65, 1000, MOST};
  static const uint64_t least[] = {0, 1, 5, 64, 2000};
  static const uint32_t threads[] = {0, 1, 2, 3, 7, BL_RANGES_MOST, 1000};
  for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
    for (size_t l = 0; l < sizeof least / sizeof least[0]; l++) {
      for (size_t t = 0; t < sizeof threads / sizeof threads[0]; t++) {
        static tally_t tally;
        memset(&tally, 0, sizeof tally);
        tally.count = counts[c];
        tally.smallest = UINT64_MAX;
        bl_ranges_run(counts[c], least[l], threads[t], count_up, &tally);
        for (uint64_t i = 0; i <= MOST; i++) {
          assert_int_equal(tally.times[i], i < counts[c] ? 1 : 0);
        }
        const uint32_t ranges = tally.ranges;
        assert_true(ranges <= BL_RANGES_MOST && ranges <= (threads[t] > 0 ? threads[t] : 1));
        assert_true(ranges <= 1 || tally.smallest >= least[l]);
        assert_true(counts[c] / (least[l] > 0 ? least[l] : 1) < 2 || threads[t] < 2 || ranges > 1);
      }
    }
  }
}

static void wait_for_all(void *context, uint64_t first, uint64_t count) {
  (void)first, (void)count;
  (void)pthread_barrier_wait(context); // ends only when all ranges are under way
}

static void ranges_run_at_the_same_time(void **state) {
  (void)state;
  pthread_barrier_t barrier;
  assert_int_equal(pthread_barrier_init(&barrier, NULL, 5), 0);
  bl_ranges_run(5, 1, 5, wait_for_all, &barrier);
  pthread_barrier_destroy(&barrier);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_element_is_done_once),
      cmocka_unit_test(ranges_run_at_the_same_time),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
