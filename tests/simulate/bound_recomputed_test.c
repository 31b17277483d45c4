// SPDX-License-Identifier: Apache-2.0
// Verifies the bound that knows what full recomputation adds to an order: no order ends before it, of all there are for
// small shapes of one and of two chunks a stage on every placement, with random costs, and of those that searches find;
// where nothing but R's is in the way it is the optimum.
#include "base/random.h"
#include "schedule/generate.h"
#include "schedule/ir/bound.h"
#include "schedule/ir/peaks.h"
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
#include <stdlib.h>

#include <cmocka.h>

#define SEED       20261127
#define STAGES_MAX 4
#define KINDS_MAX  6 // types of two chunks
#define OPS_MAX    12
#define ORDERS_MAX 512
#ifdef __SANITIZE_ADDRESS__
#define DRAWN      1
#define EVERY_MOST 3000 // orders of all stages together that are looked at, evenly spread
#define EFFORT     0.002
#else
#define DRAWN      6
#define EVERY_MOST 20000
#define EFFORT     0.02
#endif

typedef struct order {
  bl_op_t ops[OPS_MAX]; // virtual_stage: the chunk of the stage
} order_t;

typedef struct orders {
  order_t all[ORDERS_MAX];
  uint32_t count, length;
} orders_t;

static const bl_op_type_t split[] = {BL_OP_F, BL_OP_I, BL_OP_W}, fused[] = {BL_OP_F, BL_OP_B};

// Appends all orders of a stage that go on from `done` operations of each type of each chunk.
static void extend(orders_t *orders, uint32_t m, uint32_t chunks, bool fuses, uint32_t done[KINDS_MAX], order_t *order,
                   uint32_t length) {
  const uint32_t types = fuses ? 2 : 3, kinds = types * chunks;
  if (length == kinds * m) {
    assert_true(orders->count < ORDERS_MAX);
    orders->all[orders->count++] = *order;
    orders->length = length;
    return;
  }
  for (uint32_t kind = 0; kind < kinds; kind++) {
    if (done[kind] == m || (kind % types > 0 && done[kind] == done[kind - 1])) {
      continue;
    }
    const bl_op_type_t type = fuses ? fused[kind % types] : split[kind % types];
    order->ops[length] =
        (bl_op_t){.type = (uint8_t)type, .virtual_stage = (uint16_t)(kind / types), .micro_batch = done[kind]};
    done[kind]++;
    extend(orders, m, chunks, fuses, done, order, length + 1);
    done[kind]--;
  }
}

typedef struct shape {
  bl_placement_t placement;
  uint32_t p, m, chunks;
  bool fuses;
} shape_t;

// The virtual stage that is a chunk of a stage.
static uint16_t chunk_at(const bl_schedule_t *schedule, uint32_t stage, uint32_t chunk) {
  for (uint32_t s = 0; s < schedule->virtual_stages; s++) {
    if (schedule->stage_of[s] == stage && chunk-- == 0) {
      return (uint16_t)s;
    }
  }
  fail();
  return 0;
}

static void hold_to(const bl_schedule_t *plain, const bl_costs_t *costs, uint32_t chunks, double t_end, double *alone) {
  uint32_t peaks[STAGES_MAX], levelled[STAGES_MAX], worst = 0;
  double own, level;
  assert_int_equal(bl_schedule_peak_slots(plain, peaks), BL_OK);
  for (uint32_t s = 0; s < plain->stages; s++) {
    worst = peaks[s] > worst ? peaks[s] : worst;
  }
  for (uint32_t s = 0; s < plain->stages; s++) {
    levelled[s] = worst;
  }
  assert_int_equal(bl_schedule_bound_recomputed(plain, costs, peaks, chunks, &own), BL_OK);
  assert_int_equal(bl_schedule_bound_recomputed(plain, costs, levelled, chunks, &level), BL_OK);
  assert_int_equal(bl_schedule_bound_recomputed(plain, costs, NULL, chunks, alone), BL_OK);
  if (own > t_end * (1 + 1e-9) || level > own * (1 + 1e-9) || *alone > level * (1 + 1e-9)) {
    fail_msg(
        "%s p=%u m=%u, %u chunks of it recomputed: an order ends at %.17g; bounds %.17g within each stage's memory, "
        "%.17g within the worst, %.17g of any",
        plain->name, plain->stages, plain->micro_batches, chunks, t_end, own, level, *alone);
  }
}

