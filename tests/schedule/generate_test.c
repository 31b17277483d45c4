// SPDX-License-Identifier: Apache-2.0
// Verifies the generators: the classic orders cell by cell, that every name gives valid schedules over a grid of
// shapes, and that requests which cannot be met are refused with their reason.
#include "schedule/generated.h"
#include "schedule/ir/validate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void gpipe_runs_all_forwards_first(void **state) {
  (void)state;
  bl_schedule_t *schedule =
      generate_request(&(bl_schedule_request_t){.name = "gpipe", .stages = 2, .micro_batches = 3});
  expect_row(schedule, 0, "0F0 0F1 0F2 0B0 0B1 0B2");
  expect_row(schedule, 1, "1F0 1F1 1F2 1B0 1B1 1B2");
  bl_schedule_destroy(schedule);
}

static void one_f_one_b_starts_with_its_warm_up(void **state) {
  (void)state;
  bl_schedule_t *schedule = generate_request(&(bl_schedule_request_t){.name = "1f1b", .stages = 3, .micro_batches = 4});
  expect_row(schedule, 0, "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3");
  expect_row(schedule, 1, "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3");
  expect_row(schedule, 2, "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3");
  bl_schedule_destroy(schedule);
}

static void fewer_micro_batches_than_stages_work(void **state) {
  (void)state;
  bl_schedule_t *schedule = generate_request(&(bl_schedule_request_t){.name = "1f1b", .stages = 8, .micro_batches = 1});
  expect_row(schedule, 0, "0F0 0B0");
  expect_row(schedule, 7, "7F0 7B0");
  bl_schedule_destroy(schedule);
}

static void every_name_is_valid_over_a_grid(void **state) {
  (void)state;
  size_t count;
  const bl_schedule_info_t *infos = bl_schedule_infos(&count);
  assert_int_equal(count, 17);
  for (size_t n = 0; n < count; n++) {
    for (uint32_t p = 1; p <= 7; p += p > 2 ? 4 : 1) {
      for (uint32_t m = 1; m <= 13; m += 4) {
        bl_schedule_request_t request = {.name = infos[n].name, .stages = p, .micro_batches = m, .effort = 0.005};
        bl_schedule_t *schedule = NULL;
        bl_error_t err;
        bl_status_t status = bl_schedule_generate(&request, &schedule, &err);
        if (status == BL_INVALID) {
          assert_true(strlen(err.text) > 20); // refused with a reason
          continue;
        }
        assert_int_equal(status, BL_OK);
        bl_schedule_facts_t facts;
        if (bl_schedule_validate(schedule, &facts, &err) != BL_OK) {
          fail_msg("%s p=%u m=%u: %s", infos[n].name, p, m, err.text);
        }
        assert_true(facts.ascending);
        assert_int_equal(facts.splits_backward, infos[n].splits_backward);
        bl_schedule_destroy(schedule);
      }
    }
  }
}

static void names_that_are_not_planned_say_why(void **state) {
  (void)state;
  size_t count;
  const bl_schedule_info_t *infos = bl_schedule_infos(&count);
  for (size_t n = 0; n < count; n++) {
    const char *why = infos[n].not_planned;
    if (infos[n].placement == BL_PLACEMENT_BIDIRECTIONAL) {
      assert_non_null(strstr(why, "one copy"));
    } else {
      assert_null(why);
    }
  }
}

// The two directions mirror each other, in the published order of one unit.
static void chimera_sends_half_of_the_micro_batches_each_way(void **state) {
  (void)state;
  bl_schedule_t *schedule =
      generate_request(&(bl_schedule_request_t){.name = "chimera", .stages = 4, .micro_batches = 4, .effort = 0.02});
  assert_int_equal(schedule->pipes, 2);
  for (uint32_t s = 0; s < 4; s++) {
    uint32_t down = 0, up = 0;
    for (size_t i = 0; i < schedule->lists[s].count; i++) {
      bl_op_t op = schedule->lists[s].ops[i];
      bool second = bl_schedule_pipe(schedule, op.virtual_stage) == 1;
      assert_int_equal(op.micro_batch >= 2, second);
      assert_int_equal(op.virtual_stage, second ? 7 - s : s);
      *(second ? &up : &down) += op.type == BL_OP_F;
    }
    assert_int_equal(down, 2);
    assert_int_equal(up, 2);
  }
  bl_schedule_destroy(schedule);
}

