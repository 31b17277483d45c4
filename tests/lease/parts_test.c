// SPDX-License-Identifier: Apache-2.0
// Verifies the parts of the lease table alone: extents against a map of granules (best fit, lowest offset, merging, no
// node lost), the timer wheel against a list of deadlines (never early, under a tick late), the window, the journal.
#include "base/random.h"
#include "lease/extent.h"
#include "lease/journal.h"
#include "lease/request_window.h"
#include "lease/wheel.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

#define SLOTS    40
#define GRANULES 200

// Where best fit puts a slot in a map of granules; GRANULES when it does not fit.
static uint32_t place(const bool taken[GRANULES], uint32_t granules) {
  uint32_t best = GRANULES, best_run = UINT32_MAX;
  for (uint32_t i = 0; i < GRANULES;) {
    uint32_t run = 0;
    while (i + run < GRANULES && !taken[i + run]) {
      run++;
    }
    if (run >= granules && run < best_run) {
      best = i;
      best_run = run;
    }
    i += run + 1;
  }
  return best;
}

static void test_extents_are_best_fit(void **state) {
  (void)state;
  bl_extents_t extents;
  assert_int_equal(bl_extents_init(&extents, 2 * SLOTS + 1), BL_OK);
  bl_extent_space_t space;
  assert_true(bl_extent_space_open(&extents, &space, GRANULES));
  bool taken[GRANULES] = {false};
  bl_extent_t slots[SLOTS] = {0};
  uint64_t key = bl_random_key(1, "extents"), draws = 0;
  for (int i = 0; i < 200000; i++) {
    uint32_t slot = (uint32_t)bl_random_below(key, draws++, SLOTS);
    if (slots[slot] != 0) {
      memset(taken + bl_extent_offset(&extents, slots[slot]), 0, bl_extent_granules(&extents, slots[slot]));
      bl_extent_free(&extents, &space, slots[slot]);
      slots[slot] = 0;
    } else {
      uint32_t granules = 1 + (uint32_t)bl_random_below(key, draws++, 16);
      uint32_t offset = place(taken, granules);
      slots[slot] = bl_extent_allocate(&extents, &space, granules);
      assert_int_equal(slots[slot] == 0, offset == GRANULES);
      if (slots[slot] != 0) {
        assert_int_equal(bl_extent_offset(&extents, slots[slot]), offset);
        memset(taken + offset, 1, granules);
      }
    }
    assert_true(bl_extent_space_is_sound(&extents, &space));
  }
  for (int i = 0; i < SLOTS; i++) {
    if (slots[i] != 0) {
      bl_extent_free(&extents, &space, slots[i]);
    }
  }
  assert_int_equal(bl_extent_largest(&extents, &space), GRANULES);
  bl_extent_space_close(&extents, &space);
  uint32_t unused = 0; // every node came back
  for (uint32_t node = extents.unused; node != 0; node = extents.nodes[node].next) {
    unused++;
  }
  assert_in_range(extents.ever_used, 1, 2 * SLOTS + 1);
  assert_int_equal(unused, extents.ever_used);
  bl_extents_cleanup(&extents);
}

