// SPDX-License-Identifier: Apache-2.0
// Verifies the time/memory frontier: balancing 1F1B under its smallest cap costs no time where transfers are free, points
// that are marked as best are not beaten by any other, all do the same work, those that are named are compared alone, and bad
// requests are refused.
#include "simulate/frontier.h"

#include "instrumented.h"
#include "schedule/generate.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const bl_frontier_point_t *find(const bl_frontier_t *frontier, const char *schedule, double cap) {
  for (size_t i = 0; i < frontier->count; i++) {
    if (strcmp(frontier->points[i].schedule, schedule) == 0 && fabs(frontier->points[i].cap - cap) < 1e-9) {
      return &frontier->points[i];
    }
  }
  fail_msg("no point of %s with cap %g", schedule, cap);
  return NULL;
}

static void balanced_points_stand_beside_plain_ones(void **state) {
  (void)state;
  bl_costs_t costs = BL_COSTS_UNIT;
  bl_frontier_t frontier;
  bl_error_t err;
  static const char *const few[] = {"1f1b", "interleaved"};
  bl_frontier_request_t request = {
      .stages = 4, .micro_batches = 8, .costs = &costs, .effort = 0.01, .names = few, .name_count = FEW_OR_ALL(2, 0)};
  assert_int_equal(bl_frontier_init(&request, &frontier, &err), BL_OK);
  assert_true(find(&frontier, "1f1b", 0)->memory == 4);
  assert_true(find(&frontier, "1f1b", 0)->t_end == 33);
  const bl_frontier_point_t *balanced = find(&frontier, "1f1b", 3); // BPipe's cap
  assert_true(balanced->memory == 3 && balanced->t_end == 33 && balanced->evictions > 0);
  // Interleaved: two chunks at half of the costs each.
  assert_true(find(&frontier, "interleaved", 0)->memory == 5.5);
  assert_true(fabs(find(&frontier, "interleaved", 0)->t_end - 28.5) < 1e-9);
  assert_true(find(&frontier, "interleaved", 4.5)->evictions > 0);
  size_t best = 0;
  for (size_t i = 0; i < frontier.count; i++) {
    const bl_frontier_point_t *point = &frontier.points[i];
    best += point->best;
    for (size_t k = 0; k < frontier.count && point->best; k++) {
      const bl_frontier_point_t *other = &frontier.points[k];
      assert_false(other->t_end < point->t_end * (1 - 1e-6) && other->memory <= point->memory);
      assert_false(other->t_end <= point->t_end && other->memory < point->memory - 1e-6);
    }
  }
  assert_in_range(best, 2, frontier.count - 1);
  bl_frontier_cleanup(&frontier);
}

// Orders made for balancing: grouped-interleaved below its worst stage's peak, a V of few micro-batches, zb-h1 where
// boundaries are slow, each within the cap in less time than what needs no balancing. Who can be run is marked.
static void orders_for_balancing_beat_their_own_kind(void **state) {
  (void)state;
  static const char *const names[] = {"grouped-interleaved", "zb-v", "zb-h1", "chimera"};
  const bl_costs_t costs = {.every = {20, 28, 12, 20}, .boundary = 10, .path = 5};
  bl_frontier_t frontier;
  bl_error_t err;
  bl_frontier_request_t request = {
      .stages = 6, .micro_batches = 6, .costs = &costs, .effort = 0.02, .names = names, .name_count = 4};
  assert_int_equal(bl_frontier_init(&request, &frontier, &err), BL_OK);
  for (int n = 0; n < 3; n++) {
    size_t better = 0;
    for (size_t i = 0; i < frontier.count; i++) {
      const bl_frontier_point_t *point = &frontier.points[i];
      if (strcmp(point->schedule, names[n]) != 0 || point->cap == 0 || !point->pooled) {
        continue;
      }
      assert_true(point->runs && point->evictions > 0);
      bool beaten = false;
      for (size_t k = 0; k < frontier.count; k++) {
        const bl_frontier_point_t *other = &frontier.points[k];
        beaten = beaten || (strcmp(other->schedule, names[n]) == 0 && other->cap == 0 &&
                            other->memory <= point->memory && other->t_end <= point->t_end);
      }
      better += !beaten;
    }
    print_message("%s: %zu points\n", names[n], better);
    assert_in_range(better, 1, frontier.count);
  }
  assert_true(find(&frontier, "chimera", 0)->runs);
  bl_frontier_cleanup(&frontier);
}

