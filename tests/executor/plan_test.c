// SPDX-License-Identifier: Apache-2.0
// Verifies which plans a stage accepts: recomputation only where the stage was configured with room for it, nothing but
// forwards in runs that do not train, and never more slots or edge buffers than there are.
#include "executor/plan.h"

#include "schedule/generate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define ONE_STAGE "0F0,0F1,0B0,0B1\n"
#define AGAIN     "0F0,0F1,0R0,0B0,0R1,0B1\n"

static bl_schedule_t *configured;

static int set_up(void **state) {
  (void)state;
  bl_schedule_request_t request = {.name = "gpipe", .stages = 1, .micro_batches = 2};
  bl_error_t err;
  return bl_schedule_generate(&request, &configured, &err) == BL_OK ? 0 : -1;
}

static int tear_down(void **state) {
  (void)state;
  bl_schedule_destroy(configured);
  return 0;
}

static bl_executor_plan_request_t request_for(const char *csv) {
  return (bl_executor_plan_request_t){.version = 7,
                                      .kind = BL_RUN_TRAIN,
                                      .csv = csv,
                                      .csv_bytes = strlen(csv),
                                      .configured = configured,
                                      .slots = 2,
                                      .edges = 4};
}

static void accepts(bl_executor_plan_request_t request, uint32_t slots) {
  bl_executor_plan_t *plan;
  bl_error_t err;
  if (bl_executor_plan_create(&request, &plan, &err) != BL_OK) {
    fail_msg("%s: %s", request.csv, err.text);
  }
  assert_int_equal(plan->stage.slots, slots);
  bl_executor_plan_destroy(plan);
}

static void refuses(bl_executor_plan_request_t request, bl_status_t expected, const char *text) {
  bl_executor_plan_t *plan;
  bl_error_t err;
  bl_status_t status = bl_executor_plan_create(&request, &plan, &err);
  if (status != expected || strstr(err.text, text) == NULL) {
    fail_msg("%s: expected %s '%s', got %s '%s'", request.csv, bl_status_name(expected), text, bl_status_name(status),
             err.text);
  }
}

static void what_is_made_again(void **state) {
  (void)state;
  bl_executor_plan_request_t request = request_for(AGAIN);
  request.slots = 1; // F's own while it runs, then R's (schedule/balance/drop.h)
  accepts(request, 1);
  request.recomputes = true; // those of R: F has none
  accepts(request, 1);
  request.csv = ONE_STAGE; // keeps both blocks
  request.csv_bytes = strlen(ONE_STAGE);
  refuses(request, BL_EXHAUSTED, "0F1");
  request.slots = 2;
  accepts(request, 2);
}

static void only_training_goes_backward(void **state) {
  (void)state;
  bl_executor_plan_request_t request = request_for(ONE_STAGE);
  request.kind = BL_RUN_VALIDATE;
  refuses(request, BL_UNIMPLEMENTED, "stage 0 cannot run 0B0 in this kind of run");
  request.csv = AGAIN;
  request.csv_bytes = strlen(AGAIN);
  request.recomputes = true;
  refuses(request, BL_UNIMPLEMENTED, "stage 0 cannot run 0R0 in this kind of run");
}

static void edge_buffers_are_counted(void **state) {
  (void)state;
  bl_executor_plan_request_t request = request_for(AGAIN);
  request.recomputes = true;
  request.edges = 3;
  refuses(request, BL_EXHAUSTED, "needs 4 edge buffers on stage 0, it has 3");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_is_made_again),
      cmocka_unit_test(only_training_goes_backward),
      cmocka_unit_test(edge_buffers_are_counted),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
