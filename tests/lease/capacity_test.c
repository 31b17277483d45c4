// SPDX-License-Identifier: Apache-2.0
// Verifies size and fullness: a million live leases in at most 256 bytes each with latency as of an empty table, no
// allocation over a million cycles, no lease lost in a million calls on a full store, reservations that hold at 95 %
// fill with mixed sizes.
#include "lease/holder.h"

#include "base/random.h"
#include "instrumented.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <inttypes.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define MILLION 1000000u

static uint64_t cpu_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static bl_lease_table_t *make_table(uint64_t granules, uint32_t leases) {
  bl_lease_config_t config = {.incarnation = id128_of(3),
                              .capacity_bytes = granules * GRANULE,
                              .max_jobs = 2,
                              .max_sessions = 4,
                              .max_leases = leases};
  bl_lease_table_t *table = NULL;
  bl_error_t err = {0};
  assert_int_equal(bl_lease_table_create(&config, 0, &table, &err), BL_OK);
  return table;
}

// Whole uses of slots: evict, seal, load, release. Returns nanoseconds of CPU per use.
static double use_slot(holder_t *holder, bl_lease_token_t *slots, uint32_t count, uint32_t uses, uint64_t key) {
  uint64_t start = cpu_ns();
  for (uint32_t i = 0; i < uses; i++) {
    bl_lease_token_t *slot = &slots[bl_random_below(key, i, count)];
    bl_lease_answer_t answer;
    if (holder_store(holder, slot, 1000, 5) != BL_LEASE_GRANTED || holder_load(holder, slot, &answer) != 0 ||
        holder_release(holder, slot, &answer.checksum) != BL_LEASE_GRANTED) {
      fail_msg("use %" PRIu32 " of a slot was refused", i);
    }
  }
  return (double)(cpu_ns() - start) / uses;
}

// The best of a few: who else computes on this machine has the caches, too.
static double best_use(holder_t *holder, bl_lease_token_t *slots, uint32_t count, uint64_t key) {
  double best_ns = use_slot(holder, slots, count, 20000, key);
  for (int i = 0; i < 9; i++) {
    double ns = use_slot(holder, slots, count, 20000, key);
    best_ns = ns < best_ns ? ns : best_ns;
  }
  return best_ns;
}

static void test_a_million_leases(void **state) {
  (void)state;
  bl_lease_table_t *table = make_table(MILLION + 16, MILLION);
  uint64_t per_lease = bl_lease_table_bytes(table) / MILLION;
  printf("%" PRIu64 " bytes per lease, all in\n", per_lease);
  assert_true(per_lease <= 256);
  holder_t few = {0}, many = {0};
  assert_int_equal(holder_open(&few, table, "job", 0, 1, (MILLION + 16) * GRANULE), BL_LEASE_GRANTED);
  assert_int_equal(holder_open(&many, table, "job", 1, 2, 0), BL_LEASE_GRANTED);
  assert_int_equal(holder_reserve(&few, 1, GRANULE, 1000), BL_LEASE_GRANTED);
  bl_lease_token_t *slots = calloc(MILLION, sizeof *slots);
  assert_non_null(slots);
  assert_int_equal(holder_slots(&few, slots, 1000), 1000);
  uint64_t key = bl_random_key(4, "capacity");
  double empty_ns = best_use(&few, slots, 1000, key);
  assert_int_equal(holder_reserve(&many, 1, GRANULE, MILLION - 1000), BL_LEASE_GRANTED);
  double full_ns = best_use(&few, slots, 1000, key); // same slots, full table
  assert_int_equal(holder_slots(&many, slots, MILLION), MILLION - 1000);
  double spread_ns = best_use(&many, slots, MILLION - 1000, key); // any of a million slots
  printf("%.0f ns per use of a slot beside 1000 leases, %.0f beside a million, %.0f all over them\n", empty_ns, full_ns,
         spread_ns);
  assert_true(full_ns < 3 * empty_ns); // spread_ns is cache misses
  bl_lease_token_t one = slots[MILLION / 2];
  assert_int_equal(holder_store(&many, &one, 10, 1), BL_LEASE_GRANTED);
  bl_error_t err = {0};
  assert_int_equal(bl_lease_table_audit(table, &err), BL_OK);
  free(slots);
  bl_lease_table_destroy(table);
}

static uint64_t largest_free_granules(const bl_lease_table_t *table) {
  bl_lease_stats_t stats;
  bl_lease_table_stats(table, &stats);
  return stats.largest_free_bytes / GRANULE;
}

