// SPDX-License-Identifier: Apache-2.0
// Verifies unary calls end to end: answers, statuses and texts, deadlines, cancellation, limits on both sides.
#include "echo_world.h"
#include "rpc/health.h"
#include "sys/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static int start(void **state) {
  static world_t world;
  world_init(&world, "127.0.0.1:0", NULL);
  *state = &world;
  return 0;
}

static int stop(void **state) {
  world_cleanup(*state);
  return 0;
}

static void a_message_comes_back(void **state) {
  outcome_t outcome;
  world_call(*state, "Say", &(echo_request_t){.text = "hello", .payload_bytes = 100000}, 5000, &outcome);
  assert_string_equal(outcome.err.text, "");
  assert_int_equal(outcome.err.status, BL_OK);
  assert_string_equal(outcome.text, "hello");
  assert_int_equal(outcome.payload_bytes, 100000);
  assert_in_range(outcome.remaining_ms, 1, 5010); // what crosses the wire is rounded up to 10 ms
  const world_t *world = *state;
  assert_memory_equal(world->echo.peer, "ipv4:127.0.0.1:", 15);
  world_call(*state, "Say", &(echo_request_t){.text = ""}, BL_RPC_NO_DEADLINE, &outcome); // an empty message
  assert_int_equal(outcome.err.status, BL_OK);
  assert_true(outcome.remaining_ms == BL_RPC_NO_DEADLINE);
}

static void many_calls_at_once_are_all_answered(void **state) {
  enum { CALLS = 300 }; // more than gRPC holds requests for
  static outcome_t outcomes[CALLS];
  for (unsigned i = 0; i < CALLS; i++) {
    world_start(*state, i % 2 == 0 ? "Say" : "Later", &(echo_request_t){.text = "x", .delay_ms = i % 7}, 20000,
                &outcomes[i]);
  }
  for (unsigned i = 0; i < CALLS; i++) {
    world_wait(*state, &outcomes[i]);
    assert_int_equal(outcomes[i].err.status, BL_OK);
    assert_int_equal(outcomes[i].done, 1);
  }
}

static void every_status_arrives_with_its_text(void **state) {
  for (int status = 1; status < BL_STATUS_COUNT; status++) {
    outcome_t outcome;
    world_call(*state, "Fail", &(echo_request_t){.text = "cause: 100 % \xc3\xa9", .status = (bl_status_t)status}, 5000,
               &outcome);
    assert_string_equal(bl_status_name(outcome.err.status), bl_status_name((bl_status_t)status));
    assert_non_null(strstr(outcome.err.text, "cause: 100 % \xc3\xa9"));
  }
}

static void ok_without_a_message_is_an_error(void **state) {
  outcome_t outcome;
  world_call(*state, "Fail", &(echo_request_t){.status = BL_OK}, 5000, &outcome);
  assert_int_equal(outcome.err.status, BL_INTERNAL);
}

static void a_late_answer_arrives(void **state) {
  outcome_t outcome;
  uint64_t start_ns = bl_clock_now_ns();
  world_call(*state, "Later", &(echo_request_t){.text = "late", .delay_ms = 50}, 5000, &outcome);
  assert_int_equal(outcome.err.status, BL_OK);
  assert_string_equal(outcome.text, "late");
  assert_in_range((bl_clock_now_ns() - start_ns) / BL_NS_PER_MS, 49, WORLD_LIMIT_MS);
}

static void a_deadline_ends_both_sides(void **state) {
  world_t *world = *state;
  outcome_t outcome;
  unsigned cancelled = world->echo.cancelled;
  world_call(world, "Hang", &(echo_request_t){0}, 50, &outcome);
  assert_int_equal(outcome.err.status, BL_DEADLINE);
  assert_non_null(strstr(outcome.err.text, world->echo.address));
  assert_non_null(strstr(outcome.err.text, "Hang"));
  world_wait_for(world, &world->echo.cancelled, cancelled + 1);
}

static void cancelling_ends_both_sides(void **state) {
  world_t *world = *state;
  outcome_t outcome;
  unsigned arrived = world->echo.arrived, cancelled = world->echo.cancelled;
  world_start(world, "Hang", &(echo_request_t){0}, 20000, &outcome);
  world_wait_for(world, &world->echo.arrived, arrived + 1);
  assert_int_equal(outcome.done, 0);
  bl__rpc_request_cancel(outcome.request);
  bl__rpc_request_cancel(outcome.request);
  world_wait(world, &outcome);
  assert_int_equal(outcome.err.status, BL_CANCELLED);
  world_wait_for(world, &world->echo.cancelled, cancelled + 1);
  assert_int_equal(world->echo.hanging, 0);
}

static void methods_without_a_handler_are_unimplemented(void **state) {
  outcome_t outcome;
  world_call(*state, "Unserved", &(echo_request_t){0}, 5000, &outcome);
  assert_int_equal(outcome.err.status, BL_UNIMPLEMENTED);
  assert_non_null(strstr(outcome.err.text, "/ballast.test.Echo/Unserved"));
}

static void on_health(bl_rpc_health_state_t state, const bl_error_t *err, void *context) {
  outcome_t *outcome = context;
  assert_int_equal(state, BL_RPC_HEALTH_UNREACHABLE);
  outcome->err = *err;
  outcome->done++;
}

static void another_service_tells_what_it_is(void **state) {
  world_t *world = *state;
  outcome_t outcome = {0};
  assert_int_equal(bl_rpc_health_check(world->channel, "", 5000, on_health, &outcome, NULL), BL_OK);
  world_wait(world, &outcome);
  assert_int_equal(outcome.err.status, BL_UNIMPLEMENTED);
  assert_string_equal(outcome.err.text,
                      "a server of ballast.test.Echo answers here, not a health port: correct the address");
}

