// SPDX-License-Identifier: Apache-2.0
// Verifies one store as a stage uses it, with a store: blocks go there and come back, several at a time; transfers that
// are given up, a store that stands still or dies in the middle of several and is back, sessions that rest, a slow path
// that holds nobody up at the end.
#include "client/fixture.h"
#include "client/runtime.h"
#include "datapath/block.h"
#include "parking/store_session.h"

#include "sys/condition.h"

#define BYTES   (UINT64_C(4) * GRANULE)
#define BLOCKS  6u
#define WAIT_NS (UINT64_C(120) * BL_NS_PER_S)
#define TRIES   5 // of what a machine that stands still may spoil

typedef struct world {
  const fixture_t *fixture;
  bl_client_runtime_t *runtime;
  bl_store_sessions_t shared;
  bl_store_session_t *session;
  bl_transfer_t transfers[BLOCKS];
} world_t;

static uint8_t *slot_of(const world_t *world, uint32_t slot) {
  return world->fixture->buffers.base + slot * BYTES;
}

static void destroyed(void *context) {
  world_t *world = context;
  bl__store_session_destroy(world->session);
  world->session = NULL;
}

static void begin(world_t *world, const fixture_t *fixture, uint64_t bytes_per_second) {
  bl_error_t err = {0};
  *world = (world_t){.fixture = fixture};
  must(bl_client_runtime_create(NULL, &world->runtime, &err), &err);
  bl_store_session_options_t options = {.name = "store of device 3",
                                        .job = "job",
                                        .plan = 7,
                                        .stage = 1,
                                        .regions = &fixture->source,
                                        .region_count = 1,
                                        .store_slots = BLOCKS - 1,
                                        .slot_bytes = BYTES,
                                        .arena_bytes = BLOCKS * BYTES,
                                        .bytes_per_second = bytes_per_second,
                                        .path = data_path,
                                        .runtime = world->runtime};
  snprintf(options.address, sizeof options.address, "%s", fixture->store.address);
  bl__store_sessions_init(&world->shared, destroyed, world);
  pthread_mutex_lock(&world->shared.mutex);
  must(bl__store_session_create(&options, &world->shared, &world->session, &err), &err);
  pthread_mutex_unlock(&world->shared.mutex);
}

static void finish(world_t *world) {
  pthread_mutex_lock(&world->shared.mutex);
  bl__store_session_end(world->session);
  pthread_mutex_unlock(&world->shared.mutex);
  bl__store_sessions_release(&world->shared);
  bl_client_runtime_destroy(world->runtime);
  assert_null(world->session); // when its session was closed
  bl__store_sessions_cleanup(&world->shared);
  for (uint32_t i = 0; i < BLOCKS; i++) {
    assert_true(world->transfers[i].state == BL_TRANSFER_IDLE || world->transfers[i].state == BL_TRANSFER_OVER);
  }
}

// [m] Asks the store again until it is back: one that has just been started may not be there yet.
static void reopen_until_ready(world_t *world) {
  const uint64_t deadline_ns = bl_clock_now_ns() + WAIT_NS;
  do {
    bl__store_session_reopen(world->session);
    while (world->session->state == BL_STORE_SESSION_OPENING) {
      assert_true(bl_condition_wait(&world->shared.over, &world->shared.mutex, deadline_ns));
    }
  } while (world->session->state != BL_STORE_SESSION_READY);
}

// Begins well, at the second try on a machine that is slow.
static void become_ready(world_t *world) {
  const uint64_t deadline_ns = bl_clock_now_ns() + WAIT_NS;
  pthread_mutex_lock(&world->shared.mutex);
  while (world->session->state == BL_STORE_SESSION_OPENING) {
    assert_true(bl_condition_wait(&world->shared.over, &world->shared.mutex, deadline_ns));
  }
  if (world->session->state != BL_STORE_SESSION_READY) {
    reopen_until_ready(world);
  }
  pthread_mutex_unlock(&world->shared.mutex);
}