static void test_memory_that_no_job_has_is_free(void **state) {
  (void)state;
  bl_lease_table_t *table = make_table(64, 64);
  holder_t a = {0};
  assert_int_equal(largest_free_granules(table), 64);
  assert_int_equal(holder_open(&a, table, "job", 0, 1, 16 * GRANULE), BL_LEASE_GRANTED);
  assert_int_equal(largest_free_granules(table), 48);
  assert_int_equal(holder_reserve(&a, 1, 16 * GRANULE, 1), BL_LEASE_GRANTED);
  assert_int_equal(largest_free_granules(table), 48);
  holder_t b = {0};
  assert_int_equal(holder_open(&b, table, "other", 0, 2, 40 * GRANULE), BL_LEASE_GRANTED);
  assert_int_equal(largest_free_granules(table), 40);
  bl_lease_table_destroy(table);
}

static void test_memory_is_flat(void **state) {
  (void)state;
  bl_lease_table_t *table = make_table(64, 64);
  holder_t a = {0};
  assert_int_equal(holder_open(&a, table, "job", 0, 1, 64 * GRANULE), BL_LEASE_GRANTED);
  struct mallinfo2 before = mallinfo2();
  for (uint64_t plan = 1; plan <= FEW_OR_ALL(100000, MILLION); plan++) { // grant and release of whole reservations
    bl_lease_token_t slot;
    if (holder_reserve(&a, plan, (1 + plan % 7) * GRANULE, 2) != BL_LEASE_GRANTED || holder_slots(&a, &slot, 1) != 2 ||
        holder_store(&a, &slot, 100, 1) != BL_LEASE_GRANTED || holder_unreserve(&a, plan) != BL_LEASE_GRANTED ||
        holder_release(&a, &slot, NULL) != BL_LEASE_GRANTED) {
      fail_msg("cycle %" PRIu64, plan);
    }
  }
  struct mallinfo2 after = mallinfo2();
  assert_int_equal(after.uordblks, before.uordblks);
  bl_lease_stats_t stats;
  bl_lease_table_stats(table, &stats);
  assert_int_equal(stats.held_bytes, 0);
  assert_int_equal(stats.largest_free_bytes, 64 * GRANULE);
  bl_lease_table_destroy(table);
}

// A full store: every further wish is refused, and every sealed block is there to the end.
static void test_nothing_is_lost_when_full(void **state) {
  (void)state;
  enum { SLOTS = 256 };
  bl_lease_table_t *table = make_table(SLOTS, SLOTS + 8);
  holder_t a = {0}, b = {0};
  assert_int_equal(holder_open(&a, table, "job", 0, 1, SLOTS * GRANULE), BL_LEASE_GRANTED);
  assert_int_equal(holder_open(&b, table, "job", 1, 2, 0), BL_LEASE_GRANTED);
  assert_int_equal(holder_reserve(&a, 1, GRANULE, SLOTS), BL_LEASE_GRANTED); // uniform sizes: 100 % before a refusal
  bl_lease_token_t slots[SLOTS];
  uint64_t checksums[SLOTS] = {0}; // 0: empty
  holder_slots(&a, slots, SLOTS);
  uint64_t key = bl_random_key(6, "full"), draws = 0, refused = 0, kept = 0;
  for (uint32_t i = 0; i < MILLION; i++) {
    uint32_t slot = (uint32_t)bl_random_below(key, draws++, SLOTS);
    bl_lease_answer_t answer;
    switch (bl_random_below(key, draws++, 4)) {
    case 0:
      refused += holder_reserve(&b, 1, GRANULE, 1) == BL_LEASE_SPACE ? 1 : 0;
      break;
    case 1: {
      uint64_t checksum = 1 + bl_random_below(key, draws++, 1000000);
      bool empty = checksums[slot] == 0;
      assert_int_equal(holder_store(&a, &slots[slot], 100, checksum), empty ? BL_LEASE_GRANTED : BL_LEASE_STATE);
      checksums[slot] = empty ? checksum : checksums[slot];
      break;
    }
    default:
      if (checksums[slot] != 0) {
        assert_int_equal(holder_load(&a, &slots[slot], &answer), BL_LEASE_GRANTED);
        assert_int_equal(answer.checksum, checksums[slot]);
        if (bl_random_below(key, draws++, 2) == 0) {
          assert_int_equal(holder_release(&a, &slots[slot], &checksums[slot]), BL_LEASE_GRANTED);
          checksums[slot] = 0;
        } else {
          kept++;
        }
      }
      break;
    }
  }
  assert_true(refused > 200000 && kept > 1000);
  bl_lease_stats_t stats;
  bl_lease_table_stats(table, &stats);
  assert_int_equal(stats.leases[BL_LEASE_LOST], 0);
  assert_int_equal(stats.held_bytes, SLOTS * GRANULE);
  bl_error_t err = {0};
  assert_int_equal(bl_lease_table_audit(table, &err), BL_OK);
  bl_lease_table_destroy(table);
}

