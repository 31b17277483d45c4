// SPDX-License-Identifier: Apache-2.0
// Verifies that the lease table does what its model does, over random walks of a million calls of every kind: answers,
// states, generations, slots, free and largest free space, actions, sums. BALLAST_SEED=n repeats one walk,
// BALLAST_SOAK=1 walks ten times as far.
#include "instrumented.h"
#include "lease/walk.h"
#include "seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static void test_walks(void **state) {
  (void)state;
  const char *only = getenv("BALLAST_SEED");
  uint64_t walks = test_soak() ? 5000 : FEW_OR_ALL(150, 500), calls = 2000;
  uint64_t first = only != NULL ? strtoull(only, NULL, 10) : 1;
  walk_result_t result = {0};
  for (uint64_t i = 0; i < (only != NULL ? 1 : walks); i++) {
    assert_true(walk_run(first + i, calls, &result));
  }
  printf("%" PRIu64 " calls: %" PRIu64 " slots reserved, %" PRIu64 " blocks sealed, %" PRIu64 " loaded, %" PRIu64
         " requests repeated, %" PRIu64 " sessions ended (%" PRIu64 " for their room), %" PRIu64
         " reasons to refuse in one walk\n",
         result.calls, result.granted, result.sealed, result.loaded, result.repeated, result.ended,
         result.suspects_preempted, result.refused_reasons);
  if (only == NULL) { // the walk goes everywhere
    const uint64_t many = FEW_OR_ALL(5000, 10000);
    assert_true(result.sealed > many && result.loaded > 1000 && result.repeated > many);
    assert_true(result.ended > 1000 && result.suspects_preempted > 10 && result.refused_reasons > 15);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_walks)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
