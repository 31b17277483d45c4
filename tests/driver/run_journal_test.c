// SPDX-License-Identifier: Apache-2.0
// Verifies the journal: events are read from any revision on, none twice, none left out, and the oldest give way when
// the bound is reached.
#include "run_journal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void add_step(bl_run_journal_t *journal, uint64_t step) {
  bl_stage_share_t shares[2] = {{.process = 10}, {.process = (int64_t)step}};
  bl_step_event_t event = {.step = step, .stages = shares, .stage_count = 2};
  bl_run_journal_add_step(journal, &event);
}

static void test_reading_from_any_point(void **state) {
  (void)state;
  bl_run_journal_t journal;
  assert_int_equal(bl_run_journal_init(&journal), BL_OK);
  assert_null(bl_run_journal_after(&journal, 0));
  bl_run_journal_add_phase(&journal, "running", "", 0);
  bl_run_journal_add_plan(&journal);
  for (uint64_t step = 1; step <= 1000; step++) { // more than the first ring holds
    add_step(&journal, step);
  }
  uint64_t revision = 0, steps = 0;
  for (const bl_event_t *event; (event = bl_run_journal_after(&journal, revision)) != NULL;) {
    assert_int_equal(event->revision, revision + 1);
    revision = event->revision;
    if (event->kind == BL_EVENT_STEP) {
      assert_int_equal(event->step.step, ++steps);
      assert_int_equal(event->step.stages[1].process, steps);
    }
  }
  assert_int_equal(revision, 1002);
  assert_int_equal(bl_run_journal_after(&journal, 501)->step.step, 500);
  assert_null(bl_run_journal_after(&journal, 5000)); // of another driver's journal
  assert_string_equal(bl_run_journal_after(&journal, 0)->phase->phase, "running");
  bl_run_journal_cleanup(&journal);
}

static void test_the_oldest_give_way(void **state) {
  (void)state;
  bl_run_journal_t journal;
  assert_int_equal(bl_run_journal_init(&journal), BL_OK);
  for (uint64_t step = 1; step <= BL_RUN_JOURNAL_EVENTS + 10; step++) {
    add_step(&journal, step);
  }
  assert_int_equal(bl_run_journal_after(&journal, 0)->revision, 11);
  assert_int_equal(bl_run_journal_after(&journal, BL_RUN_JOURNAL_EVENTS + 9)->step.step, BL_RUN_JOURNAL_EVENTS + 10);
  bl_run_journal_cleanup(&journal);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_reading_from_any_point),
      cmocka_unit_test(test_the_oldest_give_way),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