// [m] Block `i` leaves its slot, or comes back to another one.
static void queue(world_t *world, uint32_t i, bool load, uint32_t slot) {
  bl_transfer_t *transfer = &world->transfers[i];
  const uint64_t store_slot = transfer->store_slot;
  if (!load) {
    *transfer = (bl_transfer_t){.block = {.key = {.virtual_stage = 1, .micro_batch = i},
                                          .bytes = BYTES,
                                          .checksum = bl_block_checksum(slot_of(world, slot), BYTES)}};
  } else {
    *transfer = (bl_transfer_t){.block = transfer->block, .load = true, .store_slot = store_slot};
  }
  transfer->memory = slot_of(world, slot);
  bl__store_session_queue(world->session, transfer);
}

// [m]
static bl_parking_outcome_t outcome_of(world_t *world, uint32_t i) {
  const uint64_t deadline_ns = bl_clock_now_ns() + WAIT_NS;
  while (world->transfers[i].state != BL_TRANSFER_OVER) {
    assert_true(bl_condition_wait(&world->shared.over, &world->shared.mutex, deadline_ns));
  }
  return world->transfers[i].outcome;
}

static void fill_slots(const world_t *world, uint64_t seed) {
  for (uint32_t i = 0; i < BLOCKS; i++) {
    fill(slot_of(world, i), BYTES, seed + i);
  }
}

static void expect_block(const world_t *world, uint32_t slot, uint64_t seed) {
  static uint8_t expected[BYTES];
  fill(expected, BYTES, seed);
  assert_memory_equal(slot_of(world, slot), expected, BYTES);
}

// There and back, of as many as there are store slots.
static void round_trip(world_t *world, uint64_t seed) {
  fill_slots(world, seed);
  pthread_mutex_lock(&world->shared.mutex);
  for (uint32_t i = 0; i + 1 < BLOCKS; i++) {
    queue(world, i, false, i);
  }
  for (uint32_t i = 0; i + 1 < BLOCKS; i++) {
    assert_int_equal(outcome_of(world, i), BL_PARKING_DONE);
    assert_int_not_equal(world->transfers[i].store_slot, 0);
    assert_int_equal(world->transfers[i].epoch, world->session->epoch);
    for (uint32_t k = 0; k < i; k++) {
      assert_int_not_equal(world->transfers[i].store_slot, world->transfers[k].store_slot);
    }
  }
  assert_int_equal(world->session->held, BLOCKS - 1);
  assert_int_equal(world->session->held_peak, BLOCKS - 1);
  for (uint32_t i = 0; i + 1 < BLOCKS; i++) { // each into the slot of another
    queue(world, i, true, (i + 1) % (BLOCKS - 1));
  }
  for (uint32_t i = 0; i + 1 < BLOCKS; i++) {
    assert_int_equal(outcome_of(world, i), BL_PARKING_DONE);
  }
  assert_int_equal(world->session->held, 0);
  pthread_mutex_unlock(&world->shared.mutex);
  for (uint32_t i = 0; i + 1 < BLOCKS; i++) {
    expect_block(world, (i + 1) % (BLOCKS - 1), seed + i);
  }
}

static void test_blocks_go_and_come_back(void **state) {
  world_t world;
  begin(&world, *state, 0);
  become_ready(&world);
  for (uint64_t i = 0; i < 5; i++) {
    round_trip(&world, 100 * i);
  }
  assert_int_equal(world.session->moved_bytes, 5 * 2 * (BLOCKS - 1) * BYTES);
  finish(&world);
}

static void test_more_blocks_than_slots_end_the_session(void **state) {
  world_t world;
  begin(&world, *state, 0);
  become_ready(&world);
  fill_slots(&world, 1);
  pthread_mutex_lock(&world.shared.mutex);
  for (uint32_t i = 0; i < BLOCKS; i++) {
    queue(&world, i, false, i);
  }
  for (uint32_t i = 0; i < BLOCKS; i++) {
    assert_int_equal(outcome_of(&world, i), i + 1 < BLOCKS ? BL_PARKING_DONE : BL_PARKING_LOST);
  }
  assert_int_equal(world.session->state, BL_STORE_SESSION_FAILED);
  assert_int_equal(world.session->err.status, BL_INTERNAL);
  pthread_mutex_unlock(&world.shared.mutex);
  finish(&world);
}

