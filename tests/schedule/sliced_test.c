// SPDX-License-Identifier: Apache-2.0
// Verifies orders over slices of sequences: Seq1F1B cell by cell; that every order of one pipe can be cut, stays valid, adds up
// weight gradients in one order and has plans without a deadlock; that a limit of memory holds for what is kept; and
// that a replay of the plans' pages of the KV cache never finds one that two blocks have, or one that is read before
// or after its time.
#include "instrumented.h"
#include "schedule/generated.h"
#include "schedule/ir/peaks.h"
#include "schedule/ir/stage_plan.h"
#include "schedule/ir/validate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static bl_schedule_t *cut(const char *name, uint32_t p, uint32_t m, uint32_t slices) {
  return generate_request(&(bl_schedule_request_t){
      .name = name, .stages = p, .micro_batches = m, .slices = slices, .effort = SEARCH_EFFORT});
}

static void backwards_go_from_the_last_slice_to_the_first(void **state) {
  (void)state;
  bl_schedule_t *schedule = cut("seq1f1b", 2, 2, 2);
  expect_row(schedule, 0, "0F0 0F0.1 0F1 0B0.1 0F1.1 0B0 0B1.1 0B1");
  expect_row(schedule, 1, "1F0 1F0.1 1B0.1 1F1 1B0 1F1.1 1B1.1 1B1");
  bl_schedule_destroy(schedule);
  schedule = cut("zb-h1", 1, 1, 3);
  expect_row(schedule, 0, "0F0 0F0.1 0F0.2 0I0.2 0W0.2 0I0.1 0W0.1 0I0 0W0");
  bl_schedule_destroy(schedule);
}

// What holds each page: a block, or -1.
typedef struct {
  int64_t *pages, *gradients;
} held_t;

static void take(int64_t *holders, uint32_t count, uint32_t index, int64_t block) {
  assert_true(index < count);
  assert_int_equal(holders[index], -1);
  holders[index] = block;
}

// All slices up to the operation's own hold their pages, and where a backward adds to gradients, those.
static void expect_held(const bl_schedule_t *schedule, const bl_stage_plan_t *plan, const held_t *held, bl_op_t op) {
  const bool backward = bl_op_type_starts_backward((bl_op_type_t)op.type), last = op.slice + 1u == schedule->slices;
  for (int slice = op.slice; slice >= 0; slice--) {
    bl_op_t of = op;
    of.slice = (uint8_t)slice;
    const int64_t block = (int64_t)bl_schedule_block(schedule, of);
    assert_int_equal(held->pages[plan->page_of[block]], block);
    if (backward && !(last && slice == op.slice)) {
      assert_int_equal(held->gradients[plan->page_gradient_of[block]], block);
    }
  }
}

static void replay(const bl_schedule_t *schedule, const bl_stage_plan_t *plan) {
  held_t held = {malloc((plan->pages + 1) * sizeof(int64_t)), malloc((plan->page_gradients + 1) * sizeof(int64_t))};
  memset(held.pages, 0xff, (plan->pages + 1) * sizeof(int64_t));
  memset(held.gradients, 0xff, (plan->page_gradients + 1) * sizeof(int64_t));
  const uint32_t last = schedule->slices - 1;
  for (size_t i = 0; i < plan->op_count; i++) {
    bl_op_t op = plan->ops[i].op;
    const size_t block = bl_schedule_block(schedule, op);
    const bool backward = bl_op_type_starts_backward((bl_op_type_t)op.type);
    if (op.type == BL_OP_F) {
      take(held.pages, plan->pages, plan->page_of[block], (int64_t)block);
    }
    for (uint32_t slice = 0; backward && op.slice == last && slice < last; slice++) {
      const size_t other = block - last + slice;
      take(held.gradients, plan->page_gradients, plan->page_gradient_of[other], (int64_t)other);
    }
    if (op.type != BL_OP_W) {
      expect_held(schedule, plan, &held, op);
    }
    if (backward) {
      held.pages[plan->page_of[block]] = -1;
      held.gradients[op.slice < last ? plan->page_gradient_of[block] : plan->page_gradients] = -1;
    }
    for (uint32_t slice = 0; schedule->forward_only && op.slice == last && slice <= last; slice++) {
      held.pages[plan->page_of[block - last + slice]] = -1;
    }
  }
  for (uint32_t i = 0; i < plan->pages; i++) {
    assert_int_equal(held.pages[i], -1);
  }
  free(held.pages);
  free(held.gradients);
}

