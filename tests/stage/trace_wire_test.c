// SPDX-License-Identifier: Apache-2.0
// Verifies the stream of a stage's trace: all events arrive, and a stream whose reader is so slow that another step runs
// meanwhile ends with an error, although that step has fewer events.
#include "service_core_wire.h"

#include "loop/timer.h"
#include "rpc/request.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define EVENTS 300000 // 10 MB: much more than a connection takes that nobody reads

typedef struct world {
  bl_loop_t *loop;
  bl_rpc_t *rpc;
  bl_rpc_server_t *server;
  bl_rpc_channel_t *channel;
  bl_timer_t *timer;
  bl_service_t service;
  bl_engine_t engine;
  bl_stage_step_t step;
  bl__rpc_request_t *request;
  uint32_t events;
  bool slow;
  bl_error_t err;
} world_t;

static world_t world;

// What the handler reads of a stage.
const bl_engine_t *bl_stage_engine(const bl_stage_t *stage) {
  (void)stage;
  return &world.engine;
}

const bl_stage_step_t *bl_stage_step(const bl_stage_t *stage) {
  (void)stage;
  return &world.step;
}

static void stopped(bl_rpc_server_t *server, void *context) {
  (void)server;
  bl_loop_stop(((world_t *)context)->loop);
}

static void run_events(uint32_t count) {
  bl_trace_clear(world.engine.trace);
  for (uint32_t i = 0; i < count; i++) {
    bl_trace_add(world.engine.trace, "F0.0", false, (int32_t)i, 1, UINT64_C(1) << 60, UINT64_C(1) << 61);
  }
}

static void another_step(bl_timer_t *timer, void *context) {
  (void)timer;
  (void)context;
  run_events(10);
  bl__rpc_request_resume(world.request);
}

static int set_up(void **state) {
  static const bl_rpc_method_t methods[] = {{"Trace", bl__handle_trace}};
  char address[BL_RPC_ADDRESS_BYTES];
  bl_error_t err = {0};
  (void)state;
  world = (world_t){.step = {.phase = BL_STAGE_IDLE}};
  return bl_loop_create(&world.loop, &err) == BL_OK && bl_rpc_create(world.loop, &world.rpc, &err) == BL_OK &&
                 bl_timer_create(world.loop, another_step, NULL, &world.timer, &err) == BL_OK &&
                 bl_trace_create(EVENTS, &world.engine.trace) == BL_OK &&
                 bl_rpc_server_create(world.rpc, NULL, &world.server, &err) == BL_OK &&
                 bl_rpc_server_add_service(world.server, &ballast__v1__stage__descriptor, methods, 1, &world.service,
                                           &err) == BL_OK &&
                 bl_rpc_server_listen(world.server, "127.0.0.1:0", address, sizeof address, &err) == BL_OK &&
                 bl_rpc_server_start(world.server, &err) == BL_OK &&
                 bl_rpc_channel_create(world.rpc, address, NULL, &world.channel, &err) == BL_OK
             ? 0
             : -1;
}

static int tear_down(void **state) {
  (void)state;
  bl_rpc_channel_destroy(world.channel);
  bl_rpc_server_shutdown(world.server, 0, stopped, &world);
  bl_loop_run(world.loop);
  bl_rpc_server_destroy(world.server);
  bl_trace_destroy(world.engine.trace);
  bl_timer_destroy(world.timer);
  bl_rpc_destroy(world.rpc);
  bl_loop_destroy(world.loop);
  return 0;
}

static void arrived(const ProtobufCMessage *output, void *context) {
  (void)context;
  world.events += (uint32_t)((const Ballast__V1__StageTraceResponse *)output)->n_events;
  if (world.slow) {
    world.slow = false;
    bl__rpc_request_hold(world.request);
    bl_timer_start(world.timer, 200, 0); // the server has sent by then what the connection takes
  } else if (world.events > 2 * EVENTS) {
    bl__rpc_request_cancel(world.request);
  }
}

static void ended(const ProtobufCMessage *output, const bl_error_t *err, void *context) {
  (void)output;
  (void)context;
  world.err = *err;
  bl_loop_stop(world.loop);
}

static void read_trace(void) {
  const Ballast__V1__StageTraceRequest input = BALLAST__V1__STAGE_TRACE_REQUEST__INIT;
  bl_error_t err;
  assert_int_equal(bl__rpc_request_start(world.channel, &ballast__v1__stage__descriptor, "Trace", &input.base, 60000,
                                         arrived, ended, NULL, &world.request, &err),
                   BL_OK);
  bl_loop_run(world.loop);
}

static void test_all_events(void **state) {
  (void)state;
  run_events(EVENTS);
  read_trace();
  assert_int_equal(world.err.status, BL_OK);
  assert_int_equal(world.events, EVENTS);
}

static void test_another_step_while_it_is_read(void **state) {
  (void)state;
  run_events(EVENTS);
  world.slow = true;
  read_trace();
  assert_int_equal(world.err.status, BL_PRECONDITION);
  assert_in_range(world.events, 512, EVENTS);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_all_events, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_another_step_while_it_is_read, set_up, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
