// SPDX-License-Identifier: Apache-2.0
// Verifies that building blocks in the real times of their operations can run and hold no more than they may, on random
// shapes, costs and limits; that a step with more micro-batches takes an interval more for each; that blocks known from
// the paper are among them; and that large schedules are made from them.
#include "schedule/generate/timed_block.h"

#include "base/random.h"
#include "schedule/generate.h"
#include "schedule/ir/bound.h"
#include "schedule/ir/peaks.h"
#include "schedule/ir/validate.h"
#include "schedule/search/dispatch.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#define STAGES_MAX 12
#define SHAPES     30
#define BLOCKS     3 // of a shape

typedef struct shape {
  uint32_t stages, limits[STAGES_MAX];
  bl_costs_t costs;
  double work; // of a stage
} shape_t;

static shape_t random_shape(uint64_t *random) {
  shape_t shape = {.stages = 2 + (uint32_t)bl_random_below(1, (*random)++, STAGES_MAX - 1)};
  bl_chunk_costs_t *every = &shape.costs.every;
  // Of 20 in all, so that the block's cells are exact.
  every->forward = 1 + (double)bl_random_below(1, (*random)++, 10);
  every->input = 1 + (double)bl_random_below(1, (*random)++, 9);
  every->weight = 20 - every->forward - every->input;
  shape.costs.boundary = (double)bl_random_below(1, (*random)++, 4);
  shape.work = 40;
  for (uint32_t s = 0; s < shape.stages; s++) {
    shape.limits[s] = shape.stages + 2 + (uint32_t)bl_random_below(1, (*random)++, shape.stages);
  }
  return shape;
}

static bl_schedule_t *repeat(const bl__timed_blocks_t *blocks, uint32_t stages, uint32_t micro_batches) {
  bl_schedule_t *schedule;
  bl_error_t err;
  assert_int_equal(bl_schedule_create("block", BL_PLACEMENT_V, stages, 2, micro_batches, &schedule, NULL), BL_OK);
  assert_int_equal(bl__timed_blocks_repeat(blocks, schedule), BL_OK);
  if (bl_schedule_validate(schedule, NULL, &err) != BL_OK) {
    fail_msg("p=%u m=%u: %s", stages, micro_batches, err.text);
  }
  return schedule;
}

static double end_of(const bl__timed_blocks_t *blocks, const shape_t *shape, uint32_t micro_batches) {
  bl_schedule_t *schedule = repeat(blocks, shape->stages, micro_batches);
  uint32_t peaks[STAGES_MAX];
  double t_end;
  assert_int_equal(bl_schedule_peak_slots(schedule, peaks), BL_OK);
  for (uint32_t s = 0; s < shape->stages; s++) {
    if (peaks[s] > shape->limits[s]) {
      fail_msg("p=%u m=%u: stage %u holds %u blocks of %u", shape->stages, micro_batches, s, peaks[s],
               shape->limits[s]);
    }
  }
  assert_int_equal(bl__dispatch_end(schedule, &shape->costs, (bl__recompute_options_t){0}, &t_end), BL_OK);
  bl_schedule_destroy(schedule);
  return t_end;
}

static void blocks_run_within_their_limits(void **state) {
  (void)state;
  uint64_t random = 0;
  uint32_t seen = 0;
  for (uint32_t k = 0; k < SHAPES; k++) {
    const shape_t shape = random_shape(&random);
    bl__timed_blocks_t *blocks;
    double before = 0;
    assert_int_equal(
        bl__timed_blocks_create(shape.stages, &shape.costs, shape.limits, BL__TIMED_BLOCKS_BUDGET, &blocks), BL_OK);
    for (uint32_t n = 0; n < BLOCKS && bl__timed_blocks_next(blocks); n++, seen++) {
      const double interval = bl__timed_blocks_interval(blocks) * shape.work;
      const uint32_t m = 4 * shape.stages;
      assert_true(interval >= fmax(shape.work, before) * (1 - 1e-12));
      before = interval;
      const double taken = (end_of(blocks, &shape, 2 * m) - end_of(blocks, &shape, m)) / m;
      if (taken > interval * (1 + 1e-9)) {
        fail_msg("p=%u: a micro-batch more takes %g, the interval is %g", shape.stages, taken, interval);
      }
    }
    bl__timed_blocks_destroy(blocks);
  }
  printf("%u blocks of %u shapes\n", seen, SHAPES);
  assert_true(seen > SHAPES);
}

// The interval of the first block within so many device-micro-batches, in times of the work.
static double first_interval(uint32_t stages, const bl_costs_t *costs, uint32_t memory) {
  uint32_t limits[64];
  bl__timed_blocks_t *blocks;
  for (uint32_t s = 0; s < stages; s++) {
    limits[s] = 2 * memory;
  }
  assert_int_equal(bl__timed_blocks_create(stages, costs, limits, BL__TIMED_BLOCKS_BUDGET, &blocks), BL_OK);
  const double interval = bl__timed_blocks_next(blocks) ? bl__timed_blocks_interval(blocks) : INFINITY;
  bl__timed_blocks_destroy(blocks);
  return interval;
}

static void known_blocks_are_found(void **state) {
  (void)state;
  const bl_costs_t unit = BL_COSTS_UNIT, even = {.every = {10, 10, 10, 10}, .boundary = 5},
                   uneven = {.every = {10, 14, 6, 10}, .boundary = 2};
  assert_true(first_interval(8, &unit, 4) == 1); // V-Min, V-Half and V-ZB of the paper wait for nothing
  assert_true(first_interval(8, &unit, 5) == 1);
  assert_true(first_interval(8, &unit, 8) == 1);
  assert_true(first_interval(64, &unit, 22) == 1);
  assert_true(first_interval(64, &even, 33) == 1); // half of the memory of 1F1B, and one
  assert_true(first_interval(64, &uneven, 41) == 1);
  assert_true(first_interval(64, &uneven, 33) < 1.08);
  assert_true(isinf(first_interval(64, &uneven, 2))); // groups
}

// A large schedule has too many operations to be searched: it is what its block is. Bounds with one percent to spare.
static void large_schedules_come_from_them(void **state) {
  (void)state;
#ifdef __SANITIZE_ADDRESS__
  skip(); // nothing of it is not in small ones
#endif
  static const struct {
    double memory, most; // times the bound that knows nothing of memory
  } cases[] = {{33, 1.165}, {40, 1.132}};
  for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
    const bl_costs_t costs = {.every = {10, 14, 6, 10}, .boundary = 2};
    const bl_schedule_request_t request = {
        .name = "adaptive", .stages = 64, .micro_batches = 512, .costs = &costs, .memory = cases[k].memory};
    bl_schedule_t *schedule;
    bl_error_t err;
    double t_end, bound;
    assert_int_equal(bl_schedule_generate(&request, &schedule, &err), BL_OK);
    assert_int_equal(bl__dispatch_end(schedule, &costs, (bl__recompute_options_t){0}, &t_end), BL_OK);
    assert_int_equal(bl_schedule_lower_bound(schedule, &costs, &bound), BL_OK);
    printf("%g device-micro-batches: %g, bound %g\n", cases[k].memory, t_end, bound);
    if (t_end > cases[k].most * bound) {
      fail_msg("%g device-micro-batches: ends at %g, at most %g", cases[k].memory, t_end, cases[k].most * bound);
    }
    bl_schedule_destroy(schedule);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(blocks_run_within_their_limits),
      cmocka_unit_test(known_blocks_are_found),
      cmocka_unit_test(large_schedules_come_from_them),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
