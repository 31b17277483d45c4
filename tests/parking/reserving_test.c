// SPDX-License-Identifier: Apache-2.0
// Verifies that nothing of a stage's plan waits for a store that stands still: store slots are reserved beside what
// runs, and are there once the store goes on; slots that come later are sources too; a run begins while a session is
// opened, and its evictions wait for that; plans that are of no use any more are left at once.
#include "client/fixture.h"
#include "client/runtime.h"
#include "datapath/block.h"
#include "parking/store_parking.h"

#define BYTES   (UINT64_C(4) * GRANULE)
#define SLOTS   4u
#define PLANNED 2u
#define LIMIT   (UINT64_C(120) * BL_NS_PER_S)
#define TRIES   20 // of what a machine that stands still for seconds may spoil

typedef struct world {
  fixture_t *fixture;
  bl_memory_account_t account;
  bl_segments_t slots;
  uint32_t own[2], lent[2], reserved[4], evicted[2], dropped[2];
  bl_device_slots_t device_slots;
  uint64_t evict_bytes[2];
  const char *stores[2];
  uint64_t plan;
  bl_client_runtime_t *runtime;
} world_t;

static void begin(world_t *world, fixture_t *fixture) {
  bl_error_t err = {0};
  *world = (world_t){.fixture = fixture,
                     .own = {SLOTS, SLOTS},
                     .lent = {0, PLANNED},
                     .reserved = {0, PLANNED, 0, 0},
                     .evict_bytes = {BYTES, BYTES},
                     .stores = {fixture->store.address, fixture->store.address}};
  world->device_slots = (bl_device_slots_t){.devices = 2,
                                            .stores = 2,
                                            .own = world->own,
                                            .lent = world->lent,
                                            .reserved = world->reserved,
                                            .evicted = world->evicted,
                                            .dropped = world->dropped};
  bl_memory_plan(&world->account, BL_MEMORY_SLOTS, SLOTS * BYTES);
  must(bl_segments_init(&world->slots, bl_device_host(), &world->account, BL_MEMORY_SLOTS, BL_ARENA_SHAREABLE, SLOTS,
                        BYTES, &err),
       &err);
  must(bl_segments_resize(&world->slots, SLOTS - 1, &err), &err);
  must(bl_client_runtime_create(NULL, &world->runtime, &err), &err);
}

static void finish(world_t *world) {
  bl_client_runtime_destroy(world->runtime);
  bl_segments_cleanup(&world->slots);
}

static bl_store_parking_t *create(world_t *world) {
  bl_store_parking_t *parking = NULL;
  bl_error_t err = {0};
  const bl_store_parking_options_t options = {.job = "job",
                                              .plan = ++world->plan,
                                              .device_slots = &world->device_slots,
                                              .stores = world->stores,
                                              .evict_bytes = world->evict_bytes,
                                              .slots = &world->slots,
                                              .own_slots = SLOTS,
                                              .slots_there = world->slots.count,
                                              .virtual_stages = 2,
                                              .micro_batches = 8,
                                              .path = data_path,
                                              .runtime = world->runtime};
  must(bl_store_parking_create(&options, &parking, &err), &err);
  return parking;
}

static bl_store_parking_t *create_ready(world_t *world) {
  bl_error_t err = {0};
  for (int i = 0; i < TRIES; i++) {
    bl_store_parking_t *parking = create(world);
    if (bl_store_parking_await(parking, UINT64_MAX, &err) == BL_OK) {
      return parking;
    }
    bl_store_parking_destroy(parking);
  }
  fail_msg("%s", err.text);
  return NULL;
}

static bl_parked_block_t block_of(const world_t *world, uint64_t attempt, uint32_t slot) {
  return (bl_parked_block_t){.key = {.attempt = attempt, .virtual_stage = 0, .micro_batch = slot},
                             .store = 1,
                             .bytes = BYTES,
                             .checksum = bl_block_checksum(bl_segments_at(&world->slots, slot), BYTES)};
}

static bl_parking_outcome_t wait_for(bl_parking_t *seam, const bl_parked_block_t *block) {
  bl_parking_outcome_t outcome = BL_PARKING_LOST;
  bl_error_t err = {0};
  must(seam->ops->wait(seam, block->key, bl_clock_now_ns() + LIMIT, &outcome, &err), &err);
  return outcome;
}

