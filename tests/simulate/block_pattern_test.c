// SPDX-License-Identifier: Apache-2.0
// Verifies building blocks given by users: 1F1B written as one gives 1F1B, peaks stay within the lifespan bound, and
// what is wrong with a block is named with stage, operation and time.
#include "schedule/generate.h"
#include "schedule/generate/block_pattern.h"
#include "schedule/ir/validate.h"
#include "simulate/simulate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

// 1F1B on four stages: F 1, B 2, so that T is 3.
static const uint32_t line[] = {0, 1, 2, 3}, down[] = {0, 1, 2, 3}, up[] = {10, 8, 6, 4};
static const bl_block_pattern_t classic = {.name = "classic",
                                           .stages = 4,
                                           .virtual_stages = 4,
                                           .interval = 3,
                                           .lengths = {1, 1, 1},
                                           .placement = line,
                                           .forward = down,
                                           .input = up};

// A V of two stages with split backward.
static const uint32_t v_placement[] = {0, 1, 1, 0}, v_forward[] = {0, 1, 2, 3}, v_input[] = {10, 9, 6, 5},
                      v_weight[] = {14, 11, 10, 7};
static const bl_block_pattern_t folded = {.name = "folded",
                                          .stages = 2,
                                          .virtual_stages = 4,
                                          .interval = 6,
                                          .lengths = {1, 1, 1},
                                          .placement = v_placement,
                                          .forward = v_forward,
                                          .input = v_input,
                                          .weight = v_weight};

static bl_schedule_t *repeat(const bl_block_pattern_t *block, uint32_t micro_batches) {
  bl_schedule_t *schedule = NULL;
  bl_error_t err;
  bl_error_clear(&err);
  if (bl_block_pattern_check(block, &err) != BL_OK ||
      bl_block_pattern_repeat(block, micro_batches, &schedule, &err) != BL_OK ||
      bl_schedule_validate(schedule, NULL, &err) != BL_OK) {
    fail_msg("%s, m=%u: %s", block->name, micro_batches, err.text);
  }
  return schedule;
}

static void the_block_of_1f1b_gives_1f1b(void **state) {
  (void)state;
  bl_schedule_t *made = repeat(&classic, 9), *known;
  bl_schedule_request_t request = {.name = "1f1b", .stages = 4, .micro_batches = 9};
  assert_int_equal(bl_schedule_generate(&request, &known, NULL), BL_OK);
  for (uint32_t s = 0; s < 4; s++) {
    assert_int_equal(made->lists[s].count, known->lists[s].count);
    for (size_t i = 0; i < known->lists[s].count; i++) {
      assert_memory_equal(&made->lists[s].ops[i], &known->lists[s].ops[i], sizeof(bl_op_t));
    }
  }
  bl_schedule_destroy(known);
  bl_schedule_destroy(made);
}

static void peaks_stay_within_the_lifespan_bound(void **state) {
  (void)state;
  const bl_block_pattern_t *const blocks[] = {&classic, &folded};
  bl_costs_t costs = BL_COSTS_UNIT;
  assert_true(bl_block_pattern_bound(&classic, 0) == 4); // lives 12 of 3
  assert_true(bl_block_pattern_bound(&classic, 3) == 1);
  assert_true(bl_block_pattern_bound(&folded, 0) == 2); // 15 and 5 of 6: three blocks and one, of half a micro-batch
  for (size_t b = 0; b < 2; b++) {
    for (uint32_t m = 1; m <= 20; m++) {
      bl_schedule_t *schedule = repeat(blocks[b], m);
      bl_simulation_t result;
      assert_int_equal(bl_simulate(schedule, &costs, &result, NULL), BL_OK);
      // Squeezed: no later than the last operation of the block that is repeated.
      uint32_t last = blocks[b] == &classic ? 12 : 15;
      assert_true(result.t_end <= last + (m - 1) * blocks[b]->interval);
      for (uint32_t s = 0; s < blocks[b]->stages; s++) {
        double bound = bl_block_pattern_bound(blocks[b], s);
        assert_true(result.peak[s] <= bound);
        assert_true(m < 8 || result.peak[s] >= bound / 2);
      }
      bl_simulation_cleanup(&result);
      bl_schedule_destroy(schedule);
    }
  }
}

static void refuse(bl_block_pattern_t block, const char *reason) {
  bl_error_t err;
  assert_int_equal(bl_block_pattern_check(&block, &err), BL_INVALID);
  if (strstr(err.text, reason) == NULL) {
    fail_msg("\"%s\" does not say \"%s\"", err.text, reason);
  }
}

static void faults_are_named(void **state) {
  (void)state;
  bl_block_pattern_t block = classic;
  static const uint32_t beyond[] = {0, 1, 2, 4}, twice[] = {0, 1, 2, 2}, early[] = {0, 1, 1, 3},
                        apart[] = {10, 8, 7, 4};
  block.placement = beyond;
  refuse(block, "virtual stage 3 is on stage 4, which does not exist; there are stages 0 to 3");
  block.placement = twice;
  refuse(block, "stage 3 of 4 holds no virtual stage");
  block = classic;
  block.forward = early;
  refuse(block, "2F starts at 1, but needs 1F, which runs from 1 to 2");
  block = classic;
  block.input = apart;
  refuse(block, "1B starts at 8, but needs 2B, which runs from 7 to 9");
  block = classic;
  block.interval = 4;
  refuse(block, "stage 1: 1F at 1 and 1B at 8 collide at time 1 of the interval 4");
  block.interval = 1;
  refuse(block, "stage 0: 0B takes 2, longer than the interval 1");
  block.interval = 0;
  refuse(block, "interval");
  block = folded;
  block.lengths[2] = 0;
  refuse(block, "W must take from 1");
  static const uint32_t together[] = {14, 12, 10, 7};
  block = folded;
  block.weight = together; // stage 0 is as before; on stage 1 12 = 0 and 6 = 0 modulo 6
  refuse(block, "stage 1: 1W at 12 and 2I at 6 collide at time 0 of the interval 6");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_block_of_1f1b_gives_1f1b),
      cmocka_unit_test(peaks_stay_within_the_lifespan_bound),
      cmocka_unit_test(faults_are_named),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
