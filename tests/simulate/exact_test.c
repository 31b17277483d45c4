// SPDX-License-Identifier: Apache-2.0
// Verifies how far from the optimum generators are at unit costs, for up to 4 stages and 6 micro-batches, by exact search
// on the same placement within the same worst peak. By default the smaller shapes; all with BALLAST_SOAK=1, which searches
// longer. `test_simulate_exact --table` prints the table of docs/schedules.md.
#include "exact.h"

#include "schedule/generate.h"
#include "schedule/ir/bound.h"
#include "seed.h"
#include "simulate/simulate.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define STATES      400000
#define STATES_SOAK 20000000

// Shapes of every run: p times m. Sanitizers make searches many times slower.
#ifdef __SANITIZE_ADDRESS__
#define EVERY_RUN     3
#define FEWEST_LIMITS 5
#else
#define EVERY_RUN     9
#define FEWEST_LIMITS 40
#endif

typedef struct measured {
  uint32_t end, lower_bound, limit;
  exact_result_t exact;
} measured_t;

// False where the name does not allow the shape.
static bool measure(const bl_schedule_info_t *info, uint32_t p, uint32_t m, uint64_t budget, measured_t *made) {
  bl_costs_t costs = BL_COSTS_UNIT;
  bl_schedule_request_t request = {.name = info->name, .stages = p, .micro_batches = m, .costs = &costs};
  bl_schedule_t *schedule;
  bl_simulation_t result;
  bl_error_t err;
  bl_error_clear(&err);
  if (bl_schedule_generate(&request, &schedule, &err) != BL_OK) {
    return false;
  }
  assert_int_equal(bl_simulate(schedule, &costs, &result, &err), BL_OK);
  *made = (measured_t){.end = (uint32_t)result.t_end, .lower_bound = (uint32_t)result.lower_bound};
  for (uint32_t s = 0; s < p; s++) {
    made->limit = result.peak_slots[s] > made->limit ? result.peak_slots[s] : made->limit;
  }
  // Up to one unit beyond the generator's end, so that the search must find a step of that end by itself.
  made->exact = exact_search(schedule, !info->splits_backward, made->limit, made->lower_bound, made->end + 1, budget);
  if (made->exact.least > made->end) {
    fail_msg("%s p=%u m=%u: the exact search says that no step ends before %u, and here is one of %u", info->name, p, m,
             made->exact.least, made->end);
  }
  if (result.bound_within > made->exact.least) {
    fail_msg("%s p=%u m=%u: bound within %u blocks %g, the exact search has a step of %u", info->name, p, m,
             made->limit, result.bound_within, made->exact.least);
  }
  bl_simulation_cleanup(&result);
  bl_schedule_destroy(schedule);
  return true;
}

// The end of a step, found without knowing one.
static uint32_t least_of(const char *name, uint32_t p, uint32_t m, bool fused, uint32_t limit) {
  bl_schedule_request_t request = {.name = name, .stages = p, .micro_batches = m, .effort = 0.01};
  bl_schedule_t *schedule;
  assert_int_equal(bl_schedule_generate(&request, &schedule, NULL), BL_OK);
  exact_result_t result = exact_search(schedule, fused, limit, 0, 1000, STATES);
  assert_true(result.reached);
  bl_schedule_destroy(schedule);
  return result.least;
}

static void the_search_knows_what_can_be_worked_out_by_hand(void **state) {
  (void)state;
  assert_int_equal(least_of("1f1b", 1, 5, true, 1), 15);
  assert_int_equal(least_of("1f1b", 2, 4, true, 2), 15);      // (m + p - 1) 3
  assert_int_equal(least_of("1f1b", 2, 4, true, 1), 4 * 6);   // one after the other
  assert_int_equal(least_of("zb-h1", 2, 4, false, 2), 13);    // 3 m + p - 1
  assert_int_equal(least_of("1f1b", 2, 4, false, 2), 13);     // so would 1F1B with its backward split
  assert_int_equal(least_of("zb-h1", 2, 4, false, 1), 4 * 5); // the first stage's W ends what it holds
  assert_int_equal(least_of("zb-v", 2, 1, false, 2), 9);      // F's and I's down and up the V, then a W
  assert_int_equal(least_of("chimera", 2, 2, true, 2), 6);    // one each way
  assert_int_equal(least_of("seq1f1b", 1, 2, true, 2), 12);   // four slices, one after the other
  assert_int_equal(least_of("seq1f1b", 2, 2, true, 3), 15);   // (4 + p - 1) 3: like 1F1B with twice the micro-batches
}