// The least end of all orders of a shape; *bound is that of any memory.
static double optimum(const orders_t *orders, const shape_t *shape, const bl_costs_t *costs, uint32_t chunks,
                      double *bound) {
  uint64_t all = 1;
  double best = INFINITY;
  for (uint32_t s = 0; s < shape->p; s++) {
    all *= orders->count;
  }
  const uint64_t step = all > EVERY_MOST ? all / EVERY_MOST | 1 : 1;
  for (uint64_t choice = 0; choice < all; choice += step) {
    bl_schedule_t *plain, *recompute;
    bl_simulation_t result;
    uint64_t rest = choice;
    assert_int_equal(bl_schedule_create("every", shape->placement, shape->p, shape->chunks, shape->m, &plain, NULL),
                     BL_OK);
    for (uint32_t s = 0; s < shape->p; s++, rest /= orders->count) {
      for (uint32_t k = 0; k < orders->length; k++) {
        bl_op_t op = orders->all[rest % orders->count].ops[k];
        op.virtual_stage = chunk_at(plain, s, op.virtual_stage);
        assert_int_equal(bl_schedule_append(plain, s, op), BL_OK);
      }
    }
    if (bl_schedule_validate(plain, NULL, NULL) == BL_OK) {
      assert_int_equal(bl_schedule_create_like(plain, &recompute, NULL), BL_OK);
      assert_int_equal(bl_schedule_copy_lists(plain, recompute), BL_OK);
      assert_int_equal(bl_schedule_recompute_chunks(recompute, chunks, NULL), BL_OK);
      assert_int_equal(bl_simulate(recompute, costs, &result, NULL), BL_OK);
      hold_to(plain, costs, chunks, result.t_end, bound);
      best = fmin(best, result.t_end);
      bl_simulation_cleanup(&result);
      bl_schedule_destroy(recompute);
    }
    bl_schedule_destroy(plain);
  }
  return step == 1 ? best : INFINITY;
}

static const shape_t shapes[] = {
    {BL_PLACEMENT_LOOPED, 1, 3, 1, false},     {BL_PLACEMENT_LOOPED, 2, 2, 1, false},
    {BL_PLACEMENT_LOOPED, 2, 3, 1, false},     {BL_PLACEMENT_LOOPED, 3, 2, 1, false},
    {BL_PLACEMENT_LOOPED, 3, 3, 1, true},      {BL_PLACEMENT_LOOPED, 4, 2, 1, true},
    {BL_PLACEMENT_V, 1, 1, 2, false},          {BL_PLACEMENT_V, 2, 1, 2, false},
    {BL_PLACEMENT_V, 3, 1, 2, false},          {BL_PLACEMENT_V, 2, 2, 2, true},
    {BL_PLACEMENT_LOOPED, 2, 1, 2, false},     {BL_PLACEMENT_LOOPED, 3, 1, 2, false},
    {BL_PLACEMENT_LOOPED, 2, 2, 2, true},      {BL_PLACEMENT_CONTIGUOUS, 2, 1, 2, false},
    {BL_PLACEMENT_CONTIGUOUS, 3, 1, 2, false}, {BL_PLACEMENT_CONTIGUOUS, 2, 2, 2, true},
};

static bl_chunk_costs_t draw(uint64_t key, uint64_t *n, double longest) {
  const bl_chunk_costs_t chunk = {1 + 19 * bl_random_uniform(key, *n), 1 + 19 * bl_random_uniform(key, *n + 1),
                                  20 * bl_random_uniform(key, *n + 2), longest * bl_random_uniform(key, *n + 3)};
  *n += 4;
  return chunk;
}

static void no_order_ends_before_it(void **state) {
  (void)state;
  const uint64_t key = bl_random_key(test_seed(SEED), "bound of R");
  orders_t *orders = malloc(sizeof *orders);
  uint32_t known = 0, met = 0;
  uint64_t n = 0;
  for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++) {
    const shape_t *shape = &shapes[k];
    uint32_t done[KINDS_MAX] = {0};
    order_t order;
    orders->count = 0;
    extend(orders, shape->m, shape->chunks, shape->fuses, done, &order, 0);
    for (uint32_t drawn = 0; drawn < DRAWN; drawn++) {
      const bool unit = drawn == 0, uneven = bl_random_below(key, n++, 2) == 0;
      const double longest = bl_random_below(key, n++, 2) == 0 ? 20 : 200;
      bl_chunk_costs_t chunks[2 * STAGES_MAX];
      for (uint32_t s = 0; s < shape->p * shape->chunks; s++) {
        chunks[s] = uneven || s == 0 ? draw(key, &n, longest) : chunks[0];
      }
      const bl_costs_t uniform = BL_COSTS_UNIT,
                       random = {.chunks = chunks, .boundary = 15 * bl_random_uniform(key, n++)};
      const uint32_t recomputed = (uint32_t)bl_random_below(key, n++, shape->chunks + 1);
      double bound;
      const double best = optimum(orders, shape, unit ? &uniform : &random, unit ? 0 : recomputed, &bound);
      known += isfinite(best);
      met += isfinite(best) && best <= bound * (1 + 1e-9);
    }
  }
  print_message("of %u shapes and costs whose optimum is known, the bound is it for %u\n", known, met);
  assert_true(known >= DRAWN * 10 && met * 2 >= known);
  free(orders);
}

