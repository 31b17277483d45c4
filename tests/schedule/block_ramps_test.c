// SPDX-License-Identifier: Apache-2.0
// Verifies building blocks with ramps: whatever the block, every stage runs each of its operations once, in the order of
// micro-batches; that of V-Half on even numbers of stages runs within its memory and ends, at unit costs and as it is, two
// cells after the time before which none within that memory can.
#include "schedule/generate/block_ramps.h"

#include "schedule/ir/bound.h"
#include "schedule/ir/peaks.h"
#include "schedule/ir/timing.h"
#include "schedule/ir/validate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define STAGES_MAX 32

static const bl_costs_t costs = BL_COSTS_UNIT;

static bl_schedule_t *make(const bl__block_shape_t *shape, uint32_t p, uint32_t m, uint32_t *held) {
  bl__block_row_t rows[STAGES_MAX];
  bl_schedule_t *schedule;
  assert_true(bl__block_rows(shape, p, rows));
  *held = 0;
  for (uint32_t s = 0; s < p; s++) {
    const uint32_t peak = bl__block_peak(&rows[s]);
    *held = peak > *held ? peak : *held;
  }
  assert_int_equal(bl_schedule_create("ramps", BL_PLACEMENT_V, p, 2, m, &schedule, NULL), BL_OK);
  assert_int_equal(bl__block_ramps(rows, *held, schedule), BL_OK);
  return schedule;
}

static void half_the_memory_of_1f1b_is_used_as_well_as_can_be(void **state) {
  (void)state;
  const bl__block_shape_t shape = {.down = 2, .up = 1, .reversal = {1, 4, 2}};
  for (uint32_t p = 4; p <= STAGES_MAX; p += 2) {
    for (uint32_t m = p; m <= 4 * p; m += p) {
      uint32_t held, peaks[STAGES_MAX], limits[STAGES_MAX];
      bl_schedule_t *schedule = make(&shape, p, m, &held);
      bl__timing_t timing;
      bl_error_t err;
      double bound;
      if (bl_schedule_validate(schedule, NULL, &err) != BL_OK) {
        fail_msg("p=%u m=%u: %s", p, m, err.text);
      }
      assert_int_equal(bl_schedule_peak_slots(schedule, peaks), BL_OK);
      for (uint32_t s = 0; s < p; s++) {
        assert_in_range(peaks[s], 1, held);
        limits[s] = held;
      }
      assert_int_equal(bl__timing_init(&timing, schedule, &costs), BL_OK);
      assert_int_equal(bl_schedule_bound_within(schedule, &costs, limits, false, &bound), BL_OK);
      if (timing.t_end < bound || timing.t_end > bound + 2) {
        fail_msg("p=%u m=%u: ends at %g within %u blocks, bound %g", p, m, timing.t_end, held, bound);
      }
      bl__timing_cleanup(&timing);
      bl_schedule_destroy(schedule);
    }
  }
}

static void every_operation_is_there_once(void **state) {
  (void)state;
  uint32_t made = 0;
  for (uint32_t k = 0; k < 5 * 5 * 6 * 6 * 6; k++) {
    const bl__block_shape_t shape = {.down = 1 + k % 5,
                                     .up = 1 + k / 5 % 5,
                                     .reversal = {1 + k / 25 % 6, 1 + k / 150 % 6, 1 + k / 900 % 6},
                                     .first = k % 3,
                                     .bend = 5};
    bl__block_row_t rows[STAGES_MAX];
    const uint32_t p = 2 + k % 9, m = 1 + k % 23;
    uint32_t held;
    if (!bl__block_rows(&shape, p, rows)) {
      continue;
    }
    bl_schedule_t *schedule = make(&shape, p, m, &held);
    for (uint32_t s = 0; s < p; s++) {
      uint32_t next[2 * STAGES_MAX][BL_OP_TYPES] = {{0}};
      assert_int_equal(schedule->lists[s].count, 6 * m);
      for (size_t i = 0; i < 6 * m; i++) {
        const bl_op_t op = schedule->lists[s].ops[i];
        assert_int_equal(op.micro_batch, next[op.virtual_stage][op.type]++);
      }
    }
    bl_schedule_destroy(schedule);
    made++;
  }
  assert_in_range(made, 100, 5 * 5 * 6 * 6 * 6);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_operation_is_there_once),
      cmocka_unit_test(half_the_memory_of_1f1b_is_used_as_well_as_can_be),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
