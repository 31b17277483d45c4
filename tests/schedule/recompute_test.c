// SPDX-License-Identifier: Apache-2.0
// Verifies full recomputation as a pass: where R stands, that every schedule stays valid and free of deadlock with one
// slot where the backward is fused, that plans give the slot to R and not to F, that CSV carries it, and what is
// refused.
#include "schedule/ir/recompute.h"

#include "schedule/csv/csv.h"
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

static bl_schedule_t *recomputed(const char *name, uint32_t p, uint32_t m) {
  bl_schedule_t *schedule = generate(name, p, m);
  bl_error_t err;
  if (bl_schedule_recompute(schedule, &err) != BL_OK) {
    fail_msg("%s: %s", name, err.text);
  }
  return schedule;
}

static void expect_op(bl_op_t op, bl_op_t expected) {
  char a[BL_OP_TEXT], b[BL_OP_TEXT];
  assert_string_equal(bl_op_format(op, a), bl_op_format(expected, b));
}

static void an_r_stands_before_each_backward_that_lost_its_block(void **state) {
  (void)state;
  bl_schedule_t *schedule = recomputed("1f1b", 2, 3);
  expect_row(schedule, 0, "0F0 0F1 0R0 0B0 0F2 0R1 0B1 0R2 0B2");
  expect_row(schedule, 1, "1F0 1B0 1F1 1B1 1F2 1B2"); // F keeps what is used at once
  bl_schedule_destroy(schedule);
  schedule = recomputed("gpipe", 1, 2);
  expect_row(schedule, 0, "0F0 0F1 0R0 0B0 0R1 0B1");
  bl_schedule_destroy(schedule);
}

// Every schedule: operations but R are the same in the same order, and all facts hold.
static void every_schedule_stays_valid(void **state) {
  (void)state;
  size_t count, tried = 0;
  const bl_schedule_info_t *infos = bl_schedule_infos(&count);
  for (size_t n = 0; n < count; n++) {
    tried++;
    bl_schedule_t *plain = generate(infos[n].name, 4, 8), *schedule = recomputed(infos[n].name, 4, 8);
    bl_schedule_facts_t facts;
    bl_error_t err;
    uint32_t slots[4], peaks[4], kept[4];
    if (bl_schedule_validate(schedule, &facts, &err) != BL_OK || bl_plan_counts(schedule, slots, NULL, &err) != BL_OK) {
      fail_msg("%s: %s", infos[n].name, err.text);
    }
    assert_true(facts.recomputes && facts.ascending);
    assert_int_equal(bl_schedule_peak_slots(schedule, peaks), BL_OK);
    assert_int_equal(bl_schedule_peak_slots(plain, kept), BL_OK);
    for (uint32_t s = 0; s < 4; s++) {
      assert_int_equal(slots[s], peaks[s]);
      assert_true(peaks[s] <= kept[s]);
      assert_true(facts.splits_backward || peaks[s] == 1);
      const bl_op_list_t *before = &plain->lists[s], *after = &schedule->lists[s];
      size_t at = 0;
      for (size_t i = 0; i < after->count; i++) {
        if (after->ops[i].type != BL_OP_R) {
          expect_op(after->ops[i], before->ops[at++]);
        }
      }
      assert_int_equal(at, before->count);
    }
    bl_schedule_destroy(plain);
    bl_schedule_destroy(schedule);
  }
  assert_true(tried >= 4);
}

// The executor's view: F has edge buffers and no slot, R the slot and the same input, and neither receives or sends
// what only the other should.
static void plans_give_the_slot_to_r(void **state) {
  (void)state;
  bl_schedule_t *schedule = recomputed("1f1b", 2, 3);
  bl_stage_plan_t plan;
  bl_error_t err;
  assert_int_equal(bl_stage_plan_init(schedule, 0, (bl_plan_limits_t){.slots = 1, .prefetch = 1}, &plan, &err), BL_OK);
  const bl_planned_op_t *forward = &plan.ops[0], *recompute = &plan.ops[2], *backward = &plan.ops[3];
  assert_int_equal(forward->slot, BL_NONE);
  assert_int_equal(forward->send_to, 1);
  assert_int_equal(recompute->op.type, BL_OP_R);
  assert_int_equal(recompute->slot, 0);
  assert_int_equal(recompute->input, forward->input);
  assert_int_equal(recompute->send_to, BL_NONE);
  assert_int_equal(recompute->receive, BL_NONE); // it runs while the gradient is on its way
  assert_int_equal(backward->slot, 0);
  assert_true(backward->releases_slot && backward->receive != BL_NONE);
  bl_stage_plan_cleanup(&plan);
  bl_schedule_destroy(schedule);
}

