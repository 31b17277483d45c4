// SPDX-License-Identifier: Apache-2.0
// Verifies which plans with evictions a stage accepts: only with somewhere to park, in training, within its
// slots, and never under full recomputation; each refusal with its status and reason. The list carries its transfer
// mode, which decides how many slots it needs.
#include "executor/plan.h"
#include "schedule/generate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

// In serial mode 0F2 takes the slot that 0E1 left; in the other 0E1 runs beside it.
#define LIST "0F0,0F1,0E1,0F2,0B0,0L1,0B1,0B2\n"
static const char serial[] = LIST, overlapping[] = "# transfers: overlap\n" LIST;

static bl_schedule_t *configured(uint32_t micro_batches) {
  bl_schedule_request_t request = {.name = "1f1b", .stages = 1, .micro_batches = micro_batches};
  bl_schedule_t *schedule = NULL;
  assert_int_equal(bl_schedule_generate(&request, &schedule, NULL), BL_OK);
  return schedule;
}

static void expect_status(bl_executor_plan_request_t request, const char *csv, bl_status_t wanted, const char *reason) {
  bl_executor_plan_t *plan = NULL;
  bl_error_t err = {0};
  bl_schedule_t *schedule = configured(3);
  request.csv = csv;
  request.csv_bytes = strlen(csv);
  request.configured = schedule;
  bl_status_t status = bl_executor_plan_create(&request, &plan, &err);
  if (status != wanted || (reason != NULL && strstr(err.text, reason) == NULL)) {
    fail_msg("%s: found %s '%s', expected %s '%s'", csv, bl_status_name(status), err.text, bl_status_name(wanted),
             reason != NULL ? reason : "");
  }
  bl_executor_plan_destroy(plan);
  bl_schedule_destroy(schedule);
}

static void transfers(void **state) {
  (void)state;
  bl_executor_plan_request_t request = {.version = 1, .kind = BL_RUN_TRAIN, .slots = 2, .edges = 16, .parks = true};
  expect_status(request, serial, BL_OK, NULL);
  expect_status(request, overlapping, BL_EXHAUSTED, "needs one slot more than the 2 available");
  request.slots = 3;
  expect_status(request, overlapping, BL_OK, NULL);
}

static void nowhere_to_park(void **state) {
  (void)state;
  bl_executor_plan_request_t request = {.version = 1, .kind = BL_RUN_TRAIN, .slots = 3, .edges = 16};
  expect_status(request, serial, BL_UNAVAILABLE, "cannot run 0E1: no store takes evicted blocks");
  expect_status(request, "0F0,0F1,0F2,0B0,0B1,0B2\n", BL_OK, NULL);
}

static void full_recomputation(void **state) {
  (void)state;
  bl_executor_plan_request_t request = {
      .version = 1, .kind = BL_RUN_TRAIN, .slots = 3, .edges = 16, .parks = true, .recomputes = true};
  expect_status(request, serial, BL_INVALID, "the kept input is the block, and there is nothing to evict");
}

static void too_few_slots(void **state) {
  (void)state;
  bl_executor_plan_request_t request = {.version = 1, .kind = BL_RUN_TRAIN, .slots = 1, .edges = 16, .parks = true};
  expect_status(request, serial, BL_EXHAUSTED, "needs one slot more than the 1 available");
}

static void other_kind_of_run(void **state) {
  (void)state;
  bl_executor_plan_request_t request = {.version = 1, .kind = BL_RUN_VALIDATE, .slots = 3, .edges = 16, .parks = true};
  expect_status(request, serial, BL_UNIMPLEMENTED, "in this kind of run");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(transfers),     cmocka_unit_test(nowhere_to_park),   cmocka_unit_test(full_recomputation),
      cmocka_unit_test(too_few_slots), cmocka_unit_test(other_kind_of_run),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
