// SPDX-License-Identifier: Apache-2.0
// Verifies stage plans: that a replay which tracks every slot and edge buffer never finds one used twice or used
// after its release, that counts equal the peaks, and that the check for deadlocks passes and can fail.
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

static bl_schedule_t *generate_chunks(const char *name, uint32_t p, uint32_t m, uint32_t v) {
  bl_schedule_request_t request = {.name = name, .stages = p, .micro_batches = m, .chunks = v, .effort = SEARCH_EFFORT};
  return generate_request(&request);
}

// Follows a plan as the executor does and checks that every index is free when taken and held when used.
static void replay(const bl_schedule_t *schedule, const bl_stage_plan_t *plan) {
  int64_t *slot_owner = malloc((plan->slots + 1) * sizeof *slot_owner);
  int64_t *edge_owner = malloc((plan->edges + 1) * sizeof *edge_owner); // the boundary's block of the buffer
  memset(slot_owner, 0xff, (plan->slots + 1) * sizeof *slot_owner);
  memset(edge_owner, 0xff, (plan->edges + 1) * sizeof *edge_owner);
  size_t posted = 0, m = schedule->micro_batches;
  for (size_t i = 0; i < plan->op_count; i++) {
    for (; posted < plan->receive_count && plan->receives[posted].post_at <= i; posted++) {
      const bl_planned_receive_t *receive = &plan->receives[posted];
      assert_in_range(receive->buffer, 0, plan->edges - 1);
      int64_t boundary =
          (int64_t)(receive->virtual_stage + (receive->kind == BL_EDGE_DY)) * (int64_t)m + receive->micro_batch;
      assert_int_equal(edge_owner[receive->buffer], receive->kind == BL_EDGE_X ? -1 : boundary);
      edge_owner[receive->buffer] = boundary;
      assert_int_equal(plan->ops[receive->needed].receive, posted);
    }
    const bl_planned_op_t *op = &plan->ops[i];
    int64_t block = (int64_t)bl_schedule_block(schedule, op->op);
    int64_t in = (int64_t)(op->op.virtual_stage * m + op->op.micro_batch), out = in + (int64_t)m;
    assert_true(op->receive == BL_NONE || op->receive < posted);
    assert_in_range(op->slot, 0, plan->slots - 1);
    assert_in_range(op->input, 0, plan->edges - 1);
    assert_in_range(op->output, 0, plan->edges - 1);
    if (op->op.type == BL_OP_F) {
      assert_int_equal(slot_owner[op->slot], -1);
      slot_owner[op->slot] = block;
      assert_int_equal(edge_owner[op->output], -1);
      edge_owner[op->output] = out;
      if (bl_schedule_is_first(schedule, op->op.virtual_stage)) {
        assert_int_equal(edge_owner[op->input], -1);
        edge_owner[op->input] = in;
      }
    }
    assert_int_equal(slot_owner[op->slot], block);
    assert_int_equal(edge_owner[op->input], in);
    assert_int_equal(edge_owner[op->output], out);
    slot_owner[op->slot] = op->releases_slot ? -1 : slot_owner[op->slot];
    edge_owner[op->input] = op->releases_input ? -1 : edge_owner[op->input];
    edge_owner[op->output] = op->releases_output ? -1 : edge_owner[op->output];
  }
  assert_int_equal(posted, plan->receive_count);
  for (uint32_t i = 0; i < plan->slots; i++) {
    assert_int_equal(slot_owner[i], -1);
  }
  for (uint32_t i = 0; i < plan->edges; i++) {
    assert_int_equal(edge_owner[i], -1);
  }
  free(edge_owner);
  free(slot_owner);
}

static void check_plans(const bl_schedule_t *schedule) {
  uint32_t peaks[16];
  assert_int_equal(bl_schedule_peak_slots(schedule, peaks), BL_OK);
  bl_stage_plan_t plans[16];
  bl_error_t err;
  for (uint32_t prefetch = 0; prefetch < 3; prefetch++) {
    for (uint32_t s = 0; s < schedule->stages; s++) {
      bl_plan_limits_t limits = {.slots = peaks[s], .prefetch = prefetch};
      assert_int_equal(bl_stage_plan_init(schedule, s, limits, &plans[s], &err), BL_OK);
      assert_int_equal(plans[s].slots, peaks[s]);
      replay(schedule, &plans[s]);
    }
    if (bl_plan_check_deadlock(schedule, plans, &err) != BL_OK) {
      fail_msg("%s", err.text);
    }
    for (uint32_t s = 0; s < schedule->stages; s++) {
      bl_stage_plan_cleanup(&plans[s]);
    }
  }
}