static void csv_carries_it(void **state) {
  (void)state;
  bl_schedule_t *schedule = recomputed("zb-h1", 3, 6), *read;
  char *text;
  size_t size_bytes;
  bl_error_t err;
  assert_int_equal(bl_csv_write(schedule, &text, &size_bytes), BL_OK);
  if (bl_csv_read(text, size_bytes, "plan", &read, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  for (uint32_t s = 0; s < 3; s++) {
    assert_int_equal(read->lists[s].count, schedule->lists[s].count);
    for (size_t i = 0; i < read->lists[s].count; i++) {
      expect_op(read->lists[s].ops[i], schedule->lists[s].ops[i]);
    }
  }
  free(text);
  bl_schedule_destroy(read);
  bl_schedule_destroy(schedule);
}

static void once_is_enough(void **state) {
  (void)state;
  bl_schedule_t *schedule = recomputed("1f1b", 2, 3);
  const size_t count = bl_schedule_op_count(schedule);
  bl_error_t err;
  assert_int_equal(bl_schedule_recompute(schedule, &err), BL_INVALID);
  assert_non_null(strstr(err.text, "stage 0, operation 2 (0R0)"));
  assert_int_equal(bl_schedule_op_count(schedule), count);
  bl_schedule_t *forward;
  assert_int_equal(bl_schedule_forward(schedule, 3, &forward, &err), BL_OK);
  assert_int_equal(bl_schedule_recompute(forward, &err), BL_OK);
  assert_int_equal(bl_schedule_op_count(forward), 6);
  bl_schedule_destroy(forward);
  bl_schedule_destroy(schedule);
}

// The first chunk of every stage alone, in the order of the model on a V as well.
static void some_chunks_keep_their_blocks(void **state) {
  (void)state;
  static const char *const names[] = {"interleaved", "v-half", "gpipe"};
  for (size_t n = 0; n < 3; n++) {
    bl_schedule_request_t request = {.name = names[n],
                                     .stages = 4,
                                     .micro_batches = 8,
                                     .chunks = 2,
                                     .recompute = true,
                                     .recompute_chunks = 1,
                                     .effort = 0.02};
    bl_schedule_t *schedule;
    bl_error_t err;
    uint32_t recompute[2] = {0};
    assert_int_equal(bl_schedule_generate(&request, &schedule, &err), BL_OK);
    assert_int_equal(bl_schedule_validate(schedule, NULL, &err), BL_OK);
    for (uint32_t s = 0; s < 4; s++) {
      for (size_t i = 0; i < schedule->lists[s].count; i++) {
        bl_op_t op = schedule->lists[s].ops[i];
        recompute[op.virtual_stage / 4] += op.type == BL_OP_R;
      }
    }
    assert_int_equal(recompute[0], 4 * 8);
    assert_int_equal(recompute[1], 0);
    bl_schedule_destroy(schedule);
    request.recompute_chunks = 3;
    assert_int_equal(bl_schedule_generate(&request, &schedule, &err), BL_INVALID);
    assert_non_null(strstr(err.text, "cannot recompute 3 chunks of a stage, it has 2"));
    request = (bl_schedule_request_t){.name = "grouped-interleaved",
                                      .stages = 4,
                                      .micro_batches = 8,
                                      .chunks = 4,
                                      .recompute = true,
                                      .recompute_chunks = 1,
                                      .slots = 0.5};
    assert_int_equal(bl_schedule_generate(&request, &schedule, &err), BL_INVALID);
    assert_non_null(strstr(err.text, "slots: must be at least 0.75 where 3 of 4 chunks keep their blocks"));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_r_stands_before_each_backward_that_lost_its_block),
      cmocka_unit_test(every_schedule_stays_valid),
      cmocka_unit_test(plans_give_the_slot_to_r),
      cmocka_unit_test(csv_carries_it),
      cmocka_unit_test(once_is_enough),
      cmocka_unit_test(some_chunks_keep_their_blocks),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