static void unknown_methods_start_nothing(void **state) {
  world_t *world = *state;
  outcome_t outcome = {0};
  bl_error_t err;
  assert_int_equal(echo_start(world->channel, "Nosuch", &(echo_request_t){0}, 100, NULL, &outcome, NULL, &err),
                   BL_INVALID);
  assert_non_null(strstr(err.text, "Nosuch"));
}

static void messages_over_the_limit_are_refused(void **state) {
  (void)state;
  world_t world;
  outcome_t outcome;
  bl_error_t err;
  world_init(&world, "127.0.0.1:0", &(bl_rpc_server_options_t){.message_limit_bytes = 4096});
  // What we send: refused before anything is sent.
  bl_rpc_channel_t *narrow;
  assert_int_equal(bl_rpc_channel_create(world.rpc, world.echo.address,
                                         &(bl_rpc_channel_options_t){.message_limit_bytes = 1000}, &narrow, &err),
                   BL_OK);
  assert_int_equal(echo_start(narrow, "Say", &(echo_request_t){.payload_bytes = 2000}, 1000, NULL, NULL, NULL, &err),
                   BL_EXHAUSTED);
  assert_non_null(strstr(err.text, "EchoRequest takes 1.96 KiB, more than the limit of 1000 B"));
  bl_rpc_channel_destroy(narrow);
  // What the server takes.
  world_call(&world, "Say", &(echo_request_t){.payload_bytes = 5000}, 5000, &outcome);
  assert_int_equal(outcome.err.status, BL_EXHAUSTED);
  assert_int_equal(world.echo.arrived, 0);
  // The server goes on.
  world_call(&world, "Say", &(echo_request_t){.payload_bytes = 3000}, 5000, &outcome);
  assert_int_equal(outcome.err.status, BL_OK);
  world_cleanup(&world);
}

static void answers_over_the_limit_are_refused(void **state) {
  world_t *world = *state;
  bl_rpc_channel_t *wide = world->channel;
  bl_error_t err;
  outcome_t outcome;
  assert_int_equal(bl_rpc_channel_create(world->rpc, world->echo.address,
                                         &(bl_rpc_channel_options_t){.message_limit_bytes = 1000}, &world->channel,
                                         &err),
                   BL_OK);
  // A text that fits one way and, with remaining_ms beside it, not the other.
  world_call(world, "Say", &(echo_request_t){.payload_bytes = 996}, 5000, &outcome);
  assert_int_equal(outcome.err.status, BL_EXHAUSTED);
  bl_rpc_channel_destroy(world->channel);
  world->channel = wide;
}

static void messages_that_grow_in_memory_are_refused(void **state) {
  (void)state;
  world_t world;
  outcome_t outcome;
  world_init(&world, "127.0.0.1:0", &(bl_rpc_server_options_t){.unpack_limit_bytes = 1 << 20});
  world_call(&world, "Say", &(echo_request_t){.nothings = 100000}, 5000, &outcome); // 200 kB on the wire
  assert_int_equal(outcome.err.status, BL_EXHAUSTED);
  assert_non_null(strstr(outcome.err.text, "in memory"));
  world_call(&world, "Say", &(echo_request_t){.nothings = 1000}, 5000, &outcome);
  assert_int_equal(outcome.err.status, BL_OK);
  world_cleanup(&world);
}

static void calls_over_the_limit_are_refused(void **state) {
  (void)state;
  enum { LIMIT = 4 };
  world_t world;
  outcome_t hanging[LIMIT], outcome;
  world_init(&world, "127.0.0.1:0", &(bl_rpc_server_options_t){.max_calls = LIMIT});
  for (unsigned i = 0; i < LIMIT; i++) {
    world_start(&world, "Hang", &(echo_request_t){0}, 20000, &hanging[i]);
  }
  world_wait_for(&world, &world.echo.hanging, LIMIT);
  bl_rpc_channel_t *first = world.channel, *second; // streams of one connection are limited by gRPC, which waits
  assert_int_equal(bl_rpc_channel_create(world.rpc, world.echo.address, NULL, &second, NULL), BL_OK);
  world.channel = second;
  world_call(&world, "Say", &(echo_request_t){0}, 5000, &outcome);
  assert_int_equal(outcome.err.status, BL_EXHAUSTED);
  assert_non_null(strstr(outcome.err.text, "limit of 4 calls"));
  for (unsigned i = 0; i < LIMIT; i++) {
    bl__rpc_request_cancel(hanging[i].request);
    world_wait(&world, &hanging[i]);
  }
  world_wait_for(&world, &world.echo.cancelled, LIMIT);
  world_call(&world, "Say", &(echo_request_t){0}, 5000, &outcome);
  assert_int_equal(outcome.err.status, BL_OK);
  bl_rpc_channel_destroy(first);
  world_cleanup(&world);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_message_comes_back),
      cmocka_unit_test(many_calls_at_once_are_all_answered),
      cmocka_unit_test(every_status_arrives_with_its_text),
      cmocka_unit_test(ok_without_a_message_is_an_error),
      cmocka_unit_test(a_late_answer_arrives),
      cmocka_unit_test(a_deadline_ends_both_sides),
      cmocka_unit_test(cancelling_ends_both_sides),
      cmocka_unit_test(methods_without_a_handler_are_unimplemented),
      cmocka_unit_test(another_service_tells_what_it_is),
      cmocka_unit_test(unknown_methods_start_nothing),
      cmocka_unit_test(messages_over_the_limit_are_refused),
      cmocka_unit_test(answers_over_the_limit_are_refused),
      cmocka_unit_test(messages_that_grow_in_memory_are_refused),
      cmocka_unit_test(calls_over_the_limit_are_refused),
  };
  return cmocka_run_group_tests(tests, start, stop);
}
