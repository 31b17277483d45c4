// SPDX-License-Identifier: Apache-2.0
// Verifies what a stage gives back when no driver calls any more: also plans that were replaced and that no run has
// destroyed yet, but nothing that a configuration in progress uses. A plan that is dropped leaves nothing to its engine.
#include "pod.h"
#include "stage_core.h"

#include "loop/timer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define REST_MS 1

static bl_loop_t *loop;

static void stop(bl_timer_t *timer, void *context) {
  (void)timer;
  (void)context;
  bl_loop_stop(loop);
}

static bl_stage_t *make_stage(void) {
  bl_error_t err;
  bl_stage_t *stage;
  const bl_stage_options_t options = {.pod = BL_POD_NONE, .rest_ms = REST_MS, .first_core = -1};
  assert_int_equal(bl_loop_create(&loop, &err), BL_OK);
  assert_int_equal(bl_stage_create(loop, &options, &stage, &err), BL_OK);
  stage->retired[stage->retired_count++] = calloc(1, sizeof(bl_prepared_t));
  return stage;
}

// Long enough for several looks, each of which follows the one before.
static void run_silently(void) {
  bl_error_t err;
  bl_timer_t *timer;
  assert_int_equal(bl_timer_create(loop, stop, NULL, &timer, &err), BL_OK);
  bl_timer_start(timer, 20 * REST_MS, 0);
  bl_loop_run(loop);
  bl_timer_destroy(timer);
}

static void test_replaced_plans_go(void **state) {
  (void)state;
  bl_stage_t *stage = make_stage();
  run_silently();
  assert_int_equal(stage->retired_count, 0);
  bl_stage_destroy(stage);
  bl_loop_destroy(loop);
}

static void test_not_while_it_is_configured(void **state) {
  (void)state;
  bl_stage_t *stage = make_stage();
  stage->step.phase = BL_STAGE_CONFIGURING;
  run_silently();
  assert_int_equal(stage->retired_count, 1);
  stage->step.phase = BL_STAGE_IDLE;
  bl_stage_destroy(stage);
  bl_loop_destroy(loop);
}

// The end of the process interrupts the engine's parking, whatever ran last.
static void test_a_plan_goes_with_its_parking(void **state) {
  (void)state;
  bl_stage_t *stage = make_stage();
  bl_parking_t parking = {.ops = NULL};
  bl_engine_t *engine = calloc(1, sizeof *engine);
  engine->parking = &parking;
  stage->engine = engine;
  stage->plans[0] = calloc(1, sizeof(bl_prepared_t));
  stage->running_plan = stage->plans[0];
  bl__plans_drop(stage);
  assert_null(stage->running_plan);
  assert_null(engine->parking);
  stage->engine = NULL;
  free(engine);
  bl_stage_destroy(stage);
  bl_loop_destroy(loop);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_replaced_plans_go),
      cmocka_unit_test(test_not_while_it_is_configured),
      cmocka_unit_test(test_a_plan_goes_with_its_parking),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
