// SPDX-License-Identifier: Apache-2.0
// Verifies server streams: order, end, errors, back-pressure from a reader that holds, cancellation.
#include "echo_world.h"

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

static void all_messages_arrive_in_order(void **state) {
  outcome_t outcome = {0};
  world_start_stream(*state, "Count", &(echo_request_t){.count = 2000, .payload_bytes = 10}, 20000, &outcome);
  world_wait(*state, &outcome);
  assert_int_equal(outcome.err.status, BL_OK);
  assert_int_equal(outcome.messages, 2000);
  assert_int_equal(outcome.out_of_order, 0);
  assert_int_equal(outcome.done, 1);
}

static void an_empty_stream_just_ends(void **state) {
  outcome_t outcome = {0};
  world_start_stream(*state, "Count", &(echo_request_t){.count = 0}, 20000, &outcome);
  world_wait(*state, &outcome);
  assert_int_equal(outcome.err.status, BL_OK);
  assert_int_equal(outcome.messages, 0);
}

static void a_stream_can_end_with_an_error(void **state) {
  outcome_t outcome = {0};
  world_start_stream(*state, "Count", &(echo_request_t){.count = 3, .status = BL_FENCED}, 20000, &outcome);
  world_wait(*state, &outcome);
  assert_int_equal(outcome.messages, 3);
  assert_int_equal(outcome.err.status, BL_FENCED);
  assert_string_equal(outcome.err.text, "counted");
}

// Messages of 64 KiB fill flow-control windows and sockets long before 400 of them are sent.
static void a_reader_that_holds_makes_the_server_wait(void **state) {
  world_t *world = *state;
  outcome_t outcome = {.hold_at = 1};
  unsigned sent = world->echo.sent;
  world_start_stream(world, "Count", &(echo_request_t){.count = 400, .payload_bytes = 65536}, 20000, &outcome);
  world_wait_for(world, &outcome.messages, 1);
  unsigned stuck_at;
  do { // until it stands still, however slow the machine is
    stuck_at = world->echo.sent - sent;
    world_run_for(world, 300);
  } while (world->echo.sent - sent != stuck_at);
  assert_in_range(stuck_at, 1, 399);
  assert_int_equal(outcome.messages, 1);
  assert_int_equal(outcome.done, 0);
  bl__rpc_request_resume(outcome.request);
  world_wait(world, &outcome);
  assert_int_equal(outcome.err.status, BL_OK);
  assert_int_equal(outcome.messages, 400);
  assert_int_equal(outcome.out_of_order, 0);
  assert_int_equal(outcome.payload_bytes, 400 * 65536);
}

static void a_held_stream_keeps_its_last_messages(void **state) {
  world_t *world = *state;
  outcome_t outcome = {.hold_at = 1};
  unsigned sent = world->echo.sent;
  world_start_stream(world, "Count", &(echo_request_t){.count = 5}, 20000, &outcome);
  world_wait_for(world, &world->echo.sent, sent + 5); // the server is through
  world_run_for(world, 50);
  assert_int_equal(outcome.done, 0);
  assert_int_equal(outcome.messages, 1);
  bl__rpc_request_resume(outcome.request);
  world_wait(world, &outcome);
  assert_int_equal(outcome.messages, 5);
  assert_int_equal(outcome.err.status, BL_OK);
}

static void cancelling_a_stream_ends_both_sides(void **state) {
  world_t *world = *state;
  outcome_t outcome = {.hold_at = 2};
  unsigned cancelled = world->echo.cancelled;
  world_start_stream(world, "Count", &(echo_request_t){.count = 1000000, .payload_bytes = 65536}, 20000, &outcome);
  world_wait_for(world, &outcome.messages, 2);
  bl__rpc_request_cancel(outcome.request);
  world_wait(world, &outcome);
  assert_int_equal(outcome.err.status, BL_CANCELLED);
  assert_int_equal(outcome.messages, 2);
  world_wait_for(world, &world->echo.cancelled, cancelled + 1);
}

static void a_stream_has_a_deadline(void **state) {
  world_t *world = *state;
  outcome_t outcome = {.hold_at = 1};
  world_start_stream(world, "Count", &(echo_request_t){.count = 1000000, .payload_bytes = 65536}, 100, &outcome);
  world_wait(world, &outcome);
  assert_int_equal(outcome.err.status, BL_DEADLINE);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(all_messages_arrive_in_order),
      cmocka_unit_test(an_empty_stream_just_ends),
      cmocka_unit_test(a_stream_can_end_with_an_error),
      cmocka_unit_test(a_reader_that_holds_makes_the_server_wait),
      cmocka_unit_test(a_held_stream_keeps_its_last_messages),
      cmocka_unit_test(cancelling_a_stream_ends_both_sides),
      cmocka_unit_test(a_stream_has_a_deadline),
  };
  return cmocka_run_group_tests(tests, start, stop);
}
