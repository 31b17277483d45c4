// SPDX-License-Identifier: Apache-2.0
// Verifies balancing: evictions of BPipe equal to the numbers derived from its published bound (mode fewest) and within
// the stated ones (mode overlap), budgets kept on every device, balanced schedules valid and runnable, small caps
// refused with the smallest that works.
#include "schedule/balance.h"

#include "schedule/generated.h"
#include "schedule/peaks.h"
#include "schedule/slots.h"
#include "schedule/validate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

// Own peak and reservations of every device stay within the cap; the schedule is valid and its buffers suffice.
static void check_budgets(const bl_balance_result_t *result, uint32_t cap) {
  uint32_t peaks[64], p = result->stages;
  bl_error_t err;
  bl_schedule_facts_t facts;
  if (bl_schedule_validate(result->schedule, &facts, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  assert_int_equal(bl_schedule_peak_slots(result->schedule, peaks), BL_OK);
  for (uint32_t d = 0; d < p; d++) {
    uint32_t lent = 0;
    for (uint32_t s = 0; s < p; s++) {
      lent += result->reserved[s * result->stores + d];
    }
    assert_in_range(peaks[d] + lent, 0, cap);
  }
  if (p <= 16) {
    uint32_t slots[16];
    assert_int_equal(bl_plan_counts(result->schedule, 1, slots, NULL, NULL, &err), BL_OK);
    assert_memory_equal(slots, peaks, p * sizeof peaks[0]);
  }
}

typedef struct bpipe_case {
  uint32_t p, m, expected[4];
} bpipe_case_t;

static void check_bpipe(const bpipe_case_t *c, bl_balance_mode_t mode) {
  bl_schedule_t *schedule = generate("1f1b", c->p, c->m);
  bl_balance_result_t result;
  bl_error_t err;
  uint32_t cap = bl_balance_bpipe_cap(c->p);
  if (bl_balance_cap(schedule, cap, true, mode, &result, &err) != BL_OK) {
    fail_msg("p=%u m=%u: %s", c->p, c->m, err.text);
  }
  check_budgets(&result, cap);
  for (uint32_t s = 0; s < c->p; s++) {
    uint32_t expected = s < 4 ? c->expected[s] : 0;
    if (mode == BL_BALANCE_FEWEST ? result.evictions[s] != expected : result.evictions[s] > expected) {
      fail_msg("p=%u m=%u stage %u: %u evictions, expected %u", c->p, c->m, s, result.evictions[s], expected);
    }
  }
  bl_balance_result_cleanup(&result);
  bl_schedule_destroy(schedule);
}

static void fewest_equals_the_published_bound(void **state) {
  (void)state;
  static const bpipe_case_t cases[] = {{4, 4, {1, 0, 0, 0}}, {4, 8, {2, 0, 0, 0}},  {4, 16, {5, 0, 0, 0}},
                                       {8, 8, {3, 2, 1, 0}}, {8, 16, {6, 4, 3, 0}}, {8, 32, {12, 10, 6, 0}}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    check_bpipe(&cases[i], BL_BALANCE_FEWEST);
  }
}

static void overlap_stays_within_its_bound(void **state) {
  (void)state;
  static const bpipe_case_t cases[] = {
      {4, 16, {8, 0, 0, 0}}, {6, 16, {8, 5, 0, 0}}, {8, 16, {7, 6, 4, 0}}, {8, 32, {15, 12, 8, 0}}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    check_bpipe(&cases[i], BL_BALANCE_OVERLAP);
  }
}

// Caps from generous down to the smallest, on every schedule.
static void budgets_hold_on_every_schedule(void **state) {
  (void)state;
  size_t count, balanced = 0;
  const bl_schedule_info_t *infos = bl_schedule_infos(&count);
  for (size_t n = 0; n < count; n++) {
    bl_schedule_t *schedule = generate(infos[n].name, 4, 8);
    uint32_t peaks[4], most = 0;
    assert_int_equal(bl_schedule_peak_slots(schedule, peaks), BL_OK);
    for (uint32_t s = 0; s < 4; s++) {
      most = peaks[s] > most ? peaks[s] : most;
    }
    for (uint32_t cap = most; cap >= 1; cap--) {
      for (int pass = 0; pass < 4; pass++) {
        bl_balance_mode_t mode = pass % 2 ? BL_BALANCE_FEWEST : BL_BALANCE_OVERLAP;
        bl_balance_result_t result;
        bl_error_t err;
        bl_status_t status = bl_balance_cap(schedule, cap, pass / 2, mode, &result, &err);
        if (status == BL_OK) {
          check_budgets(&result, cap);
          balanced += cap < most;
          bl_balance_result_cleanup(&result);
          continue;
        }
        assert_int_equal(status, BL_EXHAUSTED);
        uint32_t works = 0;
        const char *at = strstr(err.text, "smallest that works is ");
        assert_non_null(at);
        assert_int_equal(sscanf(at, "smallest that works is %u", &works), 1);
        assert_in_range(works, cap + 1, most);
        if (bl_balance_cap(schedule, works, pass / 2, mode, &result, &err) != BL_OK) {
          fail_msg("%s cap %u: %s", infos[n].name, works, err.text);
        }
        bl_balance_result_cleanup(&result);
      }
    }
    bl_schedule_destroy(schedule);
  }
  assert_in_range(balanced, 10, 1000000);
}

static void a_full_store_moves_others_to_their_second_choice(void **state) {
  (void)state;
  // Stages 0 and 1 of 1f1b hold 4 and 3; both like store 0, only stage 0 reaches store 1.
  bl_schedule_t *schedule = generate("1f1b", 4, 4);
  const uint32_t own[] = {3, 2, 2, 1}, lent[] = {2, 2};
  const uint16_t reach[] = {0, 1, 0, BL_STORE_NONE, BL_STORE_NONE, BL_STORE_NONE, BL_STORE_NONE, BL_STORE_NONE};
  bl_balance_request_t request = {
      .mode = BL_BALANCE_FEWEST, .own = own, .lent = lent, .stores = 2, .reach = reach, .reach_count = 2};
  bl_balance_result_t result;
  bl_error_t err;
  if (bl_balance(schedule, &request, &result, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  assert_int_equal(result.reserved[0] + result.reserved[1], result.parked_peak[0]);
  assert_int_equal(result.reserved[2], result.parked_peak[1]);
  assert_true(result.reserved[0] + result.reserved[2] <= 2 && result.reserved[1] > 0);
  assert_int_equal(bl_schedule_validate(result.schedule, NULL, NULL), BL_OK);
  bl_balance_result_t again;
  assert_int_equal(bl_balance(result.schedule, &request, &again, &err), BL_INVALID);
  assert_non_null(strstr(err.text, "evictions already"));
  bl_balance_result_cleanup(&result);
  const uint32_t little[] = {1, 0};
  request.lent = little;
  assert_int_equal(bl_balance(schedule, &request, &result, &err), BL_EXHAUSTED);
  assert_non_null(strstr(err.text, "the stores it reaches have room for"));
  bl_schedule_destroy(schedule);
}

static void too_small_caps_name_what_works(void **state) {
  (void)state;
  bl_schedule_t *schedule = generate("1f1b", 8, 16);
  bl_balance_result_t result;
  bl_error_t err;
  assert_int_equal(bl_balance_cap(schedule, 4, true, BL_BALANCE_OVERLAP, &result, &err), BL_EXHAUSTED);
  assert_non_null(strstr(err.text, "a cap of 4 slots a device is too small for schedule 1f1b (the smallest that "
                                   "works is 5)"));
  assert_non_null(strstr(err.text, "stage 0"));
  bl_schedule_destroy(schedule);
}

static void large_pipelines_take_milliseconds(void **state) {
  (void)state;
  bl_schedule_t *schedule = generate("1f1b", 64, 1024);
  struct timespec from, to;
  bl_balance_result_t result;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
  assert_int_equal(bl_balance_cap(schedule, 33, true, BL_BALANCE_OVERLAP, &result, NULL), BL_OK);
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
  double seconds = (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
  print_message("p = 64, m = 1024: %.1f ms\n", 1e3 * seconds);
#ifdef __SANITIZE_ADDRESS__
  assert_true(seconds < 2);
#else
  assert_true(seconds < 0.1); // of the processor's time: who else computes does not count
#endif
  check_budgets(&result, 33);
  bl_balance_result_cleanup(&result);
  bl_schedule_destroy(schedule);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(fewest_equals_the_published_bound),
      cmocka_unit_test(overlap_stays_within_its_bound),
      cmocka_unit_test(budgets_hold_on_every_schedule),
      cmocka_unit_test(a_full_store_moves_others_to_their_second_choice),
      cmocka_unit_test(too_small_caps_name_what_works),
      cmocka_unit_test(large_pipelines_take_milliseconds),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