// Mixed sizes around 95 % fill: what was reserved can be used, whatever comes and goes beside it; a refusal for space
// names the longest free run, and that is below what was asked.
static void test_mixed_sizes_at_95_percent(void **state) {
  (void)state;
  enum { GRANULES = 4096, HOLDERS = 4, PLANS = 4 };
  bl_lease_table_t *table = make_table(GRANULES, GRANULES);
  holder_t holders[HOLDERS] = {{0}};
  bool planned[HOLDERS][PLANS + 1] = {{false}};
  for (uint32_t i = 0; i < HOLDERS; i++) {
    assert_int_equal(holder_open(&holders[i], table, "job", i, i + 1, GRANULES * GRANULE), BL_LEASE_GRANTED);
  }
  uint64_t key = bl_random_key(7, "mixed"), draws = 0, refused = 0, granted = 0;
  double most = 0;
  static bl_lease_token_t slots[GRANULES];
  for (int i = 0; i < FEW_OR_ALL(5000, 20000); i++) {
    holder_t *holder = &holders[bl_random_below(key, draws++, HOLDERS)];
    bool *plans = planned[holder - holders];
    uint64_t plan = 1 + bl_random_below(key, draws++, PLANS);
    bl_lease_stats_t stats;
    bl_lease_table_stats(table, &stats);
    double fill = (double)stats.held_bytes / ((double)GRANULES * (double)GRANULE);
    most = fill > most ? fill : most;
    if (plans[plan] && (fill > 0.95 || bl_random_below(key, draws++, 4) == 0)) {
      assert_int_equal(holder_unreserve(holder, plan), BL_LEASE_GRANTED);
      plans[plan] = false;
    } else if (!plans[plan]) {
      uint64_t granules = UINT64_C(1) << bl_random_below(key, draws++, 7);
      uint32_t count = 1 + (uint32_t)bl_random_below(key, draws++, 1024 / granules);
      bl_lease_request_t request = holder_next(holder);
      bl_lease_demand_t demand = {.bytes = granules * GRANULE, .count = count};
      bl_lease_answer_t answer;
      (void)bl_lease_table_reserve(table, &request, plan, &demand, 1, &answer);
      plans[plan] = answer.reason == BL_LEASE_GRANTED;
      granted += plans[plan] ? 1 : 0;
      if (answer.reason == BL_LEASE_SPACE) {
        refused++;
        assert_true(answer.largest_free_bytes < demand.bytes * count);
        assert_true(answer.retry_after_ms > 0);
        uint64_t other = 1 + bl_random_below(key, draws++, PLANS);
        if (plans[other]) {
          assert_int_equal(holder_unreserve(holder, other), BL_LEASE_GRANTED);
          plans[other] = false;
        }
      } else {
        assert_int_equal(answer.reason, BL_LEASE_GRANTED);
      }
    }
    uint32_t count = holder_slots(holder, slots, GRANULES);
    for (uint32_t j = 0; j < count; j += 1 + count / 8) { // every slot that was granted takes a block
      assert_int_equal(holder_store(holder, &slots[j], 1 + j, j), BL_LEASE_GRANTED);
      assert_int_equal(holder_release(holder, &slots[j], NULL), BL_LEASE_GRANTED);
    }
  }
  printf("%" PRIu64 " reservations granted, %" PRIu64 " refused, fullest %.1f %%\n", granted, refused, 100 * most);
  assert_true(granted > 1000 && refused > 100 && most > 0.95);
  bl_error_t err = {0};
  assert_int_equal(bl_lease_table_audit(table, &err), BL_OK);
  bl_lease_table_destroy(table);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_million_leases),
      cmocka_unit_test(test_memory_that_no_job_has_is_free),
      cmocka_unit_test(test_memory_is_flat),
      cmocka_unit_test(test_nothing_is_lost_when_full),
      cmocka_unit_test(test_mixed_sizes_at_95_percent),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