// Generators end as early as any order can.
static void generators_reach_the_optimum(void **state) {
  (void)state;
  bool all = test_soak();
  size_t count, compared = 0;
  const bl_schedule_info_t *infos = bl_schedule_infos(&count);
  for (uint32_t p = 1; p <= EXACT_STAGES; p++) {
    for (uint32_t m = 1; m <= EXACT_BATCHES; m++) {
      for (size_t i = 0; i < count && (all || p * m <= EVERY_RUN); i++) {
        measured_t found;
        if (measure(&infos[i], p, m, all ? STATES_SOAK : STATES, &found)) {
          compared++;
          if (found.exact.least < found.end) {
            fail_msg("%s p=%u m=%u: ends at %u; %s %u", infos[i].name, p, m, found.end,
                     found.exact.reached ? "possible is" : "the search was cut off at", found.exact.least);
          }
        }
      }
    }
  }
  assert_in_range(compared, 50, 1000);
}

// No step within a limit ends before the bound for it, and where the limit binds that is more than the one of the costs alone.
static void the_bound_within_a_limit_is_one(void **state) {
  (void)state;
  static const char *const names[] = {"1f1b", "gpipe", "zb-h1", "zb-v", "chimera", "seq1f1b", "interleaved"};
  static const uint32_t shapes[][2] = {{1, 3}, {2, 2}, {2, 3}, {2, 4}, {3, 2}, {3, 3}, {4, 2}};
  const bl_costs_t costs = BL_COSTS_UNIT;
  uint32_t compared = 0, met = 0, above = 0;
  for (size_t k = 0; k < sizeof shapes / sizeof shapes[0] * (sizeof names / sizeof names[0]); k++) {
    const uint32_t p = shapes[k / 7][0], m = shapes[k / 7][1];
    bl_schedule_request_t request = {.name = names[k % 7], .stages = p, .micro_batches = m, .effort = 0.01};
    bl_schedule_t *schedule;
    if (p * m > EVERY_RUN || bl_schedule_generate(&request, &schedule, NULL) != BL_OK) {
      continue;
    }
    const bool fused = !bl_schedule_info_find(names[k % 7])->splits_backward;
    for (uint32_t limit = schedule->chunks * schedule->slices; limit <= schedule->chunks * p; limit++) {
      const uint32_t limits[] = {limit, limit, limit, limit};
      double alone, within;
      assert_int_equal(bl_schedule_lower_bound(schedule, &costs, &alone), BL_OK);
      assert_int_equal(bl_schedule_bound_within(schedule, &costs, limits, false, &within), BL_OK);
      const exact_result_t found = exact_search(schedule, fused, limit, 0, 1000, STATES);
      if (within < alone || within > found.least) {
        fail_msg("%s p=%u m=%u within %u blocks: bound %g, of the costs alone %g; a step of %u exists", names[k % 7], p,
                 m, limit, within, alone, found.least);
      }
      compared += found.reached;
      met += found.reached && ceil(within) == found.least;
      above += within > alone;
    }
    bl_schedule_destroy(schedule);
  }
  print_message("%u limits, of %u the bound is the optimum, of %u above that of the costs alone\n", compared, met,
                above);
  assert_true(compared >= FEWEST_LIMITS && met >= compared / 3 && (compared < 40 || above >= compared / 3));
}

static int print_table(void) {
  static const uint32_t shapes[][2] = {{2, 2}, {2, 4}, {2, 6}, {3, 3}, {3, 6}, {4, 2}, {4, 4}, {4, 6}};
  size_t count;
  const bl_schedule_info_t *infos = bl_schedule_infos(&count);
  printf("| p, m");
  for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++) {
    printf(" | %u, %u", shapes[k][0], shapes[k][1]);
  }
  printf(" |\n| --- ");
  for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++) {
    printf("| --- ");
  }
  printf("|\n");
  for (size_t i = 0; i < count; i++) {
    printf("| %s", infos[i].name);
    for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++) {
      measured_t found;
      if (!measure(&infos[i], shapes[k][0], shapes[k][1], STATES_SOAK, &found)) {
        printf(" | -");
      } else if (found.exact.least == found.end) {
        printf(" | %u", found.end);
      } else {
        printf(" | %u (%s%u)", found.end, found.exact.reached ? "" : ">= ", found.exact.least);
      }
      fflush(stdout);
    }
    printf(" |\n");
  }
  return 0;
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], "--table") == 0) {
    return print_table();
  }
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_search_knows_what_can_be_worked_out_by_hand),
      cmocka_unit_test(generators_reach_the_optimum),
      cmocka_unit_test(the_bound_within_a_limit_is_one),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