// There and back into the same slot.
static void round_trip(const world_t *world, bl_store_parking_t *parking, uint64_t attempt, uint32_t slot) {
  bl_parking_t *seam = bl_store_parking_seam(parking);
  static uint8_t expected[BYTES];
  bl_error_t err = {0};
  fill(bl_segments_at(&world->slots, slot), BYTES, attempt);
  fill(expected, BYTES, attempt);
  const bl_parked_block_t block = block_of(world, attempt, slot);
  must(seam->ops->begin_evict(seam, &block, bl_segments_at(&world->slots, slot), &err), &err);
  assert_int_equal(wait_for(seam, &block), BL_PARKING_DONE);
  memset(bl_segments_at(&world->slots, slot), 0, BYTES);
  must(seam->ops->begin_load(seam, &block, bl_segments_at(&world->slots, slot), &err), &err);
  assert_int_equal(wait_for(seam, &block), BL_PARKING_DONE);
  assert_memory_equal(bl_segments_at(&world->slots, slot), expected, BYTES);
}

static void begin_attempt(bl_store_parking_t *parking, uint64_t attempt) {
  bl_error_t err = {0};
  bl_parking_t *seam = bl_store_parking_seam(parking);
  must(seam->ops->begin(seam, attempt, &err), &err);
}

static void test_slots_are_reserved_beside(void **state) {
  world_t world;
  bl_error_t err = {0};
  begin(&world, *state);
  bl_status_t status = BL_UNAVAILABLE;
  for (int i = 0; status != BL_OK && i < TRIES; i++) {
    kill(world.fixture->store.pid, SIGSTOP);
    bl_store_parking_t *parking = create(&world);
    assert_int_equal(bl_store_parking_await(parking, bl_clock_now_ns() + 20 * BL_NS_PER_MS, &err), BL_DEADLINE);
    assert_non_null(strstr(err.text, "the store of device 1"));
    assert_non_null(strstr(err.text, "has not answered yet"));
    kill(world.fixture->store.pid, SIGCONT);
    status = bl_store_parking_await(parking, UINT64_MAX, &err);
    if (status == BL_OK) {
      must(bl_segments_resize(&world.slots, SLOTS, &err), &err); // the last slot of the plan comes now
      must(bl_store_parking_extend(parking, &world.slots, &err), &err);
      begin_attempt(parking, 1);
      round_trip(&world, parking, 1, 0);
      round_trip(&world, parking, 1, SLOTS - 1);
    }
    bl_store_parking_destroy(parking);
  }
  must(status, &err);
  finish(&world);
}

// It rested, so that the session is opened by the run: that begins at once, and the eviction waits for the session.
static void test_runs_begin_while_sessions_are_opened(void **state) {
  world_t world;
  bl_error_t err = {0};
  begin(&world, *state);
  bl_parking_outcome_t outcome = BL_PARKING_LOST;
  for (uint64_t i = 1; outcome != BL_PARKING_DONE && i <= TRIES; i++) {
    bl_store_parking_t *parking = create_ready(&world);
    bl_parking_t *seam = bl_store_parking_seam(parking);
    bl_store_parking_rest(parking);
    kill(world.fixture->store.pid, SIGSTOP);
    begin_attempt(parking, i);
    fill(bl_segments_at(&world.slots, 0), BYTES, i);
    const bl_parked_block_t block = block_of(&world, i, 0);
    must(seam->ops->begin_evict(seam, &block, bl_segments_at(&world.slots, 0), &err), &err);
    assert_false(seam->ops->poll(seam, block.key));
    kill(world.fixture->store.pid, SIGCONT);
    outcome = wait_for(seam, &block);
    bl_store_parking_destroy(parking);
  }
  assert_int_equal(outcome, BL_PARKING_DONE);
  finish(&world);
}

// With a store that stands still for ever.
static void test_plans_are_left_at_once(void **state) {
  world_t world;
  bl_error_t err = {0};
  begin(&world, *state);
  bl_store_parking_t *parking = create_ready(&world);
  bl_parking_t *seam = bl_store_parking_seam(parking);
  begin_attempt(parking, 1);
  round_trip(&world, parking, 1, 0);
  kill(world.fixture->store.pid, SIGSTOP);
  const bl_parked_block_t block = block_of(&world, 1, 1);
  must(seam->ops->begin_evict(seam, &block, bl_segments_at(&world.slots, 1), &err), &err);
  seam->ops->abort(seam, 1);
  bl_store_parking_destroy(parking); // and nothing reads the slot any more
  must(bl_segments_resize(&world.slots, 0, &err), &err);
  bl_store_parking_destroy(create(&world)); // one that is being opened
  kill(world.fixture->store.pid, SIGCONT);
  bl_client_runtime_wait(world.runtime);
  finish(&world);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(test_slots_are_reserved_beside),
      TEST(test_runs_begin_while_sessions_are_opened),
      TEST(test_plans_are_left_at_once),
  };
  int failed = cmocka_run_group_tests_name("shm", tests, NULL, NULL);
  data_path = BL_CLIENT_PATH_TCP;
  return failed + cmocka_run_group_tests_name("tcp", tests, NULL, NULL);
}
