// SPDX-License-Identifier: Apache-2.0
// Verifies loads that keep their block, on shm and tcp: it comes again as it was, any number of times, until it is loaded for
// good or released; a block that was loaded and kept, or whose load was given up, does not count as in flight, so that a store
// that allows one block at a time has credit for the next.
#include "client/fixture.h"

#define BYTES (16 * GRANULE)
#define KEPT  4u

static int set_up_narrow(void **state) {
  store_flow = "1 MiB"; // a block
  return set_up(state);
}

static void test_loads_that_keep(void **state) {
  const fixture_t *fixture = *state;
  bl_client_t *client = must_open(fixture, 0);
  bl_error_t err = {0};
  uint64_t rooms[KEPT];
  static uint8_t expected[BYTES];
  uint8_t *slot = fixture->slots.base, *to = fixture->slots.base + BYTES;
  reserve(client, BYTES, KEPT, rooms);
  for (uint64_t i = 0; i < KEPT; i++) {
    fill(slot, BYTES, i);
    must(bl_client_evict(client, rooms[i], slot, BYTES, NULL, &err), &err);
  }
  for (uint64_t turn = 0; turn < 3; turn++) {
    for (uint64_t i = 0; i < KEPT; i++) {
      memset(to, 0, BYTES);
      must(bl_client_load_kept(client, rooms[i], to, BYTES, &err), &err);
      fill(expected, BYTES, i);
      assert_memory_equal(to, expected, BYTES);
      assert_int_equal(bl_client_room_state(client, rooms[i]), BL_CLIENT_ROOM_FULL);
    }
  }
  assert_int_equal(bl_client_evict(client, rooms[0], slot, BYTES, NULL, &err), BL_PRECONDITION); // it is full
  must(bl_client_load(client, rooms[0], to, BYTES, &err), &err);
  assert_int_equal(bl_client_load_kept(client, rooms[0], to, BYTES, &err), BL_PRECONDITION); // it is empty
  must(bl_client_release(client, rooms[1], &err), &err);
  for (uint64_t i = 0; i < 2; i++) {
    must(bl_client_evict(client, rooms[i], slot, BYTES, NULL, &err), &err);
  }
  assert_int_equal(bl_client_counters(client).loaded, 3 * KEPT + 1);
  assert_int_equal(bl_client_counters(client).checksum_failures, 0);
  bl_client_close(client);
}

static void test_loads_that_are_given_up(void **state) {
  const fixture_t *fixture = *state;
  bl_client_t *client = must_open(fixture, 0);
  bl_error_t err = {0};
  uint64_t rooms[2];
  uint8_t *slot = fixture->slots.base, *to = fixture->slots.base + BYTES;
  reserve(client, BYTES, 2, rooms);
  fill(slot, BYTES, 1);
  must(bl_client_evict(client, rooms[0], slot, BYTES, NULL, &err), &err);
  for (int turn = 0; turn < 50; turn++) {
    bl_client_ticket_t ticket;
    must(bl_client_load_start(client, rooms[0], to, BYTES, &ticket, &err), &err);
    usleep((useconds_t)(turn * 40)); // at another place each time
    bl_client_abandon(client, ticket);
    WAIT_FOR(bl_client_room_state(client, rooms[0]) <= BL_CLIENT_ROOM_FULL);
    if (bl_client_room_state(client, rooms[0]) == BL_CLIENT_ROOM_EMPTY) { // it came first
      must(bl_client_evict(client, rooms[0], slot, BYTES, NULL, &err), &err);
    }
    must(bl_client_evict(client, rooms[1], slot, BYTES, NULL, &err), &err);
    must(bl_client_load(client, rooms[1], to, BYTES, &err), &err);
    assert_memory_equal(to, slot, BYTES);
  }
  bl_client_close(client);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_loads_that_keep, set_up_narrow, tear_down),
      cmocka_unit_test_setup_teardown(test_loads_that_are_given_up, set_up_narrow, tear_down),
  };
  data_path = BL_CLIENT_PATH_SHM;
  int failed = cmocka_run_group_tests_name("shm", tests, NULL, NULL);
  data_path = BL_CLIENT_PATH_TCP;
  return failed + cmocka_run_group_tests_name("tcp", tests, NULL, NULL);
}
