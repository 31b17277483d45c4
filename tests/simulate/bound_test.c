// SPDX-License-Identifier: Apache-2.0
// Verifies the lower bound and zb-h2 against the true optimum with uneven costs, slow boundaries and recomputation: for
// shapes so small that every order of every stage can be tried with every order of the others, one chunk a stage, with
// the backward whole and split, and random costs from a fixed seed (BALLAST_TEST_SEED sets it).
#include "base/random.h"
#include "schedule/generate.h"
#include "schedule/ir/recompute.h"
#include "schedule/ir/validate.h"
#include "seed.h"
#include "simulate/simulate.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#define SEED       20261122
#define ORDERS_MAX 64 // of one stage: F's, I's and W's of 3 micro-batches, each type in order, have 42
#define OPS_MAX    9
#ifdef __SANITIZE_ADDRESS__
#define DRAWN 2
#else
#define DRAWN 30
#endif

typedef struct orders {
  bl_op_t ops[ORDERS_MAX][OPS_MAX];
  uint32_t count, length;
} orders_t;

// Appends all orders that go on from `done` operations of each type.
static void extend(orders_t *orders, uint32_t m, bool fused, uint32_t done[3], bl_op_t *ops, uint32_t length) {
  static const bl_op_type_t split_types[] = {BL_OP_F, BL_OP_I, BL_OP_W}, fused_types[] = {BL_OP_F, BL_OP_B};
  const uint32_t kinds = fused ? 2 : 3;
  if (length == kinds * m) {
    assert_true(orders->count < ORDERS_MAX);
    for (uint32_t k = 0; k < length; k++) {
      orders->ops[orders->count][k] = ops[k];
    }
    orders->length = length;
    orders->count++;
    return;
  }
  for (uint32_t kind = 0; kind < kinds; kind++) {
    if (done[kind] == m || (kind > 0 && done[kind] == done[kind - 1])) {
      continue;
    }
    bl_op_type_t type = fused ? fused_types[kind] : split_types[kind];
    ops[length] = (bl_op_t){.type = (uint8_t)type, .micro_batch = done[kind]};
    done[kind]++;
    extend(orders, m, fused, done, ops, length + 1);
    done[kind]--;
  }
}

// The least end of a step with one chunk a stage, whatever memory it takes; *bound is the largest bound of any order.
static double optimum(uint32_t p, uint32_t m, bool fused, const bl_costs_t *costs, bool recompute, double *bound) {
  orders_t orders = {0};
  uint32_t done[3] = {0};
  bl_op_t ops[OPS_MAX];
  double best = INFINITY;
  extend(&orders, m, fused, done, ops, 0);
  uint64_t all = 1;
  for (uint32_t s = 0; s < p; s++) {
    all *= orders.count;
  }
  *bound = 0;
  for (uint64_t choice = 0; choice < all; choice++) {
    bl_schedule_t *schedule;
    bl_simulation_t result;
    uint64_t rest = choice;
    assert_int_equal(bl_schedule_create("every", BL_PLACEMENT_LOOPED, p, 1, m, &schedule, NULL), BL_OK);
    for (uint32_t s = 0; s < p; s++, rest /= orders.count) {
      for (uint32_t k = 0; k < orders.length; k++) {
        bl_op_t op = orders.ops[rest % orders.count][k];
        op.virtual_stage = (uint16_t)s;
        assert_int_equal(bl_schedule_append(schedule, s, op), BL_OK);
      }
    }
    assert_int_equal(recompute ? bl_schedule_recompute(schedule, NULL) : BL_OK, BL_OK);
    if (bl_schedule_validate(schedule, NULL, NULL) == BL_OK) {
      assert_int_equal(bl_simulate(schedule, costs, &result, NULL), BL_OK);
      best = fmin(best, result.t_end);
      if (result.lower_bound > result.t_end * (1 + 1e-9)) {
        fail_msg("p=%u m=%u: an order ends at %g, its bound is %g", p, m, result.t_end, result.lower_bound);
      }
      if (result.bound_within < result.lower_bound || result.bound_within > result.t_end * (1 + 1e-9)) {
        fail_msg("p=%u m=%u: an order ends at %g, its bound is %g, within its memory %g", p, m, result.t_end,
                 result.lower_bound, result.bound_within);
      }
      // What is not recomputed for one order may be for another; the bound is one of those that do the same work.
      *bound = recompute ? 0 : fmax(*bound, result.lower_bound);
      bl_simulation_cleanup(&result);
    }
    bl_schedule_destroy(schedule);
  }
  return best;
}

