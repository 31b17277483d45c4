// SPDX-License-Identifier: Apache-2.0
// Verifies the executor's seam over stores that come and go, without a store: what a compute thread does at random,
// while another thread ends transfers, refuses, dies and interrupts, touches no slot that a transfer has and gets back
// the bytes that it gave; parkings are destroyed in the middle of everything. And a path of limited rate.
#include "parking/fake_client.h"

#include "base/random.h"
#include "datapath/block.h"
#include "parking/store_parking.h"
#include "seed.h"
#include "sys/clock.h"
#include "sys/log.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#define STORES      2u
#define STORE_SLOTS 4u  // of each
#define SLOTS       12u // half of them go to each store
#define BYTES       UINT64_C(4096)
#define LIFES       12 // of a parking
#define ATTEMPTS    12 // of each
#define STEPS       60 // of each
#define LONG_NS     (UINT64_C(300) * BL_NS_PER_S)
#define SLOW_NS     (UINT64_C(40) * BL_NS_PER_MS) // of a block on the slow path

typedef enum { HERE, LEAVING, PARKED, COMING } place_t;

typedef struct world {
  bl_memory_account_t account;
  bl_segments_t slots;
  uint32_t own[STORES + 1], lent[STORES + 1], reserved[(STORES + 1) * (STORES + 1)], evicted[STORES + 1],
      dropped[STORES + 1];
  bl_device_slots_t device_slots;
  uint64_t evict_bytes[STORES + 1];
  const char *stores[STORES + 1];
  bl_store_parking_t *parking;
  bl_parking_t *seam;
  uint64_t attempt, seed, draws;
  place_t places[SLOTS];
  bl_parked_block_t blocks[SLOTS];
  uint32_t used[STORES + 1]; // store slots, as a plan counts them

  unsigned trouble; // in a thousand
  pthread_t runtime;
  atomic_bool ending;
  pthread_mutex_t mutex; // for
  bool may_interrupt;    // the parking is there
} world_t;

static uint64_t draw(world_t *world, uint64_t bound) {
  return bl_random_below(world->seed, world->draws++, bound);
}

static void must(bl_status_t status, const bl_error_t *err) {
  if (status != BL_OK) {
    fail_msg("%s: %s", bl_status_name(status), err->text);
  }
}

static void set_up(world_t *world, uint64_t seed) {
  bl_error_t err = {0};
  *world = (world_t){.seed = seed};
  fake_reset(seed);
  for (uint32_t d = 0; d <= STORES; d++) {
    world->own[d] = SLOTS;
    world->evict_bytes[d] = BYTES;
    world->stores[d] = "store";
    world->reserved[d] = d == 0 ? 0 : STORE_SLOTS; // by stage 0
  }
  world->device_slots = (bl_device_slots_t){.devices = STORES, // the last one is a host store
                                            .stores = STORES + 1,
                                            .own = world->own,
                                            .lent = world->lent,
                                            .reserved = world->reserved,
                                            .evicted = world->evicted,
                                            .dropped = world->dropped};
  bl_memory_plan(&world->account, BL_MEMORY_SLOTS, SLOTS * BYTES);
  must(bl_segments_init(&world->slots, bl_device_host(), &world->account, BL_MEMORY_SLOTS, BL_ARENA_SHAREABLE, SLOTS,
                        BYTES, &err),
       &err);
  must(bl_segments_resize(&world->slots, SLOTS, &err), &err);
  pthread_mutex_init(&world->mutex, NULL);
}

static void tear_down(world_t *world) {
  assert_int_equal(fake_client_count(), 0);
  pthread_mutex_destroy(&world->mutex);
  bl_segments_cleanup(&world->slots);
}