static void slow_paths_cost_time(void **state) {
  (void)state;
  bl_costs_t costs = BL_COSTS_UNIT;
  costs.path = 12;
  bl_frontier_t frontier;
  bl_error_t err;
  static const char *const few[] = {"1f1b"};
  bl_frontier_request_t request = {
      .stages = 4, .micro_batches = 8, .costs = &costs, .effort = 0.01, .names = few, .name_count = FEW_OR_ALL(1, 0)};
  assert_int_equal(bl_frontier_init(&request, &frontier, &err), BL_OK);
  assert_true(find(&frontier, "1f1b", 3)->t_end > 33);
  assert_true(find(&frontier, "1f1b", 0)->t_end == 33);
  bl_frontier_cleanup(&frontier);
}

// However a schedule cuts a device's part (chunks, slices, two directions), a device works as long for a step.
static void all_do_the_same_work(void **state) {
  (void)state;
  static const char *const names[] = {
      "1f1b",   "seq1f1b", "chimera", "dualpipe", "interleaved", "zb-h1", "zb-v", "dualpipe-v", "grouped-interleaved",
      "1f1b-v", "adaptive"};
  const bl_costs_t costs = {.every = {10, 14, 6, 10}, .boundary = 3};
  bl_frontier_t frontier;
  bl_error_t err;
  bl_frontier_request_t request = {.stages = 4,
                                   .micro_batches = 8,
                                   .costs = &costs,
                                   .effort = 0.01,
                                   .names = names,
                                   .name_count = FEW_OR_ALL(5, sizeof names / sizeof names[0])}; // the others search
  assert_int_equal(bl_frontier_init(&request, &frontier, &err), BL_OK);
  for (size_t i = 0; i < frontier.count; i++) {
    const bl_frontier_point_t *point = &frontier.points[i];
    const double work = point->t_end * (1 - point->bubble);
    if (fabs(work - 8 * (10 + 14 + 6)) > 1e-6) {
      fail_msg("%s: a device works for %g, not %d", point->schedule, work, 8 * (10 + 14 + 6));
    }
  }
  for (size_t n = 0; n < request.name_count; n++) {
    (void)find(&frontier, names[n], 0);
  }
  bl_frontier_cleanup(&frontier);
}

static void impossible_shapes_are_refused(void **state) {
  (void)state;
  bl_costs_t costs = BL_COSTS_UNIT;
  bl_frontier_t frontier;
  bl_error_t err;
  bl_frontier_request_t request = {.stages = 0, .micro_batches = 8, .costs = &costs};
  assert_int_equal(bl_frontier_init(&request, &frontier, &err), BL_INVALID);
  assert_non_null(strstr(err.text, "stages"));
  assert_null(frontier.points);
}

static void some_are_compared(void **state) {
  (void)state;
  bl_costs_t costs = BL_COSTS_UNIT;
  bl_frontier_t frontier;
  bl_error_t err;
  bl_schedule_t *own;
  static const char *const names[] = {"1f1b", "chimera"}, *const unknown[] = {"2f2b"}, *const odd[] = {"dualpipe"};
  assert_int_equal(
      bl_schedule_generate(&(bl_schedule_request_t){.name = "gpipe", .stages = 4, .micro_batches = 8}, &own, &err),
      BL_OK);
  snprintf(own->name, sizeof own->name, "mine");
  const bl_schedule_t *given[] = {own};
  bl_frontier_request_t request = {.stages = 4,
                                   .micro_batches = 8,
                                   .costs = &costs,
                                   .names = names,
                                   .name_count = 2,
                                   .given = given,
                                   .given_count = 1};
  assert_int_equal(bl_frontier_init(&request, &frontier, &err), BL_OK);
  assert_true(find(&frontier, "mine", 0)->memory == 8);
  assert_true(find(&frontier, "1f1b", 0)->memory == 4 && find(&frontier, "chimera", 0)->t_end > 0);
  for (size_t i = 0; i < frontier.count; i++) {
    const char *name = frontier.points[i].schedule;
    assert_true(strcmp(name, "mine") == 0 || strcmp(name, "1f1b") == 0 || strcmp(name, "chimera") == 0);
  }
  bl_frontier_cleanup(&frontier);
  bl_schedule_destroy(own);
  request =
      (bl_frontier_request_t){.stages = 4, .micro_batches = 8, .costs = &costs, .names = unknown, .name_count = 1};
  assert_int_equal(bl_frontier_init(&request, &frontier, &err), BL_NOT_FOUND);
  request.names = odd; // one that is named is not left out
  request.micro_batches = 3;
  assert_int_equal(bl_frontier_init(&request, &frontier, &err), BL_INVALID);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(balanced_points_stand_beside_plain_ones),
      cmocka_unit_test(orders_for_balancing_beat_their_own_kind),
      cmocka_unit_test(slow_paths_cost_time),
      cmocka_unit_test(all_do_the_same_work),
      cmocka_unit_test(some_are_compared),
      cmocka_unit_test(impossible_shapes_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
