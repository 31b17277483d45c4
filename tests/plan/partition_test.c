// SPDX-License-Identifier: Apache-2.0
// Verifies the partition of layers: the dynamic programme against trying everything, and devices of several chunks.
#include "plan/candidate/partition.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

static double slowest_of(const bl_partition_request_t *r, const uint32_t *layers) {
  double slowest = 0;
  for (uint32_t v = 0; v < r->virtual_stages; v++) {
    double cost = r->costs.layer * layers[v] + (v == 0 ? r->costs.embedding : 0);
    cost += v + 1 == r->virtual_stages ? r->costs.head : 0;
    slowest = fmax(slowest, cost);
  }
  return slowest;
}

// Tries every partition of the layers that are left.
static double best_of_all(const bl_partition_request_t *r, uint32_t *layers, uint32_t at, uint32_t left) {
  double best = INFINITY;
  if (at + 1 == r->virtual_stages) {
    layers[at] = left;
    bool fits = r->most == NULL || left <= r->most[at];
    return left >= 1 && fits ? slowest_of(r, layers) : INFINITY;
  }
  for (uint32_t n = 1; n < left; n++) {
    if (r->most == NULL || n <= r->most[at]) {
      layers[at] = n;
      best = fmin(best, best_of_all(r, layers, at + 1, left - n));
    }
  }
  return best;
}

static void partitions_are_the_best_of_all(void **state) {
  (void)state;
  static const bl_partition_costs_t costs[] = {{1, 0, 0}, {1, 0.4, 2.5}, {2, 3, 1}, {1, 0, 9}};
  static const uint32_t most[] = {3, 2, 9, 9};
  const uint16_t stage_of[] = {0, 1, 2, 3};
  for (size_t c = 0; c < 4; c++) {
    for (uint32_t stages = 1; stages <= 4; stages++) {
      for (uint32_t total = stages; total <= 11; total++) {
        for (int limited = 0; limited < 2; limited++) {
          uint32_t layers[4], tried[4], sum = 0;
          bl_partition_request_t r = {.layers = total,
                                      .virtual_stages = stages,
                                      .stages = stages,
                                      .stage_of = stage_of,
                                      .costs = costs[c],
                                      .most = limited ? most : NULL};
          double best = best_of_all(&r, tried, 0, total);
          bl_status_t status = bl_partition_layers(&r, layers);
          assert_int_equal(status, isfinite(best) ? BL_OK : BL_PRECONDITION);
          for (uint32_t v = 0; v < stages && status == BL_OK; v++) {
            sum += layers[v];
            assert_true(layers[v] >= 1 && (!limited || layers[v] <= most[v]));
          }
          if (status == BL_OK && (sum != total || fabs(slowest_of(&r, layers) - best) > 1e-12)) {
            fail_msg("%u layers on %u stages: slowest %g, possible %g", total, stages, slowest_of(&r, layers), best);
          }
        }
      }
    }
  }
}

// A V: the head sits on stage 0 beside the embedding, so that device gets fewer layers.
static void devices_are_levelled_over_their_chunks(void **state) {
  (void)state;
  const uint16_t stage_of[] = {0, 1, 1, 0};
  uint32_t layers[4];
  bl_partition_request_t r = {.layers = 16, .virtual_stages = 4, .stages = 2, .stage_of = stage_of, .costs = {1, 0, 4}};
  assert_int_equal(bl_partition_layers(&r, layers), BL_OK);
  assert_int_equal(layers[0] + layers[3], 6);
  assert_int_equal(layers[1] + layers[2], 10);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(partitions_are_the_best_of_all),
      cmocka_unit_test(devices_are_levelled_over_their_chunks),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