// What a search finds is as early as it could make it.
static void no_search_ends_before_it(void **state) {
  (void)state;
  static const bl_costs_t costs[] = {{.every = {1, 1, 1, 1}},
                                     {.every = {10, 14, 6, 10}, .boundary = 2},
                                     {.every = {10, 14, 6, 45}, .boundary = 5},
                                     {.every = {10, 11, 9, 0.5}, .boundary = 1}};
  size_t count, compared = 0, met = 0;
  const bl_schedule_info_t *infos = bl_schedule_infos(&count);
  for (size_t k = 0; k < count * (sizeof costs / sizeof costs[0]); k++) {
    const bl_costs_t *own = &costs[k / count];
    for (uint32_t chunks = 0; chunks < infos[k % count].default_chunks; chunks++) {
      const bl_schedule_request_t request = {.name = infos[k % count].name,
                                             .stages = 4,
                                             .micro_batches = 8,
                                             .costs = own,
                                             .slices = 1,
                                             .recompute = true,
                                             .recompute_chunks = chunks,
                                             .effort = EFFORT};
      bl_schedule_t *made, *plain;
      bl_simulation_t result;
      double bound;
      assert_int_equal(bl_schedule_generate(&request, &made, NULL), BL_OK);
      assert_int_equal(bl_schedule_create_like(made, &plain, NULL), BL_OK);
      for (uint32_t s = 0; s < made->stages; s++) {
        for (size_t i = 0; i < made->lists[s].count; i++) {
          const bl_op_t op = made->lists[s].ops[i];
          assert_int_equal(op.type == BL_OP_R ? BL_OK : bl_schedule_append(plain, s, op), BL_OK);
        }
      }
      assert_int_equal(bl_simulate(made, own, &result, NULL), BL_OK);
      hold_to(plain, own, chunks, result.t_end, &bound);
      compared++;
      met += result.t_end <= bound * (1 + 1e-9);
      bl_simulation_cleanup(&result);
      bl_schedule_destroy(plain);
      bl_schedule_destroy(made);
    }
  }
  print_message("%zu orders, %zu of them end at the bound of any memory\n", compared, met);
}

// At unit costs, in 1F1B's memory, it is reached, so that a search stops there: all R's but those of the last virtual
// stage.
static void searches_reach_it(void **state) {
  (void)state;
  static const struct {
    const char *name;
    double bound; // behind the first F of the stage with the last head of those that recompute all
  } reached[] = {
      {"zb-h2", 2 + 8 * 4}, {"zb-v", 3 + 8 * 8}, {"grouped-interleaved", 2 + 8 * 8}, {"adaptive", 2 + 8 * 8}};
  const bl_costs_t costs = BL_COSTS_UNIT;
  for (size_t k = 0; k < sizeof reached / sizeof reached[0]; k++) {
    const bl_schedule_request_t request = {
        .name = reached[k].name, .stages = 4, .micro_batches = 8, .recompute = true, .effort = 1};
    bl_schedule_t *made;
    bl_simulation_t result;
    assert_int_equal(bl_schedule_generate(&request, &made, NULL), BL_OK);
    assert_int_equal(bl_simulate(made, &costs, &result, NULL), BL_OK);
    if (result.t_end != reached[k].bound) {
      fail_msg("%s ends at %g, the bound is %g", reached[k].name, result.t_end, reached[k].bound);
    }
    bl_simulation_cleanup(&result);
    bl_schedule_destroy(made);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(no_order_ends_before_it),
      cmocka_unit_test(no_search_ends_before_it),
      cmocka_unit_test(searches_reach_it),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