static void forward_only_is_valid_on_any_placement(void **state) {
  (void)state;
  bl_schedule_t *like =
      generate_request(&(bl_schedule_request_t){.name = "gpipe", .stages = 2, .micro_batches = 3, .chunks = 2});
  bl_schedule_t *forward;
  bl_error_t err;
  assert_int_equal(bl_schedule_forward(like, 3, &forward, &err), BL_OK);
  expect_row(forward, 0, "0F0 0F1 2F0 2F1 0F2 2F2");
  assert_int_equal(bl_schedule_validate(forward, NULL, &err), BL_OK);
  bl_schedule_destroy(forward);
  bl_schedule_destroy(like);
  like = generate_request(&(bl_schedule_request_t){.name = "dualpipe", .stages = 2, .micro_batches = 4});
  assert_int_equal(bl_schedule_forward(like, 3, &forward, &err), BL_OK); // through the first of two pipes
  expect_row(forward, 0, "0F0 0F1 0F2");
  expect_row(forward, 1, "1F0 1F1 1F2");
  assert_int_equal(forward->virtual_stages, 2);
  assert_int_equal(bl_schedule_validate(forward, NULL, &err), BL_OK);
  bl_schedule_destroy(forward);
  bl_schedule_destroy(like);
}

static void refuse(bl_schedule_request_t request, bl_status_t status, const char *reason) {
  bl_schedule_t *schedule = NULL;
  bl_error_t err;
  assert_int_equal(bl_schedule_generate(&request, &schedule, &err), status);
  assert_null(schedule);
  if (strstr(err.text, reason) == NULL) {
    fail_msg("\"%s\" does not say \"%s\"", err.text, reason);
  }
}

static void impossible_requests_are_refused_by_name(void **state) {
  (void)state;
  refuse((bl_schedule_request_t){.name = "2f2b", .stages = 2, .micro_batches = 2}, BL_NOT_FOUND, "\"2f2b\"");
  refuse((bl_schedule_request_t){.name = "1f1b", .stages = 0, .micro_batches = 2}, BL_INVALID, "stages");
  refuse((bl_schedule_request_t){.name = "1f1b", .stages = 2, .micro_batches = 0}, BL_INVALID, "micro-batches");
  refuse((bl_schedule_request_t){.name = "1f1b", .stages = 2, .micro_batches = 2, .chunks = 3}, BL_INVALID, "chunk");
  refuse((bl_schedule_request_t){.name = "chimera", .stages = 3, .micro_batches = 4}, BL_INVALID, "even number");
  bl_costs_t costs = BL_COSTS_UNIT;
  costs.every.input = -1;
  refuse((bl_schedule_request_t){.name = "1f1b", .stages = 2, .micro_batches = 2, .costs = &costs}, BL_INVALID,
         "cost of I on virtual stage 0");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(gpipe_runs_all_forwards_first),
      cmocka_unit_test(one_f_one_b_starts_with_its_warm_up),
      cmocka_unit_test(fewer_micro_batches_than_stages_work),
      cmocka_unit_test(every_name_is_valid_over_a_grid),
      cmocka_unit_test(names_that_are_not_planned_say_why),
      cmocka_unit_test(chimera_sends_half_of_the_micro_batches_each_way),
      cmocka_unit_test(forward_only_is_valid_on_any_placement),
      cmocka_unit_test(impossible_requests_are_refused_by_name),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