static void test_wheel_fires_in_time(void **state) {
  (void)state;
  enum { TIMERS = 50 };
  uint64_t deadlines[TIMERS + 1] = {0}; // 0: not set
  uint64_t now_ns = 123456789, key = bl_random_key(2, "wheel"), draws = 0;
  bl_wheel_t wheel;
  assert_int_equal(bl_wheel_init(&wheel, TIMERS, now_ns), BL_OK);
  for (int i = 0; i < 200000; i++) {
    uint32_t id = 1 + (uint32_t)bl_random_below(key, draws++, TIMERS);
    uint64_t reach = UINT64_C(1) << (16 + bl_random_below(key, draws++, 32)); // 65 us to 39 hours
    switch (bl_random_below(key, draws++, 3)) {
    case 0:
      deadlines[id] = now_ns + 1 + bl_random_below(key, draws++, reach);
      bl_wheel_set(&wheel, id, deadlines[id]);
      break;
    case 1:
      deadlines[id] = 0;
      bl_wheel_clear(&wheel, id);
      break;
    default: {
      uint64_t next_ns = bl_wheel_next_ns(&wheel);
      now_ns += bl_random_below(key, draws++, reach);
      uint32_t fired;
      while ((fired = bl_wheel_pop(&wheel, now_ns)) != 0) {
        assert_true(deadlines[fired] != 0 && deadlines[fired] <= now_ns);
        assert_true(next_ns < deadlines[fired] + BL_WHEEL_TICK_NS); // it would not have been missed by sleeping
        deadlines[fired] = 0;
      }
      for (uint32_t j = 1; j <= TIMERS; j++) {
        assert_true(deadlines[j] == 0 || now_ns < deadlines[j] + BL_WHEEL_TICK_NS);
      }
      break;
    }
    }
  }
  bl_wheel_cleanup(&wheel);
}

static void test_a_number_has_one_answer(void **state) {
  (void)state;
  bl_request_window_entry_t entries[4] = {{0}}, *entry;
  bl_request_window_t window = {.entries = entries, .capacity = 4};
  assert_int_equal(bl_request_window_begin(&window, 1, 0, 11, &entry), BL_REQUEST_WINDOW_NEW);
  assert_int_equal(bl_request_window_begin(&window, 1, 0, 11, &entry), BL_REQUEST_WINDOW_PENDING);
  entry->done = true;
  assert_int_equal(bl_request_window_begin(&window, 1, 0, 11, &entry), BL_REQUEST_WINDOW_DONE);
  assert_int_equal(bl_request_window_begin(&window, 1, 0, 12, &entry), BL_REQUEST_WINDOW_DEAD); // another request
  assert_int_equal(bl_request_window_begin(&window, 4, 0, 14, &entry), BL_REQUEST_WINDOW_NEW);
  assert_int_equal(bl_request_window_begin(&window, 5, 0, 15, &entry), BL_REQUEST_WINDOW_FULL);
  assert_int_equal(bl_request_window_begin(&window, 5, 5, 15, &entry), BL_REQUEST_WINDOW_DEAD); // acknowledges itself
  assert_int_equal(bl_request_window_begin(&window, 5, 1, 15, &entry), BL_REQUEST_WINDOW_NEW);
  assert_int_equal(bl_request_window_begin(&window, 1, 0, 11, &entry), BL_REQUEST_WINDOW_DEAD); // acknowledged
  assert_null(bl_request_window_find(&window, 1));
  assert_non_null(bl_request_window_find(&window, 4));
}

static void test_history_has_no_gaps(void **state) {
  (void)state;
  bl_journal_t journal;
  assert_int_equal(bl_journal_init(&journal, 8), BL_OK);
  assert_null(bl_journal_at(&journal, 1));
  assert_int_equal(bl_journal_oldest(&journal), 1);
  for (uint64_t i = 1; i <= 20; i++) {
    bl_journal_append(&journal, (bl_journal_event_t){.id = 100 + i});
    uint64_t oldest = i > 8 ? i - 7 : 1;
    assert_int_equal(bl_journal_oldest(&journal), oldest);
    for (uint64_t j = 1; j <= i + 1; j++) {
      const bl_journal_event_t *event = bl_journal_at(&journal, j);
      assert_int_equal(event != NULL, j >= oldest && j <= i);
      if (event != NULL) {
        assert_int_equal(event->revision, j);
        assert_int_equal(event->id, 100 + j);
      }
    }
  }
  bl_journal_cleanup(&journal);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_extents_are_best_fit),
      cmocka_unit_test(test_wheel_fires_in_time),
      cmocka_unit_test(test_a_number_has_one_answer),
      cmocka_unit_test(test_history_has_no_gaps),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