static void create(world_t *world, uint64_t bytes_per_second, uint32_t slots_there) {
  bl_error_t err = {0};
  const bl_store_parking_options_t options = {.job = "job",
                                              .plan = 1,
                                              .rank = 5,
                                              .host_planes = 1,
                                              .device_slots = &world->device_slots,
                                              .stores = world->stores,
                                              .evict_bytes = world->evict_bytes,
                                              .slots = &world->slots,
                                              .own_slots = SLOTS,
                                              .slots_there = slots_there,
                                              .virtual_stages = 1,
                                              .micro_batches = SLOTS,
                                              .bytes_per_second = bytes_per_second};
  must(bl_store_parking_create(&options, &world->parking, &err), &err);
  world->seam = bl_store_parking_seam(world->parking);
}

static void begin(world_t *world) {
  bl_error_t err = {0};
  must(world->seam->ops->begin(world->seam, ++world->attempt, &err), &err);
  memset(world->places, 0, sizeof world->places);
  memset(world->used, 0, sizeof world->used);
}

// Writes the slot, which must be ours.
static void write_slot(world_t *world, uint32_t i) {
  memset(bl_segments_at(&world->slots, i), (int)draw(world, 256), BYTES);
}

static bl_status_t begin_evict(world_t *world, uint32_t i, bl_error_t *err) {
  uint8_t *slot = bl_segments_at(&world->slots, i);
  write_slot(world, i);
  world->blocks[i] = (bl_parked_block_t){.key = {.attempt = world->attempt, .micro_batch = i},
                                         .store = (uint16_t)(1 + i % STORES),
                                         .bytes = BYTES,
                                         .checksum = bl_block_checksum(slot, BYTES)};
  return world->seam->ops->begin_evict(world->seam, &world->blocks[i], slot, err);
}

static bl_status_t wait_for(world_t *world, uint32_t i, uint64_t deadline_ns, bl_parking_outcome_t *outcome) {
  bl_error_t err = {0};
  bl_status_t status = world->seam->ops->wait(world->seam, world->blocks[i].key, deadline_ns, outcome, &err);
  assert_true(status == BL_OK || status == BL_CANCELLED);
  return status;
}

// ---- at random ------------------------------------------------------------------------------------------------------

static void *run(void *argument) {
  world_t *world = argument;
  for (uint64_t i = 0; !atomic_load(&world->ending) || fake_client_count() > 0; i++) {
    if (!fake_step(world->trouble)) {
      usleep(20);
    }
    if (world->trouble > 0 && i % 997 == 0) {
      pthread_mutex_lock(&world->mutex);
      if (world->may_interrupt) {
        world->seam->ops->interrupt(world->seam);
      }
      pthread_mutex_unlock(&world->mutex);
    }
  }
  return NULL;
}

static void set_interruptible(world_t *world, bool may) {
  pthread_mutex_lock(&world->mutex);
  world->may_interrupt = may;
  pthread_mutex_unlock(&world->mutex);
}

// False: the attempt was interrupted.
static bool leave(world_t *world, uint32_t i) {
  bl_error_t err = {0};
  const uint32_t store = 1 + i % STORES;
  if (world->used[store] == STORE_SLOTS) {
    return true;
  }
  bl_status_t status = begin_evict(world, i, &err);
  if (status == BL_OK) {
    world->places[i] = LEAVING;
    world->used[store]++;
  } else {
    assert_true(status == BL_UNAVAILABLE || status == BL_CANCELLED);
    write_slot(world, i);
  }
  return status != BL_CANCELLED;
}

static bool come_back(world_t *world, uint32_t i) {
  bl_error_t err = {0};
  uint8_t *slot = bl_segments_at(&world->slots, i);
  write_slot(world, i); // somebody else had it meanwhile
  bl_status_t status = world->seam->ops->begin_load(world->seam, &world->blocks[i], slot, &err);
  world->used[1 + i % STORES]--;
  world->places[i] = status == BL_OK ? COMING : HERE;
  assert_true(status == BL_OK || status == BL_UNAVAILABLE || status == BL_CANCELLED);
  return status != BL_CANCELLED;
}