// [m]
static void wait_until_one_moves(world_t *world) {
  while (world->session->moving_count == 0) {
    pthread_mutex_unlock(&world->shared.mutex);
    usleep(1000);
    pthread_mutex_lock(&world->shared.mutex);
  }
}

// Those under way end, too, whatever the store does.
static void test_transfers_are_given_up(void **state) {
  const fixture_t *fixture = *state;
  world_t world;
  begin(&world, fixture, 0);
  become_ready(&world);
  round_trip(&world, 1); // so that several are under way
  kill(fixture->store.pid, SIGSTOP);
  pthread_mutex_lock(&world.shared.mutex);
  for (uint32_t i = 0; i < 3; i++) {
    queue(&world, i, false, i);
  }
  wait_until_one_moves(&world);
  bl__store_session_flush(world.session);
  for (uint32_t i = 0; i < 3; i++) {
    assert_int_equal(outcome_of(&world, i), BL_PARKING_LOST);
  }
  assert_int_equal(world.session->moving_count, 0);
  pthread_mutex_unlock(&world.shared.mutex);
  memset(slot_of(&world, 0), 0, 3 * BYTES); // ours
  kill(fixture->store.pid, SIGCONT);
  finish(&world);
}

// A session that is given up lets go of what is under way before the store, which stands still, hears of it.
static void test_memory_is_free_before_the_session_is_closed(void **state) {
  const fixture_t *fixture = *state;
  bool in_time = false;
  for (int i = 0; i < TRIES && !in_time; i++) {
    world_t world;
    begin(&world, fixture, 0);
    become_ready(&world);
    fill_slots(&world, 1);
    kill(fixture->store.pid, SIGSTOP);
    pthread_mutex_lock(&world.shared.mutex);
    queue(&world, 0, false, 0);
    wait_until_one_moves(&world);
    const uint64_t begun_ns = bl_clock_now_ns();
    bl__store_session_rest(world.session);
    assert_int_equal(outcome_of(&world, 0), BL_PARKING_LOST);
    in_time = bl_clock_now_ns() - begun_ns < 500 * BL_NS_PER_MS;
    pthread_mutex_unlock(&world.shared.mutex);
    kill(fixture->store.pid, SIGCONT);
    finish(&world);
  }
  assert_true(in_time);
}

static void test_a_store_stands_still(void **state) {
  const fixture_t *fixture = *state;
  world_t world;
  begin(&world, fixture, 0);
  become_ready(&world);
  round_trip(&world, 1);
  kill(fixture->store.pid, SIGSTOP);
  pthread_mutex_lock(&world.shared.mutex);
  for (uint32_t i = 0; i + 1 < BLOCKS; i++) {
    queue(&world, i, false, i);
  }
  for (uint32_t i = 0; i + 1 < BLOCKS; i++) {
    assert_int_equal(outcome_of(&world, i), BL_PARKING_LOST); // after BL_STORE_SESSION_CALL_MS
  }
  assert_int_equal(world.session->state, BL_STORE_SESSION_FAILED);
  const uint64_t before = world.session->epoch;
  kill(fixture->store.pid, SIGCONT);
  reopen_until_ready(&world);
  assert_int_equal(world.session->epoch, before + 1);
  assert_int_equal(world.session->held, 0);
  pthread_mutex_unlock(&world.shared.mutex);
  round_trip(&world, 50);
  finish(&world);
}