static void expect_planned(const bl_schedule_t *schedule) {
  bl_stage_plan_t *plans = calloc(schedule->stages, sizeof *plans);
  bl_error_t err;
  for (uint32_t s = 0; s < schedule->stages; s++) {
    assert_int_equal(bl_stage_plan_init(schedule, s, (bl_plan_limits_t){.prefetch = 1}, &plans[s], &err), BL_OK);
    replay(schedule, &plans[s]);
  }
  if (bl_plan_check_deadlock(schedule, plans, &err) != BL_OK) {
    fail_msg("%s p=%u m=%u in %u slices%s: %s", schedule->name, schedule->stages, schedule->micro_batches,
             schedule->slices, schedule->forward_only ? ", forward" : "", err.text);
  }
  for (uint32_t s = 0; s < schedule->stages; s++) {
    bl_stage_plan_cleanup(&plans[s]);
  }
  free(plans);
}

static void expect_sound(const bl_schedule_info_t *info, uint32_t p, uint32_t m, uint32_t slices) {
  bl_schedule_request_t request = {
      .name = info->name, .stages = p, .micro_batches = m, .slices = slices, .effort = SEARCH_EFFORT};
  bl_schedule_t *schedule, *forward;
  bl_schedule_facts_t facts;
  bl_error_t err;
  if (bl_schedule_generate(&request, &schedule, &err) != BL_OK) {
    assert_string_equal(info->name, "dualpipe-v"); // needs more micro-batches
    return;
  }
  if (bl_schedule_validate(schedule, &facts, &err) != BL_OK) {
    fail_msg("%s p=%u m=%u in %u slices: %s", info->name, p, m, slices, err.text);
  }
  assert_true(facts.ascending);
  assert_int_equal(schedule->slices, slices);
  assert_int_equal(schedule->micro_batches, m);
  expect_planned(schedule);
  assert_int_equal(bl_schedule_forward(schedule, m, &forward, &err), BL_OK);
  expect_planned(forward);
  bl_schedule_destroy(forward);
  bl_schedule_destroy(schedule);
}

static void every_order_of_one_pipe_can_be_cut(void **state) {
  (void)state;
  size_t count;
  const bl_schedule_info_t *infos = bl_schedule_infos(&count);
  for (size_t n = 0; n < count; n++) {
    if (infos[n].placement == BL_PLACEMENT_BIDIRECTIONAL) {
      bl_schedule_t *schedule;
      bl_error_t err;
      bl_schedule_request_t request = {.name = infos[n].name, .stages = 2, .micro_batches = 4, .slices = 2};
      assert_int_equal(bl_schedule_generate(&request, &schedule, &err), BL_INVALID);
      assert_non_null(strstr(err.text, "two pipes"));
      continue;
    }
    for (uint32_t p = 1; p <= 4; p += FEW_OR_ALL(2, 1)) {
      for (uint32_t m = 1; m <= 5; m += 2) {
        for (uint32_t slices = 2; slices <= 5; slices += FEW_OR_ALL(3, 1)) {
          expect_sound(&infos[n], p, m, slices);
        }
      }
    }
  }
}

static void stages_keep_a_sequence_of_slices_more_than_1f1b_blocks(void **state) {
  (void)state;
  for (uint32_t slices = 2; slices <= 8; slices *= 2) {
    bl_schedule_t *schedule = cut("seq1f1b", 4, 8, slices);
    uint32_t peaks[4];
    assert_int_equal(bl_schedule_peak_slots(schedule, peaks), BL_OK);
    for (uint32_t s = 0; s < 4; s++) {
      assert_int_equal(peaks[s], 4 - s + slices - 1);
    }
    bl_schedule_destroy(schedule);
  }
}

