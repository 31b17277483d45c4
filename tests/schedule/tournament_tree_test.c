// SPDX-License-Identifier: Apache-2.0
// Verifies the tree of stages by time against looking at all of them: any number of stages, equal and infinite times.
#include "schedule/search/tournament_tree.h"

#include "base/random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define STAGES_MAX 37
#define CHANGES    500

static uint32_t first_of_the_earliest(const double *times, uint32_t stages) {
  uint32_t tree = 0;
  for (uint32_t s = 1; s < stages; s++) {
    tree = times[s] < times[tree] ? s : tree;
  }
  return tree;
}

static void the_first_of_the_earliest_wins(void **state) {
  (void)state;
  uint64_t random = 0;
  for (uint32_t stages = 1; stages <= STAGES_MAX; stages++) {
    bl__tournament_tree_t tree;
    double times[STAGES_MAX];
    assert_int_equal(bl__tournament_tree_init(&tree, stages), BL_OK);
    bl__tournament_tree_fill(&tree, stages, 2);
    for (uint32_t s = 0; s < stages; s++) {
      times[s] = 2;
    }
    assert_int_equal(bl__tournament_tree_stage(&tree), 0);
    for (uint32_t change = 0; change < CHANGES; change++) {
      uint32_t stage = (uint32_t)bl_random_below(7, random++, stages);
      uint64_t time = bl_random_below(7, random++, 5); // few different ones
      times[stage] = time == 4 ? INFINITY : (double)time;
      bl__tournament_tree_set(&tree, stage, times[stage]);
      assert_int_equal(bl__tournament_tree_stage(&tree), first_of_the_earliest(times, stages));
      assert_true(tree.times[stage] == times[stage]);
    }
    bl__tournament_tree_cleanup(&tree);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(the_first_of_the_earliest_wins)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
