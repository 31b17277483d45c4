// SPDX-License-Identifier: Apache-2.0
// Verifies that nothing waits for ever (lease/crossing.h): random schedules over two to four devices that park blocks at each
// other's stores, in any order of events, over transfers that block until both ends are there and occupy one of k slots.
// All of them finish with every block back; a world that does not is found at once, because nothing can happen in it any
// more; and each of the two rules is needed: without it some worlds do wait for ever.
// 10,000 worlds of a fixed seed, 100,000 of a random one with BALLAST_SOAK=1; BALLAST_TEST_SEED=n sets it.
#include "lease/crossing.h"
#include "seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <inttypes.h>
#include <stdio.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define WORLDS 2000
#define BROKEN 1000
#else
#define WORLDS 10000
#define BROKEN 5000 // worlds of each broken rule
#endif
#define SOAK_WORLDS 100000
#define SEED        20221

static uint64_t first_seed;

static void all_schedules_finish(void **state) {
  (void)state;
  const uint64_t worlds = test_soak() ? SOAK_WORLDS : WORLDS;
  uint64_t both_ways = 0, transfers = 0, refused = 0, events = 0;
  for (uint64_t i = 0; i < worlds; i++) {
    const crossing_outcome_t outcome = crossing_run(first_seed + i, CROSSING_RIGHT);
    if (!outcome.finished) {
      fail_msg("seed %" PRIu64 " waits for ever: %s", first_seed + i, outcome.waits);
    }
    both_ways += outcome.both_ways ? 1 : 0;
    transfers += outcome.transfers;
    refused += outcome.refused;
    events += outcome.events;
  }
  print_message("%" PRIu64 " schedules, %" PRIu64 " of them both ways, %" PRIu64 " transfers, %" PRIu64
                " of them refused for credit at first, %" PRIu64 " events\n",
                worlds, both_ways, transfers, refused, events);
  assert_true(both_ways > worlds / 4 && transfers > 5 * worlds && refused > worlds / 10);
}

// Without the rule some worlds wait for ever, and that is seen.
static void expect_stuck(crossing_rule_t rule, const char *name) {
  uint64_t stuck = 0;
  for (uint64_t i = 0; i < BROKEN; i++) {
    stuck += crossing_run(SEED + i, rule).finished ? 0 : 1;
  }
  print_message("%s: %" PRIu64 " of %d schedules wait for ever\n", name, stuck, BROKEN);
  assert_true(stuck > 0);
}

static void numbers_are_needed(void **state) {
  (void)state;
  expect_stuck(CROSSING_UNNUMBERED, "launched as messages come");
}

static void slots_come_before_words(void **state) {
  (void)state;
  expect_stuck(CROSSING_EARLY, "told before there is a slot");
}

static void worlds_repeat(void **state) {
  (void)state;
  for (uint64_t i = 0; i < 50; i++) {
    const crossing_outcome_t a = crossing_run(SEED + i, CROSSING_RIGHT), b = crossing_run(SEED + i, CROSSING_RIGHT);
    assert_true(a.events == b.events && a.transfers == b.transfers && a.refused == b.refused && a.events > 0);
  }
}

int main(void) {
  first_seed = test_seed(SEED);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(all_schedules_finish),
      cmocka_unit_test(numbers_are_needed),
      cmocka_unit_test(slots_come_before_words),
      cmocka_unit_test(worlds_repeat),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