static void test_a_store_dies_and_is_back(void **state) {
  fixture_t *fixture = *state;
  world_t world;
  begin(&world, fixture, 0);
  become_ready(&world);
  for (uint64_t i = 0; i < 3; i++) {
    fill_slots(&world, i);
    pthread_mutex_lock(&world.shared.mutex);
    for (uint32_t k = 0; k < 3; k++) {
      queue(&world, k, false, k);
      assert_int_equal(outcome_of(&world, k), BL_PARKING_DONE);
    }
    store_kill(&fixture->store, SIGKILL);
    for (uint32_t k = 0; k < 3; k++) {
      queue(&world, k, true, 3 + k);
    }
    for (uint32_t k = 0; k < 3; k++) {
      assert_int_equal(outcome_of(&world, k), BL_PARKING_LOST);
    }
    assert_int_equal(world.session->state, BL_STORE_SESSION_FAILED);
    store_start(&fixture->store, "64 MiB", store_ttl, store_grace);
    reopen_until_ready(&world);
    pthread_mutex_unlock(&world.shared.mutex);
    round_trip(&world, 10 * i);
  }
  finish(&world);
}

static void test_a_death_while_nothing_moves_is_noticed(void **state) {
  fixture_t *fixture = *state;
  world_t world;
  begin(&world, fixture, 0);
  become_ready(&world);
  store_kill(&fixture->store, SIGKILL);
  const uint64_t deadline_ns = bl_clock_now_ns() + WAIT_NS;
  pthread_mutex_lock(&world.shared.mutex);
  while (world.session->state == BL_STORE_SESSION_READY) {
    assert_true(bl_clock_now_ns() < deadline_ns);
    bl__store_session_check(world.session);
    pthread_mutex_unlock(&world.shared.mutex);
    usleep(1000);
    pthread_mutex_lock(&world.shared.mutex);
  }
  assert_int_equal(world.session->state, BL_STORE_SESSION_FAILED);
  pthread_mutex_unlock(&world.shared.mutex);
  finish(&world);
}

static void test_sessions_rest(void **state) {
  world_t world, other;
  begin(&world, *state, 0);
  become_ready(&world);
  round_trip(&world, 1);
  pthread_mutex_lock(&world.shared.mutex);
  bl__store_session_rest(world.session);
  assert_int_equal(world.session->state, BL_STORE_SESSION_RESTING);
  pthread_mutex_unlock(&world.shared.mutex);
  // Its store slots are free: in the end another job has all of the store.
  const uint64_t deadline_ns = bl_clock_now_ns() + WAIT_NS;
  bl_client_options_t options = options_of(*state, 0);
  options.job = "another";
  options.arena_bytes = UINT64_C(64) << 20;
  bl_client_t *client = NULL;
  bl_error_t err = {0};
  while (bl_client_open(&options, &client, &err) != BL_OK) {
    assert_int_equal(err.status, BL_EXHAUSTED);
    assert_true(bl_clock_now_ns() < deadline_ns);
    usleep(1000);
  }
  bl_client_close(client);
  pthread_mutex_lock(&world.shared.mutex);
  reopen_until_ready(&world);
  pthread_mutex_unlock(&world.shared.mutex);
  round_trip(&world, 2);
  finish(&world);
  begin(&other, *state, 0); // and a newer one of the same stage and plan
  become_ready(&other);
  round_trip(&other, 3);
  finish(&other);
}

static void test_a_slow_path_ends_at_once(void **state) {
  world_t world;
  begin(&world, *state, 1); // a byte per second
  become_ready(&world);
  fill_slots(&world, 1);
  pthread_mutex_lock(&world.shared.mutex);
  queue(&world, 0, false, 0);
  wait_until_one_moves(&world);
  pthread_mutex_unlock(&world.shared.mutex);
  finish(&world); // not in three days
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(test_blocks_go_and_come_back),
      TEST(test_more_blocks_than_slots_end_the_session),
      TEST(test_transfers_are_given_up),
      TEST(test_memory_is_free_before_the_session_is_closed),
      TEST(test_a_store_stands_still),
      TEST(test_a_store_dies_and_is_back),
      TEST(test_a_death_while_nothing_moves_is_noticed),
      TEST(test_sessions_rest),
      TEST(test_a_slow_path_ends_at_once),
  };
  store_ttl = store_grace = "60"; // stores are stopped here for a while
  int failed = cmocka_run_group_tests_name("shm", tests, NULL, NULL);
  data_path = BL_CLIENT_PATH_TCP;
  return failed + cmocka_run_group_tests_name("tcp", tests, NULL, NULL);
}
