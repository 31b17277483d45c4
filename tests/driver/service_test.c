// SPDX-License-Identifier: Apache-2.0
// Verifies ballast.v1.Driver as its callers see it: watchers get everything once, also late ones; a watcher that keeps a
// record holds back the next commit until it acknowledges; Status, Stop, and the end of streams. Before there is a driver
// they hear that it is starting, and then its events, or why there is none.
#include "driver/driver_world.h"
#include "driver/watcher_wire.h"
#include "service_wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

#define RECORD 0x5eedu

typedef struct scene {
  driver_world_t world;
  bl_driver_service_t *service;
  bl_rpc_server_t *server;
  bl_driver_t *driver;
  watcher_t watcher, other; // on one channel
  bool over, told_to_stop;
} scene_t;

static scene_t scene;

static void changed(void *context) {
  (void)context;
  bl_driver_service_changed(scene.service);
}

static bool may_commit(void *context, uint64_t *recorder) {
  (void)context;
  return bl_driver_service_may_commit(scene.service, recorder);
}

static void ended(int exit_code, void *context) {
  (void)exit_code;
  (void)context;
  scene.over = true;
  bl_driver_service_end(scene.service);
}

static void told_to_stop(void *context) {
  (void)context;
  scene.told_to_stop = true;
}

static void make_driver(void) {
  bl_error_t err;
  bl_driver_options_t options = {.rpc = scene.world.rpc,
                                 .job = &scene.world.job,
                                 .training = &scene.world.training,
                                 .observer = {&scene, changed, may_commit, ended}};
  assert_int_equal(bl_driver_create(&options, &scene.driver, &err), BL_OK);
  bl_driver_service_set_driver(scene.service, scene.driver);
}

// The driver is still to be made.
static void open_early_scene(unsigned steps) {
  scene = (scene_t){0};
  world_open(&scene.world, steps, "validate_every: 0");
  bl_error_t err;
  char address[BL_RPC_ADDRESS_BYTES];
  const bl_driver_start_t start = {
      .run = "a run", .steps = steps, .waiting_for = "the search", .stop = told_to_stop, .context = &scene};
  assert_int_equal(bl_driver_service_create(scene.world.loop, &start, &scene.service, &err), BL_OK);
  assert_int_equal(bl_rpc_server_create(scene.world.rpc, NULL, &scene.server, &err), BL_OK);
  assert_int_equal(bl_driver_service_serve(scene.service, scene.server, &err), BL_OK);
  assert_int_equal(bl_rpc_server_listen(scene.server, "127.0.0.1:0", address, sizeof address, &err), BL_OK);
  assert_int_equal(bl_rpc_server_start(scene.server, &err), BL_OK);
  assert_int_equal(bl_rpc_channel_create(scene.world.rpc, address, NULL, &scene.watcher.channel, &err), BL_OK);
}

static void open_scene(unsigned steps) {
  open_early_scene(steps);
  make_driver();
}

static void server_stopped(bl_rpc_server_t *server, void *context) {
  bl_rpc_server_destroy(server);
  *(bool *)context = true;
  bl_loop_stop(scene.world.loop);
}

static void close_scene(void) {
  bool stopped = false;
  bl_rpc_channel_destroy(scene.watcher.channel);
  bl_rpc_server_shutdown(scene.server, 0, server_stopped, &stopped);
  while (!stopped) {
    bl_loop_run(scene.world.loop);
  }
  bl_driver_destroy(scene.driver);
  bl_driver_service_destroy(scene.service);
  world_close(&scene.world);
}

static bool is_greeted(driver_world_t *world) {
  (void)world;
  return scene.watcher.phase[0] != '\0';
}

static bool has_watched(driver_world_t *world) {
  (void)world;
  return scene.watcher.ended;
}

static bool is_answered(driver_world_t *world) {
  (void)world;
  return scene.watcher.answered;
}

static bool is_over(driver_world_t *world) {
  (void)world;
  return scene.over;
}

// The first step has been told, and the second is prepared on all stages.
static bool second_is_prepared(driver_world_t *world) {
  return scene.watcher.steps >= 1 && world->stages[0].step.run.step == 2 && world->stages[1].step.run.step == 2 &&
         bl_stage_step_is_prepared(&world->stages[0].step) && bl_stage_step_is_prepared(&world->stages[1].step);
}

static void test_a_watcher_sees_everything_once(void **state) {
  (void)state;
  open_scene(6);
  watcher_follow(&scene.watcher, 0);
  bl_driver_start(scene.driver, "");
  world_wait(&scene.world, has_watched);
  assert_true(scene.watcher.plan);
  assert_int_equal(scene.watcher.steps, 6);
  assert_string_equal(scene.watcher.phase, "finished");
  assert_int_equal(scene.watcher.exit_code, 0);
  close_scene();
}

static void test_a_late_watcher_sees_the_same(void **state) {
  (void)state;
  open_scene(6);
  bl_driver_start(scene.driver, "");
  world_wait(&scene.world, is_over);
  watcher_follow(&scene.watcher, 0);
  world_wait(&scene.world, has_watched);
  assert_int_equal(scene.watcher.steps, 6);
  close_scene();
}

