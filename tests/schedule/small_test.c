// SPDX-License-Identifier: Apache-2.0
// Verifies every name over all small shapes: 1 to 6 stages, 1 to 9 micro-batches, 1 to 3 chunks, with even and uneven
// costs. Each gives a schedule that validation and the check for deadlocks accept, or is refused with a reason that
// names the schedule, and the same shape is refused or not whatever the costs.
#include "schedule/generate.h"
#include "schedule/ir/peaks.h"
#include "schedule/ir/stage_plan.h"
#include "schedule/ir/validate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define STAGES  6
#define BATCHES 9
#define CHUNKS  3

static void check(const bl_schedule_t *schedule, const bl_schedule_info_t *info, uint32_t chunks) {
  uint32_t slots[STAGES], peaks[STAGES], p = schedule->stages, m = schedule->micro_batches;
  bl_schedule_facts_t facts;
  bl_error_t err;
  bl_error_clear(&err);
  if (bl_schedule_validate(schedule, &facts, &err) != BL_OK || bl_plan_counts(schedule, slots, NULL, &err) != BL_OK) {
    fail_msg("%s p=%u m=%u v=%u: %s", info->name, p, m, chunks, err.text);
  }
  assert_true(facts.ascending);
  assert_false(facts.transfers);
  assert_int_equal(facts.splits_backward, info->splits_backward);
  assert_int_equal(schedule->stages, p);
  assert_int_equal(schedule->micro_batches, m);
  assert_int_equal(schedule->chunks, chunks);
  assert_int_equal(bl_schedule_peak_slots(schedule, peaks), BL_OK);
  for (uint32_t s = 0; s < p; s++) {
    assert_int_equal(slots[s], peaks[s]);
    assert_in_range(peaks[s], 1, schedule->chunks * m * schedule->slices);
  }
}

// Whether the shape works.
static bool try_shape(const bl_schedule_info_t *info, uint32_t p, uint32_t m, uint32_t v, const bl_costs_t *costs,
                      bool recompute) {
  bl_schedule_request_t request = {.name = info->name,
                                   .stages = p,
                                   .micro_batches = m,
                                   .chunks = v,
                                   .costs = costs,
                                   .recompute = recompute,
                                   .effort = 0.0001};
  bl_schedule_t *schedule = NULL;
  bl_error_t err;
  bl_error_clear(&err);
  bl_status_t status = bl_schedule_generate(&request, &schedule, &err);
  if (status != BL_OK) {
    if (status != BL_INVALID || strstr(err.text, info->name) == NULL || strlen(err.text) < 30) {
      fail_msg("%s p=%u m=%u v=%u is refused without a reason: \"%s\"", info->name, p, m, v, err.text);
    }
    assert_null(schedule);
    return false;
  }
  check(schedule, info, v);
  bl_schedule_destroy(schedule);
  return true;
}

static void every_small_shape_works_or_says_why_not(void **state) {
  (void)state;
  bl_chunk_costs_t chunks[STAGES * CHUNKS];
  for (uint32_t s = 0; s < STAGES * CHUNKS; s++) { // some large, some nothing
    chunks[s] = (bl_chunk_costs_t){1 + s * 7 % 5, s * 5 % 7, s * 3 % 4, 1 + s % 3};
  }
  bl_costs_t uneven = {.chunks = chunks, .boundary = 3};
  size_t count, works = 0, refused = 0;
  const bl_schedule_info_t *infos = bl_schedule_infos(&count);
  for (size_t n = 0; n < count; n++) {
    size_t before = works;
    for (uint32_t p = 1; p <= STAGES; p++) {
      for (uint32_t m = 1; m <= BATCHES; m++) {
        for (uint32_t v = 1; v <= CHUNKS; v++) {
          bool even = try_shape(&infos[n], p, m, v, NULL, false);
          assert_int_equal(even, try_shape(&infos[n], p, m, v, &uneven, m % 2 == 0));
          works += even;
          refused += !even;
        }
      }
    }
    assert_true(works > before); // none is refused everywhere
  }
  printf("%zu shapes work, %zu are refused with a reason\n", works, refused);
  assert_int_equal(works + refused, count * STAGES * BATCHES * CHUNKS);
}

// Names with one, two or any number of chunks work for every number of stages and of micro-batches, but for those whose
// two directions or warm-up need more.
static void nothing_is_refused_but_what_cannot_be(void **state) {
  (void)state;
  size_t count;
  const bl_schedule_info_t *infos = bl_schedule_infos(&count);
  for (size_t n = 0; n < count; n++) {
    bool halves = strcmp(infos[n].name, "chimera") == 0, whole = strcmp(infos[n].name, "dualpipe-v") == 0,
         both = strcmp(infos[n].name, "dualpipe") == 0;
    for (uint32_t p = 1; p <= STAGES; p++) {
      for (uint32_t m = 1; m <= BATCHES; m++) {
        bool expected = halves ? p % 2 == 0 && m >= 2
                        : both ? p % 2 == 0 && m % 2 == 0 && m >= 2 * p
                               : !whole || m >= 2 * p;
        bool found = try_shape(&infos[n], p, m, infos[n].default_chunks, NULL, false);
        if (found != expected) {
          fail_msg("%s p=%u m=%u: %s", infos[n].name, p, m, found ? "works" : "is refused");
        }
      }
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_small_shape_works_or_says_why_not),
      cmocka_unit_test(nothing_is_refused_but_what_cannot_be),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