static bool wait_one(world_t *world, uint32_t i) {
  bl_parking_outcome_t outcome;
  const bool patient = draw(world, 20) != 0, comes = world->places[i] == COMING;
  if (wait_for(world, i, patient ? bl_clock_now_ns() + LONG_NS : bl_clock_now_ns(), &outcome) != BL_OK) {
    return false;
  }
  assert_false(fake_touches(bl_segments_at(&world->slots, i)));
  if (comes && outcome == BL_PARKING_DONE) {
    assert_int_equal(bl_block_checksum(bl_segments_at(&world->slots, i), BYTES), world->blocks[i].checksum);
  }
  const bool parked = !comes && outcome == BL_PARKING_DONE;
  world->used[1 + i % STORES] -= !comes && !parked;
  world->places[i] = parked ? PARKED : HERE;
  write_slot(world, i);
  return true;
}

static bool do_one(world_t *world) {
  const uint32_t i = (uint32_t)draw(world, SLOTS);
  switch (world->places[i]) {
  case HERE:
    return leave(world, i);
  case PARKED:
    return come_back(world, i);
  default:
    return (!world->seam->ops->poll(world->seam, world->blocks[i].key) && draw(world, 3) > 0) || wait_one(world, i);
  }
}

static void expect_all_ours(world_t *world) {
  for (uint32_t i = 0; i < SLOTS; i++) {
    assert_false(fake_touches(bl_segments_at(&world->slots, i)));
    write_slot(world, i);
  }
}

static void attempt_once(world_t *world) {
  begin(world);
  expect_all_ours(world);
  bool goes_on = true;
  for (unsigned i = 0; i < STEPS && goes_on; i++) {
    goes_on = do_one(world);
  }
  for (uint32_t i = 0; i < SLOTS && goes_on && world->attempt % 3 != 0; i++) { // ends in good order
    goes_on = world->places[i] == HERE || world->places[i] == PARKED || wait_one(world, i);
  }
  if (!goes_on || world->attempt % 3 != 1) { // else the next `begin` finds it as it is
    world->seam->ops->abort(world->seam, world->attempt);
    expect_all_ours(world);
  }
  if (draw(world, 4) == 0) {
    bl_store_parking_rest(world->parking);
  }
}

// Few sources at first, more later; sometimes destroyed while it opens, or without an end of its last attempt.
static void live_once(world_t *world) {
  bl_error_t err = {0};
  create(world, 0, SLOTS - 2);
  const bool opens = draw(world, 6) == 0;
  if (!opens && bl_store_parking_await(world->parking, bl_clock_now_ns() + LONG_NS, &err) == BL_OK) {
    must(bl_store_parking_extend(world->parking, &world->slots, &err), &err);
    set_interruptible(world, true);
    for (unsigned i = 0; i < ATTEMPTS; i++) {
      attempt_once(world);
    }
    set_interruptible(world, false);
  }
  bl_store_parking_destroy(world->parking);
  expect_all_ours(world);
}

static void test_random_attempts(void **state) {
  (void)state;
  const uint64_t seed = test_seed(20261123);
  for (unsigned trouble = 0; trouble <= 30; trouble += 15) {
    world_t world;
    set_up(&world, bl_random_bits(seed, trouble));
    world.trouble = trouble;
    assert_int_equal(pthread_create(&world.runtime, NULL, run, &world), 0);
    for (unsigned i = 0; i < LIFES; i++) {
      live_once(&world);
    }
    atomic_store(&world.ending, true);
    assert_int_equal(pthread_join(world.runtime, NULL), 0);
    tear_down(&world);
  }
}

// ---- a slow path ----------------------------------------------------------------------------------------------------

static void begin_slow(world_t *world, uint64_t bytes_per_second) {
  set_up(world, 1);
  create(world, bytes_per_second, SLOTS);
  while (fake_step(0)) {
  }
  begin(world);
}

static void evict(world_t *world, uint32_t i) {
  bl_error_t err = {0};
  must(begin_evict(world, i, &err), &err);
}

static bool poll(world_t *world, uint32_t i) {
  return world->seam->ops->poll(world->seam, world->blocks[i].key);
}

static void finish(world_t *world) {
  bl_store_parking_destroy(world->parking);
  while (fake_step(0)) {
  }
  tear_down(world);
}