static void plans_of_all_schedules_that_run_replay(void **state) {
  (void)state;
  size_t count;
  const bl_schedule_info_t *infos = bl_schedule_infos(&count);
  for (size_t n = 0; n < count; n++) {
    for (uint32_t p = 1; p <= 5; p++) {
      for (uint32_t m = 1; m <= 11; m += 5) {
        bl_schedule_request_t request = {
            .name = infos[n].name, .stages = p, .micro_batches = m, .effort = SEARCH_EFFORT};
        bl_schedule_t *schedule = NULL;
        if (bl_schedule_generate(&request, &schedule, NULL) == BL_OK) {
          check_plans(schedule);
          bl_schedule_destroy(schedule);
        }
      }
    }
  }
}

static void chunks_on_one_stage_share_their_boundary(void **state) {
  (void)state;
  for (uint32_t p = 1; p <= 3; p++) {
    bl_schedule_t *schedule = generate_chunks("gpipe", p, 4, 3);
    check_plans(schedule);
    bl_stage_plan_t plan;
    assert_int_equal(bl_stage_plan_init(schedule, 0, (bl_plan_limits_t){0}, &plan, NULL), BL_OK);
    // On one stage: 4 boundaries of 4 micro-batches. On several: each chunk has both its ends.
    assert_int_equal(plan.edges, p == 1 ? 16 : 24);
    bl_stage_plan_cleanup(&plan);
    bl_schedule_destroy(schedule);
  }
}

static void forward_only_needs_one_slot(void **state) {
  (void)state;
  bl_schedule_t *like = generate_chunks("1f1b", 3, 4, 1), *forward;
  assert_int_equal(bl_schedule_forward(like, 5, &forward, NULL), BL_OK);
  uint32_t peaks[3];
  assert_int_equal(bl_schedule_peak_slots(forward, peaks), BL_OK);
  assert_int_equal(peaks[0], 1);
  check_plans(forward);
  bl_schedule_destroy(forward);
  bl_schedule_destroy(like);
}

static void one_f_one_b_takes_the_known_counts(void **state) {
  (void)state;
  bl_schedule_t *schedule = generate_chunks("1f1b", 4, 8, 1);
  uint32_t slots[4], edges[4];
  bl_error_t err;
  assert_int_equal(bl_plan_counts(schedule, slots, edges, &err), BL_OK);
  for (uint32_t s = 0; s < 4; s++) {
    bl_stage_plan_t least; // without prefetch
    assert_int_equal(bl_stage_plan_init(schedule, s, (bl_plan_limits_t){0}, &least, &err), BL_OK);
    assert_int_equal(slots[s], 4 - s);
    assert_int_equal(least.edges, 2 * (4 - s));                // input and output of every block in flight
    assert_int_equal(edges[s], 2 * (4 - s) + (s > 0 ? 1 : 0)); // and the next x, received during a backward
    bl_stage_plan_cleanup(&least);
  }
  bl_schedule_destroy(schedule);
}

static void too_few_slots_name_stage_and_operation(void **state) {
  (void)state;
  bl_schedule_t *schedule = generate_chunks("1f1b", 4, 8, 1);
  bl_stage_plan_t plan;
  bl_error_t err;
  assert_int_equal(bl_stage_plan_init(schedule, 1, (bl_plan_limits_t){.slots = 2}, &plan, &err), BL_EXHAUSTED);
  assert_string_equal(err.text, "stage 1, operation 2 (1F2): needs one slot more than the 2 available; schedule 1f1b "
                                "needs 3 slots on this stage");
  bl_schedule_destroy(schedule);
}

static void a_receive_posted_too_late_is_found(void **state) {
  (void)state;
  bl_schedule_t *schedule = generate_chunks("1f1b", 2, 2, 1);
  bl_stage_plan_t plans[2];
  bl_error_t err;
  for (uint32_t s = 0; s < 2; s++) {
    assert_int_equal(bl_stage_plan_init(schedule, s, (bl_plan_limits_t){.prefetch = 1}, &plans[s], &err), BL_OK);
  }
  plans[1].receives[0].post_at = 3; // x of its first operation
  assert_int_equal(bl_plan_check_deadlock(schedule, plans, &err), BL_INTERNAL);
  assert_non_null(strstr(err.text, "stage 1: 1F0 waits for a receive that cannot be posted"));
  assert_non_null(strstr(err.text, "stage 0: 0B0 waits for a message that is not sent"));
  bl_stage_plan_cleanup(&plans[0]);
  bl_stage_plan_cleanup(&plans[1]);
  bl_schedule_destroy(schedule);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(plans_of_all_schedules_that_run_replay),   cmocka_unit_test(forward_only_needs_one_slot),
      cmocka_unit_test(chunks_on_one_stage_share_their_boundary), cmocka_unit_test(one_f_one_b_takes_the_known_counts),
      cmocka_unit_test(too_few_slots_name_stage_and_operation),   cmocka_unit_test(a_receive_posted_too_late_is_found),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