static void test_a_record_holds_back_the_next_commit(void **state) {
  (void)state;
  open_scene(4);
  watcher_follow(&scene.watcher, RECORD);
  bl_driver_start(scene.driver, "");
  world_wait(&scene.world, second_is_prepared);
  // Many iterations of the loop later it still waits, and says for what.
  for (int i = 0; i < 50; i++) {
    watcher_ask_status(&scene.watcher);
    world_wait(&scene.world, is_answered);
  }
  assert_string_equal(scene.watcher.run, "a run");
  assert_int_equal(scene.watcher.stage_count, WORLD_STAGES);
  assert_non_null(strstr(scene.watcher.waiting_for, "acknowledged"));
  assert_int_equal(scene.world.stages[0].applied_count, 1);
  while (!scene.watcher.ended) {
    watcher_acknowledge(&scene.watcher, RECORD);
    world_wait(&scene.world, is_answered);
  }
  assert_int_equal(scene.watcher.steps, 4);
  close_scene();
}

static void test_stop(void **state) {
  (void)state;
  open_scene(1000000);
  scene.world.stages[0].run_ms = scene.world.stages[1].run_ms = 5;
  watcher_follow(&scene.watcher, 0);
  bl_driver_start(scene.driver, "");
  while (scene.watcher.steps == 0) {
    watcher_ask_status(&scene.watcher);
    world_wait(&scene.world, is_answered);
  }
  watcher_stop_run(&scene.watcher);
  world_wait(&scene.world, has_watched);
  assert_true(scene.watcher.answered);
  assert_string_equal(scene.watcher.phase, "finished");
  assert_int_equal(scene.watcher.exit_code, 130);
  close_scene();
}

static bool is_other_answered(driver_world_t *world) {
  (void)world;
  return scene.other.answered;
}

static bool is_running(driver_world_t *world) {
  return world->stages[0].runs == 1 && world->stages[1].runs == 1;
}

// A process that ends without waiting for the step answers whoever waits for its end.
static void test_an_end_in_a_step_answers_callers(void **state) {
  (void)state;
  open_scene(4);
  scene.world.stages[0].run_ms = scene.world.stages[1].run_ms = UINT32_MAX;
  bl_driver_start(scene.driver, "");
  world_wait(&scene.world, is_running);
  watcher_pause(&scene.watcher);
  scene.other = (watcher_t){.channel = scene.watcher.channel};
  for (int i = 0; i < 20; i++) {
    watcher_ask_status(&scene.other);
    world_wait(&scene.world, is_other_answered);
  }
  assert_false(scene.watcher.answered);
  bl_driver_service_end(scene.service);
  world_wait(&scene.world, is_answered);
  assert_false(scene.over);
  close_scene();
}

static void test_an_early_watcher_is_told(void **state) {
  (void)state;
  open_early_scene(6);
  watcher_follow(&scene.watcher, RECORD);
  world_wait(&scene.world, is_greeted);
  assert_string_equal(scene.watcher.phase, "starting");
  watcher_ask_status(&scene.watcher);
  world_wait(&scene.world, is_answered);
  assert_string_equal(scene.watcher.run, "a run");
  assert_string_equal(scene.watcher.waiting_for, "the search");
  make_driver();
  bl_driver_start(scene.driver, "");
  while (!scene.watcher.ended) {
    watcher_acknowledge(&scene.watcher, RECORD);
    world_wait(&scene.world, is_answered);
  }
  assert_true(scene.watcher.plan);
  assert_int_equal(scene.watcher.steps, 6);
  close_scene();
}

static void test_an_early_watcher_hears_why_there_is_none(void **state) {
  (void)state;
  open_early_scene(6);
  watcher_follow(&scene.watcher, 0);
  world_wait(&scene.world, is_greeted);
  bl_error_t err;
  (void)bl_error_set(&err, BL_INVALID, "there is no such order");
  bl_driver_service_fail(scene.service, &err);
  bl_driver_service_end(scene.service);
  world_wait(&scene.world, has_watched);
  assert_string_equal(scene.watcher.phase, "failed");
  assert_int_equal(scene.watcher.exit_code, 2);
  close_scene();
}

static void test_stop_before_there_is_a_driver(void **state) {
  (void)state;
  open_early_scene(6);
  watcher_stop_run(&scene.watcher);
  world_wait(&scene.world, is_answered);
  assert_true(scene.told_to_stop);
  close_scene();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_watcher_sees_everything_once),
      cmocka_unit_test(test_a_late_watcher_sees_the_same),
      cmocka_unit_test(test_a_record_holds_back_the_next_commit),
      cmocka_unit_test(test_stop),
      cmocka_unit_test(test_an_end_in_a_step_answers_callers),
      cmocka_unit_test(test_an_early_watcher_is_told),
      cmocka_unit_test(test_an_early_watcher_hears_why_there_is_none),
      cmocka_unit_test(test_stop_before_there_is_a_driver),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