static void test_a_slow_path_takes_its_time(void **state) {
  (void)state;
  world_t world;
  begin_slow(&world, BYTES * BL_NS_PER_S / SLOW_NS);
  const uint64_t begun_ns = bl_clock_now_ns();
  evict(&world, 0);
  evict(&world, 2); // at the same store
  evict(&world, 1); // at the other
  while (fake_step(0)) {
  }
  assert_false(fake_touches(bl_segments_at(&world.slots, 2)));
  bl_parking_outcome_t outcome = BL_PARKING_LOST;
  const bool too_early = poll(&world, 2) && bl_clock_now_ns() < begun_ns + 2 * SLOW_NS;
  assert_false(too_early);
  assert_int_equal(wait_for(&world, 0, UINT64_MAX, &outcome), BL_OK);
  assert_int_equal(outcome, BL_PARKING_DONE);
  assert_true(bl_clock_now_ns() >= begun_ns + SLOW_NS);
  assert_int_equal(wait_for(&world, 2, bl_clock_now_ns() + LONG_NS, &outcome), BL_OK);
  assert_int_equal(outcome, BL_PARKING_DONE);
  assert_true(bl_clock_now_ns() >= begun_ns + 2 * SLOW_NS);
  assert_true(poll(&world, 1));
  const bl_store_parking_moved_t moved = bl_store_parking_moved(world.parking);
  assert_int_equal(moved.bytes, 3 * BYTES);
  assert_int_equal(moved.host_bytes, BYTES);
  assert_true(moved.ns - moved.host_ns >= 2 * SLOW_NS && moved.host_ns > 0); // a host store slows itself down
  assert_int_equal(bl_store_parking_cross_machine_bytes(world.parking), 0);
  finish(&world);
}

static void test_bytes_to_another_machine_are_counted(void **state) {
  (void)state;
  world_t world;
  set_up(&world, 1);
  fake_cross(true);
  create(&world, 0, SLOTS);
  while (fake_step(0)) {
  }
  begin(&world);
  evict(&world, 0);
  evict(&world, 1);
  while (fake_step(0)) {
  }
  bl_parking_outcome_t outcome = BL_PARKING_LOST;
  for (uint32_t i = 0; i < 2; i++) {
    assert_int_equal(wait_for(&world, i, bl_clock_now_ns() + LONG_NS, &outcome), BL_OK);
    assert_int_equal(outcome, BL_PARKING_DONE);
  }
  assert_int_equal(bl_store_parking_cross_machine_bytes(world.parking), 2 * BYTES);
  finish(&world);
}

// At a byte per second, so that each takes more than an hour.
static void test_nothing_else_waits_for_a_slow_path(void **state) {
  (void)state;
  world_t world;
  begin_slow(&world, 1);
  bl_parking_outcome_t outcome = BL_PARKING_DONE;
  evict(&world, 0);
  while (fake_step(0)) {
  }
  assert_false(poll(&world, 0));
  assert_int_equal(wait_for(&world, 0, bl_clock_now_ns() + BL_NS_PER_MS, &outcome), BL_OK);
  assert_int_equal(outcome, BL_PARKING_LOST); // it did not come in time
  evict(&world, 2);
  while (fake_step(0)) {
  }
  world.seam->ops->interrupt(world.seam);
  assert_int_equal(wait_for(&world, 2, UINT64_MAX, &outcome), BL_CANCELLED);
  world.seam->ops->abort(world.seam, world.attempt);
  begin(&world);
  while (fake_step(0)) { // another session, as the store had blocks
  }
  evict(&world, 4);
  while (fake_step(0)) {
  }
  finish(&world);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_random_attempts),
      cmocka_unit_test(test_a_slow_path_takes_its_time),
      cmocka_unit_test(test_bytes_to_another_machine_are_counted),
      cmocka_unit_test(test_nothing_else_waits_for_a_slow_path),
  };
  bl_log_init("seam_test", BL_LOG_ERROR);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