static void a_limit_is_of_what_is_kept(void **state) {
  (void)state;
  static const char *const names[] = {"zb-h1", "zb-v", "adaptive"};
  for (size_t n = 0; n < sizeof names / sizeof names[0]; n++) {
    for (double memory = 2; memory <= 4; memory += 1) {
      bl_schedule_request_t request = {.name = names[n],
                                       .stages = 4,
                                       .micro_batches = 4,
                                       .slices = 4,
                                       .memory = memory,
                                       .keep_placement = true,
                                       .effort = SEARCH_EFFORT};
      bl_schedule_t *schedule = generate_request(&request);
      uint32_t peaks[4];
      assert_int_equal(bl_schedule_peak_slots(schedule, peaks), BL_OK);
      for (uint32_t s = 0; s < 4; s++) {
        assert_true(peaks[s] * bl_schedule_block_weight(schedule) <= memory + 1e-9);
      }
      bl_schedule_destroy(schedule);
    }
  }
  bl_schedule_t *schedule;
  bl_error_t err;
  const double of_stage[] = {2, 2, 1.5, 1.25}; // one for each stage is the same
  bl_schedule_request_t each = {.name = "zb-h1",
                                .stages = 4,
                                .micro_batches = 4,
                                .slices = 4,
                                .memory_of_stage = of_stage,
                                .effort = SEARCH_EFFORT};
  uint32_t peaks[4];
  schedule = generate_request(&each);
  assert_int_equal(bl_schedule_peak_slots(schedule, peaks), BL_OK);
  for (uint32_t s = 0; s < 4; s++) {
    assert_true(peaks[s] * bl_schedule_block_weight(schedule) <= of_stage[s] + 1e-9);
  }
  assert_true(peaks[0] > 5); // of 8: the others of a sequence are not counted twice
  bl_schedule_destroy(schedule);
  bl_schedule_request_t request = {.name = "zb-h1", .stages = 2, .micro_batches = 2, .slices = 4, .memory = 0.5};
  assert_int_equal(bl_schedule_generate(&request, &schedule, &err), BL_INVALID);
  assert_non_null(strstr(err.text, "no sequence of 4 slices"));
}

// Nor does the order of whole sequences that 1f1b has with recomputation take the place of one over slices.
static void adaptive_stays_cut_when_it_recomputes(void **state) {
  (void)state;
  bl_schedule_request_t request = {
      .name = "adaptive", .stages = 4, .micro_batches = 8, .slices = 2, .recompute = true, .effort = SEARCH_EFFORT};
  bl_schedule_t *schedule = generate_request(&request);
  size_t forwards = 0;
  for (size_t i = 0; i < schedule->lists[0].count; i++) {
    forwards += schedule->lists[0].ops[i].type == BL_OP_F;
  }
  assert_int_equal(schedule->slices, 2);
  assert_int_equal(forwards, 2 * 8 * 2); // chunks, micro-batches, slices
  bl_schedule_destroy(schedule);
}

// Where another placement would be faster.
static void chunks_stay_where_they_are(void **state) {
  (void)state;
  const bl_costs_t costs = {.every = {1, 2, 1, 1}, .boundary = 5};
  bl_schedule_request_t request = {
      .name = "adaptive", .stages = 4, .micro_batches = 4, .slices = 2, .costs = &costs, .effort = SEARCH_EFFORT};
  bl_schedule_t *schedule = generate_request(&request);
  bl_schedule_facts_t facts;
  bl_error_t err;
  assert_int_equal(bl_schedule_validate(schedule, &facts, &err), BL_OK);
  bl_schedule_destroy(schedule);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(backwards_go_from_the_last_slice_to_the_first),
      cmocka_unit_test(every_order_of_one_pipe_can_be_cut),
      cmocka_unit_test(stages_keep_a_sequence_of_slices_more_than_1f1b_blocks),
      cmocka_unit_test(a_limit_is_of_what_is_kept),
      cmocka_unit_test(chunks_stay_where_they_are),
      cmocka_unit_test(adaptive_stays_cut_when_it_recomputes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