static bl_chunk_costs_t draw(uint64_t key, uint64_t *n, bool recompute) {
  bl_chunk_costs_t chunk = {1 + 19 * bl_random_uniform(key, *n), 1 + 19 * bl_random_uniform(key, *n + 1),
                            20 * bl_random_uniform(key, *n + 2), 0};
  chunk.recompute = recompute ? 20 * bl_random_uniform(key, *n + 3) : chunk.forward;
  *n += 4;
  return chunk;
}

static void compare(const char *name, uint32_t p, uint32_t m, const bl_costs_t *costs, bool recompute, bool reached) {
  const bool fused = !bl_schedule_info_find(name)->splits_backward;
  bl_schedule_request_t request = {
      .name = name, .stages = p, .micro_batches = m, .costs = costs, .recompute = recompute, .effort = 0.1};
  bl_schedule_t *schedule;
  bl_simulation_t result;
  double bound, best = optimum(p, m, fused, costs, recompute, &bound);
  assert_int_equal(bl_schedule_generate(&request, &schedule, NULL), BL_OK);
  assert_int_equal(bl_simulate(schedule, costs, &result, NULL), BL_OK);
  if (result.t_end < best * (1 - 1e-9) || bound > best * (1 + 1e-9)) {
    fail_msg("%s p=%u m=%u: ends at %g, bound %g; no order ends before %g", name, p, m, result.t_end, bound, best);
  }
  if (reached && result.t_end > best * (1 + 1e-9)) {
    fail_msg("%s p=%u m=%u, F, I, W, R = %g, %g, %g, %g on stage 0, boundary %g%s: ends at %g, the best order at %g",
             name, p, m, bl_costs_chunk(costs, 0)->forward, bl_costs_chunk(costs, 0)->input,
             bl_costs_chunk(costs, 0)->weight, bl_costs_chunk(costs, 0)->recompute, costs->boundary,
             recompute ? ", recomputing" : "", result.t_end, best);
  }
  bl_simulation_cleanup(&result);
  bl_schedule_destroy(schedule);
}

// zb-h2 has room for all micro-batches of these shapes, so that nothing but the order is left to find.
static void no_order_beats_the_bound_and_the_search(void **state) {
  (void)state;
  static const uint32_t shapes[][2] = {{1, 3}, {2, 2}, {2, 3}, {3, 2}, {4, 1}};
  uint64_t key = bl_random_key(test_seed(SEED), "bound"), n = 0;
  for (uint32_t k = 0; k < DRAWN; k++) {
    for (size_t shape = 0; shape < sizeof shapes / sizeof shapes[0]; shape++) {
      const uint32_t p = shapes[shape][0], m = shapes[shape][1];
      const bool recompute = bl_random_below(key, n++, 2) == 0, uneven = bl_random_below(key, n++, 2) == 0;
      bl_chunk_costs_t chunks[4];
      for (uint32_t s = 0; s < p; s++) {
        chunks[s] = uneven || s == 0 ? draw(key, &n, recompute) : chunks[0];
      }
      bl_costs_t costs = {.chunks = chunks, .boundary = 15 * bl_random_uniform(key, n++)};
      compare("zb-h2", p, m, &costs, recompute, true);
      compare("1f1b", p, m, &costs, recompute, false);
      compare("gpipe", p, m, &costs, recompute, false);
    }
  }
}

// The bound is the optimum where nothing but the pipeline itself takes time: at unit costs, and for fused backwards.
static void the_bound_is_met_where_the_optimum_is_known(void **state) {
  (void)state;
  static const char *const names[] = {"gpipe", "1f1b", "zb-h1", "zb-h2"};
  const bl_costs_t costs[] = {BL_COSTS_UNIT, {.every = {10, 14, 14, 10}}};
  for (size_t c = 0; c < sizeof costs / sizeof costs[0]; c++) {
    for (size_t name = 0; name < (c == 0 ? sizeof names / sizeof names[0] : 2); name++) {
      for (uint32_t p = 1; p <= 8; p *= 2) {
        bl_schedule_request_t request = {
            .name = names[name], .stages = p, .micro_batches = 2 * p, .costs = &costs[c], .effort = 0.2};
        bl_schedule_t *schedule;
        bl_simulation_t result;
        assert_int_equal(bl_schedule_generate(&request, &schedule, NULL), BL_OK);
        assert_int_equal(bl_simulate(schedule, &costs[c], &result, NULL), BL_OK);
        if (fabs(result.t_end - result.lower_bound) > 1e-9 * result.t_end) {
          fail_msg("%s p=%u: ends at %g, bound %g", names[name], p, result.t_end, result.lower_bound);
        }
        bl_simulation_cleanup(&result);
        bl_schedule_destroy(schedule);
      }
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(no_order_beats_the_bound_and_the_search),
      cmocka_unit_test(the_bound_is_met_where_the_optimum_is_known),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
