// SPDX-License-Identifier: Apache-2.0
// Verifies loads that keep their block, on shm and tcp: it comes again as it was, any number of times, until it is
// loaded for good or released; a block that was loaded and kept, or whose load was given up, does not count as in
// flight, so that a store that allows one block at a time has credit for the next. And loads of parts: just these bytes
// are written, as they were.
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
  uint64_t slots[KEPT];
  static uint8_t expected[BYTES];
  uint8_t *buffer = fixture->buffers.base, *to = fixture->buffers.base + BYTES;
  reserve(client, BYTES, KEPT, slots);
  for (uint64_t i = 0; i < KEPT; i++) {
    fill(buffer, BYTES, i);
    must(bl_client_evict(client, slots[i], buffer, BYTES, NULL, &err), &err);
  }
  for (uint64_t round = 0; round < 3; round++) {
    for (uint64_t i = 0; i < KEPT; i++) {
      memset(to, 0, BYTES);
      must(bl_client_load_kept(client, slots[i], to, BYTES, &err), &err);
      fill(expected, BYTES, i);
      assert_memory_equal(to, expected, BYTES);
      assert_int_equal(bl_client_slot_state(client, slots[i]), BL_CLIENT_SLOT_FULL);
    }
  }
  assert_int_equal(bl_client_evict(client, slots[0], buffer, BYTES, NULL, &err), BL_PRECONDITION); // it is full
  must(bl_client_load(client, slots[0], to, BYTES, &err), &err);
  assert_int_equal(bl_client_load_kept(client, slots[0], to, BYTES, &err), BL_PRECONDITION); // it is empty
  must(bl_client_release(client, slots[1], &err), &err);
  for (uint64_t i = 0; i < 2; i++) {
    must(bl_client_evict(client, slots[i], buffer, BYTES, NULL, &err), &err);
  }
  assert_int_equal(bl_client_counters(client).loaded, 3 * KEPT + 1);
  assert_int_equal(bl_client_counters(client).checksum_failures, 0);
  bl_client_close(client);
}

static void test_loads_that_are_given_up(void **state) {
  const fixture_t *fixture = *state;
  bl_client_t *client = must_open(fixture, 0);
  bl_error_t err = {0};
  uint64_t slots[2];
  uint8_t *buffer = fixture->buffers.base, *to = fixture->buffers.base + BYTES;
  reserve(client, BYTES, 2, slots);
  fill(buffer, BYTES, 1);
  must(bl_client_evict(client, slots[0], buffer, BYTES, NULL, &err), &err);
  for (int round = 0; round < 50; round++) {
    bl_client_ticket_t ticket;
    must(bl_client_load_start(client, slots[0], to, BYTES, &ticket, &err), &err);
    usleep((useconds_t)(round * 40)); // at another place each time
    bl_client_abandon(client, ticket);
    WAIT_FOR(bl_client_slot_state(client, slots[0]) <= BL_CLIENT_SLOT_FULL);
    if (bl_client_slot_state(client, slots[0]) == BL_CLIENT_SLOT_EMPTY) { // it came first
      must(bl_client_evict(client, slots[0], buffer, BYTES, NULL, &err), &err);
    }
    must(bl_client_evict(client, slots[1], buffer, BYTES, NULL, &err), &err);
    must(bl_client_load(client, slots[1], to, BYTES, &err), &err);
    assert_memory_equal(to, buffer, BYTES);
  }
  bl_client_close(client);
}

// Bytes [offset, offset + bytes) of the block, and nothing beside them.
static void check_part(bl_client_t *client, uint64_t slot, const uint8_t *expected, uint64_t offset, uint64_t bytes) {
  static uint8_t to[BYTES + 2];
  bl_error_t err = {0};
  memset(to, 0xa5, sizeof to);
  must(bl_client_load_part(client, slot, offset, to + 1, bytes, &err), &err);
  assert_memory_equal(to + 1, expected + offset, bytes);
  assert_int_equal(to[0], 0xa5);
  for (uint64_t i = bytes + 1; i < sizeof to; i++) {
    assert_int_equal(to[i], 0xa5);
  }
  assert_int_equal(bl_client_slot_state(client, slot), BL_CLIENT_SLOT_FULL);
}

static void test_parts(void **state) {
  const fixture_t *fixture = *state;
  bl_error_t err = {0};
  static uint8_t expected[BYTES];
  const uint64_t bytes = BYTES - 77, pieces[] = {128 << 10, 256 << 10}; // of a checksum, of a frame
  for (int unverified = 0; unverified <= 1; unverified++) {
    bl_client_options_t options = options_of(fixture, 0);
    bl_client_t *client = NULL;
    uint64_t slot;
    options.unverified = unverified;
    must(bl_client_open(&options, &client, &err), &err);
    reserve(client, BYTES, 1, &slot);
    fill(fixture->buffers.base, bytes, 5);
    fill(expected, bytes, 5);
    must(bl_client_evict(client, slot, fixture->buffers.base, bytes, NULL, &err), &err);
    check_part(client, slot, expected, 0, 1);
    check_part(client, slot, expected, bytes - 1, 1);
    check_part(client, slot, expected, 0, bytes);
    for (size_t i = 0; i < 2; i++) {
      check_part(client, slot, expected, pieces[i], pieces[i]);
      check_part(client, slot, expected, pieces[i] - 1, 2);
      check_part(client, slot, expected, pieces[i] - 1, pieces[i] + 2);
      check_part(client, slot, expected, pieces[i] + 3, 5);
    }
    for (uint64_t round = 0; round < 60; round++) {
      const uint64_t offset = bl_random_bits(3, 2 * round) % bytes;
      check_part(client, slot, expected, offset, 1 + bl_random_bits(3, 2 * round + 1) % (bytes - offset));
    }
    uint8_t *to = fixture->buffers.base;
    assert_int_equal(bl_client_load_part(client, slot, 0, to, 0, &err), BL_INVALID);
    assert_int_equal(bl_client_load_part(client, slot, 1, to, bytes, &err), BL_INVALID);
    assert_int_equal(bl_client_load_part(client, slot, UINT64_MAX, to, 2, &err), BL_INVALID);
    assert_int_equal(bl_client_load_part(client, slot + 9, 0, to, 1, &err), BL_NOT_FOUND);
    assert_int_equal(bl_client_counters(client).checksum_failures, 0);
    must(bl_client_load(client, slot, to, bytes, &err), &err);
    assert_memory_equal(to, expected, bytes);
    assert_int_equal(bl_client_load_part(client, slot, 0, to, 1, &err), BL_PRECONDITION); // it is empty
    bl_client_close(client);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_loads_that_keep, set_up_narrow, tear_down),
      cmocka_unit_test_setup_teardown(test_loads_that_are_given_up, set_up_narrow, tear_down),
      cmocka_unit_test_setup_teardown(test_parts, set_up_narrow, tear_down),
  };
  data_path = BL_CLIENT_PATH_SHM;
  int failed = cmocka_run_group_tests_name("shm", tests, NULL, NULL);
  data_path = BL_CLIENT_PATH_TCP;
  return failed + cmocka_run_group_tests_name("tcp", tests, NULL, NULL);
}
