// SPDX-License-Identifier: Apache-2.0
// Verifies the state machine of one store as a stage uses it, without a store: transfers begin in order, several at a
// time where the path is brisk; what finds no slot waits; sessions that are refused, fail, rest or are given up in the
// middle end every transfer once, and none while its memory is in use. Then the same over thousands of random steps.
#include "parking/fake_client.h"

#include "base/random.h"
#include "datapath/block.h"
#include "parking/store_session.h"
#include "seed.h"
#include "sys/clock.h"
#include "sys/log.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <string.h>

#define BLOCKS      24u
#define BYTES       256u
#define STORE_SLOTS 12u
#define WALKS       60
#define WALK_STEPS  600

typedef struct world {
  bl_store_sessions_t shared;
  bl_store_session_t *session;
  bl_client_region_t regions[BLOCKS]; // slot i is source i
  uint8_t slots[BLOCKS][BYTES];
  bl_transfer_t transfers[BLOCKS];
  uint64_t queued[BLOCKS], queue_count; // number of the transfer in the order of the queue
  unsigned destroyed;
} world_t;

static void destroyed(void *context) {
  world_t *world = context;
  world->destroyed++;
}

static void begin(world_t *world, uint32_t store_slots, size_t region_count, const char *address, uint64_t seed) {
  *world = (world_t){0};
  bl_store_session_options_t options = {.name = "store of device 3",
                                        .job = "job",
                                        .regions = world->regions,
                                        .region_count = region_count,
                                        .store_slots = store_slots,
                                        .slot_bytes = BYTES};
  snprintf(options.address, sizeof options.address, "%s", address);
  for (uint32_t i = 0; i < BLOCKS; i++) {
    world->regions[i] = (bl_client_region_t){.base = world->slots[i], .bytes = BYTES, .fd = -1};
  }
  bl_error_t err = {0};
  fake_reset(seed);
  bl__store_sessions_init(&world->shared, destroyed, world);
  pthread_mutex_lock(&world->shared.mutex);
  assert_int_equal(bl__store_session_create(&options, &world->shared, &world->session, &err), BL_OK);
  pthread_mutex_unlock(&world->shared.mutex);
}

static void begin_ready(world_t *world, uint32_t store_slots) {
  begin(world, store_slots, BLOCKS, "store", 0);
  assert_int_equal(world->session->state, BL_STORE_SESSION_OPENING);
  fake_open(fake_client(), BL_OK, "");
  assert_int_equal(world->session->state, BL_STORE_SESSION_READY);
}

static void finish(world_t *world) {
  pthread_mutex_lock(&world->shared.mutex);
  bl__store_session_end(world->session);
  pthread_mutex_unlock(&world->shared.mutex);
  bl__store_sessions_release(&world->shared);
  const bool has_client = fake_client_count() > 0;
  assert_int_equal(world->destroyed, !has_client);
  fake_close_all();
  assert_int_equal(fake_client_count(), 0);
  assert_int_equal(world->destroyed, 1);
  for (uint32_t i = 0; i < BLOCKS; i++) {
    assert_true(world->transfers[i].state == BL_TRANSFER_IDLE || world->transfers[i].state == BL_TRANSFER_OVER);
  }
  bl__store_session_destroy(world->session);
  bl__store_sessions_cleanup(&world->shared);
}

// [m] Block `i` leaves slot i, or comes back there.
static void queue_locked(world_t *world, uint32_t i, bool load) {
  bl_transfer_t *transfer = &world->transfers[i];
  assert_false(fake_touches(world->slots[i]));
  bl_transfer_t made = {.block = transfer->block, .memory = world->slots[i], .load = load};
  if (load) {
    made.store_slot = transfer->store_slot;
    memset(world->slots[i], 0, BYTES);
  } else {
    memset(world->slots[i], (int)(world->queue_count % 251) + 1, BYTES);
    made.block = (bl_parked_block_t){.key = {.virtual_stage = 1, .micro_batch = i},
                                     .bytes = BYTES,
                                     .checksum = bl_block_checksum(world->slots[i], BYTES)};
  }
  *transfer = made;
  world->queued[i] = ++world->queue_count;
  bl__store_session_queue(world->session, transfer);
}

static void queue(world_t *world, uint32_t i, bool load) {
  pthread_mutex_lock(&world->shared.mutex);
  queue_locked(world, i, load);
  pthread_mutex_unlock(&world->shared.mutex);
}

static void call(world_t *world, void (*method)(bl_store_session_t *session)) {
  pthread_mutex_lock(&world->shared.mutex);
  method(world->session);
  pthread_mutex_unlock(&world->shared.mutex);
}

static void end_well(const world_t *world, uint32_t i) {
  fake_end(fake_client(), world->slots[i], BL_OK, "");
}

static void expect(const world_t *world, uint32_t i, bl_transfer_state_t state) {
  assert_int_equal(world->transfers[i].state, state);
}

static void expect_over(const world_t *world, uint32_t i, bl_parking_outcome_t outcome) {
  expect(world, i, BL_TRANSFER_OVER);
  assert_int_equal(world->transfers[i].outcome, outcome);
}

static void expect_started(const world_t *world, unsigned count) {
  const void *memory[FAKE_STARTS];
  assert_int_equal(fake_starts(memory), count);
  for (unsigned i = 0; i < count && i < BLOCKS; i++) {
    assert_ptr_equal(memory[i], world->slots[i]);
  }
}

static void park(world_t *world, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) {
    queue(world, i, false);
    end_well(world, i);
    expect_over(world, i, BL_PARKING_DONE);
  }
}

static void test_transfers_begin_in_order(void **state) {
  (void)state;
  world_t world;
  begin(&world, STORE_SLOTS, BLOCKS, "store", 0);
  for (uint32_t i = 0; i < STORE_SLOTS; i++) {
    queue(&world, i, false);
  }
  expect_started(&world, 0);
  fake_open(fake_client(), BL_OK, "");
  expect_started(&world, 1); // the first shows how long one takes
  end_well(&world, 0);
  expect_started(&world, 1 + BL_STORE_SESSION_IN_FLIGHT);
  assert_int_equal(world.session->moving_count, BL_STORE_SESSION_IN_FLIGHT);
  end_well(&world, 4); // in any order
  expect_started(&world, 2 + BL_STORE_SESSION_IN_FLIGHT);
  end_well(&world, 9);
  end_well(&world, 1);
  expect_started(&world, STORE_SLOTS);
  for (uint32_t i = 0; i < STORE_SLOTS; i++) {
    if (world.transfers[i].state == BL_TRANSFER_MOVING) {
      end_well(&world, i);
    }
    expect_over(&world, i, BL_PARKING_DONE);
    assert_int_equal(world.transfers[i].epoch, 1);
  }
  assert_int_equal(world.session->held, STORE_SLOTS);
  assert_int_equal(world.session->moved_bytes, STORE_SLOTS * BYTES);
  finish(&world);
}

static void test_a_slow_path_has_one_at_a_time(void **state) {
  (void)state;
  world_t world;
  begin_ready(&world, STORE_SLOTS);
  for (uint32_t i = 0; i < 10; i++) {
    queue(&world, i, false);
  }
  world.transfers[0].begun_ns -= BL_STORE_SESSION_BRISK_MS * BL_NS_PER_MS;
  end_well(&world, 0);
  expect_started(&world, 2);
  end_well(&world, 1); // brisk again
  expect_started(&world, 10);
  assert_true(world.session->moved_ns < 10 * BL_NS_PER_S);
  finish(&world);
}

static void test_an_eviction_waits_for_a_slot(void **state) {
  (void)state;
  world_t world;
  begin_ready(&world, 2);
  park(&world, 2);
  queue(&world, 0, true);
  queue(&world, 2, false); // takes the slot of 0
  queue(&world, 1, true);  // and does not get ahead of it
  expect(&world, 0, BL_TRANSFER_MOVING);
  expect(&world, 2, BL_TRANSFER_QUEUED);
  expect(&world, 1, BL_TRANSFER_QUEUED);
  assert_int_equal(world.session->held, 2);
  end_well(&world, 0);
  expect(&world, 2, BL_TRANSFER_MOVING);
  expect(&world, 1, BL_TRANSFER_MOVING);
  assert_int_equal(world.transfers[2].store_slot, world.transfers[0].store_slot);
  end_well(&world, 1);
  end_well(&world, 2);
  assert_int_equal(world.session->held, 1);
  assert_int_equal(world.session->held_peak, 2);
  finish(&world);
}

static void test_an_eviction_without_a_slot_ends_the_session(void **state) {
  (void)state;
  world_t world;
  begin_ready(&world, 2);
  for (uint32_t i = 0; i < 4; i++) {
    queue(&world, i, false);
  }
  end_well(&world, 0);
  expect(&world, 2, BL_TRANSFER_QUEUED); // as 1 may still fail and leave its slot
  end_well(&world, 1);
  expect_over(&world, 1, BL_PARKING_DONE);
  expect_over(&world, 2, BL_PARKING_LOST);
  expect_over(&world, 3, BL_PARKING_LOST);
  assert_int_equal(world.session->state, BL_STORE_SESSION_FAILED);
  assert_int_equal(world.session->err.status, BL_INTERNAL);
  assert_string_equal(world.session->err.text, "more blocks for it than the plan reserves store slots");
  finish(&world);
}

static void test_a_block_that_fails_leaves_the_others(void **state) {
  (void)state;
  world_t world;
  begin_ready(&world, 3);
  park(&world, 1);
  queue(&world, 1, false);
  queue(&world, 2, false);
  fake_end(fake_client(), world.slots[1], BL_DATA_LOSS, "changed");
  expect_over(&world, 1, BL_PARKING_LOST);
  assert_int_equal(world.transfers[1].epoch, 0);
  end_well(&world, 2);
  assert_int_equal(world.session->held, 2);
  queue(&world, 3, false); // its slot is empty
  end_well(&world, 3);
  expect_over(&world, 3, BL_PARKING_DONE);
  queue(&world, 0, true);
  fake_end(fake_client(), world.slots[0], BL_DATA_LOSS, "changed");
  expect_over(&world, 0, BL_PARKING_LOST);
  assert_int_equal(world.session->held, 2);
  assert_int_equal(world.session->state, BL_STORE_SESSION_READY);
  finish(&world);
}

// One of several says that the store is gone: what waits is lost at once, what is under way when the client has ended
// it.
static void test_a_store_dies_in_the_middle_of_several(void **state) {
  (void)state;
  world_t world;
  begin_ready(&world, STORE_SLOTS);
  park(&world, 2);
  queue(&world, 0, true);
  for (uint32_t i = 2; i < STORE_SLOTS; i++) {
    queue(&world, i, false);
  }
  fake_end(fake_client(), world.slots[3], BL_UNAVAILABLE, "silent");
  assert_int_equal(world.session->state, BL_STORE_SESSION_FAILED);
  assert_int_equal(world.session->err.status, BL_UNAVAILABLE);
  assert_true(fake_is_closing(fake_client()));
  expect_over(&world, 3, BL_PARKING_LOST);
  expect_over(&world, STORE_SLOTS - 1, BL_PARKING_LOST);
  queue(&world, STORE_SLOTS, false); // which comes too late
  expect_over(&world, STORE_SLOTS, BL_PARKING_LOST);
  expect(&world, 0, BL_TRANSFER_MOVING);
  expect(&world, 2, BL_TRANSFER_MOVING);
  call(&world, bl__store_session_reopen); // a try, which comes after the end of the old session
  assert_int_equal(world.session->state, BL_STORE_SESSION_OPENING);
  assert_false(world.session->hurried);
  assert_int_equal(fake_client_count(), 1);
  end_well(&world, 0); // it had come already
  expect_over(&world, 0, BL_PARKING_DONE);
  fake_close(fake_client());
  for (uint32_t i = 2; i < STORE_SLOTS; i++) {
    expect_over(&world, i, BL_PARKING_LOST);
  }
  assert_int_equal(fake_client_count(), 1);
  fake_open(fake_client(), BL_UNAVAILABLE, "still silent");
  assert_int_equal(world.session->state, BL_STORE_SESSION_FAILED);
  assert_string_equal(world.session->err.text, "still silent");
  fake_close_all();
  call(&world, bl__store_session_reopen);
  fake_open(fake_client(), BL_OK, "");
  assert_int_equal(world.session->state, BL_STORE_SESSION_READY);
  assert_int_equal(world.session->epoch, 2);
  assert_int_equal(world.session->held, 0);
  park(&world, STORE_SLOTS);
  finish(&world);
}

static void test_what_is_under_way_is_given_up(void **state) {
  (void)state;
  world_t world;
  begin_ready(&world, STORE_SLOTS);
  park(&world, 1);
  for (uint32_t i = 1; i < STORE_SLOTS; i++) {
    queue(&world, i, false);
  }
  call(&world, bl__store_session_flush);
  for (uint32_t i = 1; i < STORE_SLOTS; i++) {
    if (i <= BL_STORE_SESSION_IN_FLIGHT) {
      expect(&world, i, BL_TRANSFER_MOVING);
      assert_true(fake_is_cancelled(fake_client(), world.slots[i]));
    } else {
      expect_over(&world, i, BL_PARKING_LOST);
      assert_int_equal(world.transfers[i].store_slot, 0);
    }
  }
  for (uint32_t i = 1; i <= BL_STORE_SESSION_IN_FLIGHT; i++) {
    fake_end(fake_client(), world.slots[i], i == 2 ? BL_OK : BL_CANCELLED, "given up");
    expect_over(&world, i, i == 2 ? BL_PARKING_DONE : BL_PARKING_LOST);
  }
  assert_int_equal(world.session->state, BL_STORE_SESSION_READY);
  assert_int_equal(world.session->held, 1 + BL_STORE_SESSION_IN_FLIGHT); // store slots of unknown content are not empty
  finish(&world);
}

static void test_one_alone_is_given_up(void **state) {
  (void)state;
  world_t world;
  begin_ready(&world, STORE_SLOTS);
  for (uint32_t i = 0; i < 4; i++) {
    queue(&world, i, false);
  }
  pthread_mutex_lock(&world.shared.mutex);
  bl__store_session_cancel(world.session, &world.transfers[0]);
  bl__store_session_cancel(world.session, &world.transfers[2]);
  bl__store_session_cancel(world.session, &world.transfers[3]); // the last of the queue
  pthread_mutex_unlock(&world.shared.mutex);
  expect(&world, 0, BL_TRANSFER_MOVING);
  expect_over(&world, 2, BL_PARKING_LOST);
  expect_over(&world, 3, BL_PARKING_LOST);
  queue(&world, 4, false);
  fake_end(fake_client(), world.slots[0], BL_CANCELLED, "given up");
  expect_over(&world, 0, BL_PARKING_LOST);
  end_well(&world, 1);
  end_well(&world, 4);
  expect_over(&world, 4, BL_PARKING_DONE);
  finish(&world);
}

static void test_sources_that_come_later(void **state) {
  (void)state;
  world_t world;
  begin(&world, STORE_SLOTS, 2, "store", 0);
  fake_open(fake_client(), BL_OK, "");
  pthread_mutex_lock(&world.shared.mutex);
  bl__store_session_extend(world.session, 4);
  queue_locked(&world, 3, false);
  pthread_mutex_unlock(&world.shared.mutex);
  expect(&world, 3, BL_TRANSFER_QUEUED);
  fake_end(fake_client(), NULL, BL_OK, "");
  expect(&world, 3, BL_TRANSFER_QUEUED); // the store does not know of its own yet
  fake_end(fake_client(), NULL, BL_OK, "");
  end_well(&world, 3);
  expect_over(&world, 3, BL_PARKING_DONE);
  pthread_mutex_lock(&world.shared.mutex);
  bl__store_session_extend(world.session, 5);
  queue_locked(&world, 4, false);
  pthread_mutex_unlock(&world.shared.mutex);
  fake_end(fake_client(), NULL, BL_DENIED, "not sealed");
  expect_over(&world, 4, BL_PARKING_LOST);
  assert_int_equal(world.session->state, BL_STORE_SESSION_FAILED);
  assert_string_equal(world.session->err.text, "not sealed");
  finish(&world);
}

static void test_a_session_rests_with_everything_under_way(void **state) {
  (void)state;
  world_t world;
  begin(&world, STORE_SLOTS, 2, "store", 0);
  call(&world, bl__store_session_rest); // not one that is being opened
  assert_int_equal(world.session->state, BL_STORE_SESSION_OPENING);
  fake_open(fake_client(), BL_OK, "");
  park(&world, 2);
  queue(&world, 0, true);
  pthread_mutex_lock(&world.shared.mutex);
  bl__store_session_extend(world.session, 3); // a source is being shown
  queue_locked(&world, 2, false);
  bl__store_session_rest(world.session);
  pthread_mutex_unlock(&world.shared.mutex);
  assert_int_equal(world.session->state, BL_STORE_SESSION_RESTING);
  expect(&world, 0, BL_TRANSFER_MOVING);
  expect_over(&world, 2, BL_PARKING_LOST);
  call(&world, bl__store_session_reopen);
  assert_true(world.session->hurried);
  queue(&world, 2, false); // and this waits for the next session
  fake_close_all();
  expect_over(&world, 0, BL_PARKING_LOST);
  expect(&world, 2, BL_TRANSFER_QUEUED);
  fake_open(fake_client(), BL_OK, "");
  end_well(&world, 2);
  expect_over(&world, 2, BL_PARKING_DONE);
  assert_int_equal(world.transfers[2].epoch, 2);
  assert_int_equal(world.session->held, 1);
  finish(&world);
}

static void test_it_ends_while_it_opens(void **state) {
  (void)state;
  world_t world;
  begin(&world, STORE_SLOTS, BLOCKS, "store", 0);
  queue(&world, 0, false);
  call(&world, bl__store_session_end);
  fake_open(fake_client(), BL_OK, ""); // too late
  assert_int_equal(world.session->state, BL_STORE_SESSION_RESTING);
  finish(&world);
  expect_over(&world, 0, BL_PARKING_LOST);
  begin(&world, STORE_SLOTS, BLOCKS, "store", 0);
  fake_open(fake_client(), BL_UNAVAILABLE, "refused");
  call(&world, bl__store_session_reopen); // it would be opened when the other is closed
  finish(&world);
  begin(&world, STORE_SLOTS, BLOCKS, "", 0); // which is refused at once
  assert_int_equal(world.session->state, BL_STORE_SESSION_FAILED);
  assert_int_equal(world.session->err.status, BL_INVALID);
  finish(&world);
}

// ---- at random ------------------------------------------------------------------------------------------------------

typedef struct walk {
  world_t world;
  uint64_t key, count;
  uint32_t
      parked; // store slots that blocks have or will have once everything before has ended well, as a plan counts them
  bool held[BLOCKS]; // counted there
} walk_t;

static uint64_t draw(walk_t *walk, uint64_t bound) {
  return bl_random_below(walk->key, walk->count++, bound);
}

// What holds at every moment.
static void expect_invariants(walk_t *walk) {
  const world_t *world = &walk->world;
  const bl_store_session_t *session = world->session;
  uint32_t moving = 0, queued = 0;
  for (uint32_t i = 0; i < BLOCKS; i++) {
    const bl_transfer_t *transfer = &world->transfers[i];
    moving += transfer->state == BL_TRANSFER_MOVING;
    queued += transfer->state == BL_TRANSFER_QUEUED;
    assert_int_equal(fake_touches(world->slots[i]), transfer->state == BL_TRANSFER_MOVING);
    if (transfer->state == BL_TRANSFER_OVER && transfer->load && transfer->outcome == BL_PARKING_DONE) {
      assert_int_equal(bl_block_checksum(world->slots[i], BYTES), transfer->block.checksum);
    }
  }
  assert_int_equal(moving, session->moving_count);
  assert_in_range(moving, 0, BL_STORE_SESSION_IN_FLIGHT);
  const bl_transfer_t *transfer;
  STAILQ_FOREACH(transfer, &session->queue, queued) {
    assert_int_equal(transfer->state, BL_TRANSFER_QUEUED);
    assert_true(STAILQ_NEXT(transfer, queued) != NULL || session->queue.stqh_last == &transfer->queued.stqe_next);
    queued--;
  }
  assert_int_equal(queued, 0);
  assert_int_equal(world->shared.references, 1 + (session->client != NULL));
  assert_int_equal(session->client != NULL, fake_client_count());
  if (session->state == BL_STORE_SESSION_READY) {
    assert_false(session->closing);
    assert_int_equal(session->held, fake_slots_used(session->client));
    assert_int_equal(session->held + session->store_slot_count, STORE_SLOTS);
    assert_true(STAILQ_EMPTY(&session->queue) || session->moving_count > 0 || session->showing); // something goes on
  }
}

// Those that have begun did so in the order of the queue: the starts since the last look go up.
static void expect_order(const walk_t *walk, unsigned from, uint64_t *last) {
  const void *memory[FAKE_STARTS];
  const unsigned count = fake_starts(memory);
  for (unsigned s = from; s < count; s++) {
    uint32_t i = 0;
    while (walk->world.slots[i] != memory[s % FAKE_STARTS]) {
      i++;
    }
    assert_true(walk->world.queued[i] > *last);
    *last = walk->world.queued[i];
  }
}

static void free_place(walk_t *walk, uint32_t i) {
  walk->parked -= walk->held[i];
  walk->held[i] = false;
}

static void forget_lost(walk_t *walk) {
  for (uint32_t i = 0; i < BLOCKS; i++) {
    const bl_transfer_t *transfer = &walk->world.transfers[i];
    const bool there = transfer->state == BL_TRANSFER_QUEUED || transfer->state == BL_TRANSFER_MOVING ||
                       transfer->epoch == walk->world.session->epoch;
    if (!there || transfer->load) {
      free_place(walk, i);
    }
  }
}

static void queue_any(walk_t *walk) {
  world_t *world = &walk->world;
  const bl_store_session_t *session = world->session;
  const uint32_t i = (uint32_t)draw(walk, BLOCKS);
  const bl_transfer_t *transfer = &world->transfers[i];
  const bool rests = transfer->state == BL_TRANSFER_IDLE || transfer->state == BL_TRANSFER_OVER;
  const bool there = transfer->epoch != 0 && transfer->epoch == session->epoch;
  if (rests && there && session->state == BL_STORE_SESSION_READY) {
    free_place(walk, i);
    queue(world, i, true);
  } else if (rests && !there && walk->parked < STORE_SLOTS && i < session->options.region_count &&
             (session->state == BL_STORE_SESSION_READY || session->state == BL_STORE_SESSION_OPENING)) {
    walk->parked++;
    walk->held[i] = true;
    queue(world, i, false);
  }
}

static void do_anything(walk_t *walk, unsigned trouble) {
  world_t *world = &walk->world;
  bl_store_session_t *session = world->session;
  const uint64_t dice = draw(walk, 1000);
  if (dice < 450) {
    (void)fake_step(trouble);
  } else if (dice < 950) {
    queue_any(walk);
  } else if (dice < 960) {
    pthread_mutex_lock(&world->shared.mutex);
    bl__store_session_cancel(session, &world->transfers[draw(walk, BLOCKS)]);
    pthread_mutex_unlock(&world->shared.mutex);
  } else if (dice < 965) {
    call(world, bl__store_session_flush);
  } else if (dice < 970) {
    call(world, bl__store_session_rest);
  } else if (dice < 975 && session->options.region_count < BLOCKS) {
    pthread_mutex_lock(&world->shared.mutex);
    bl__store_session_extend(session, session->options.region_count + 1);
    pthread_mutex_unlock(&world->shared.mutex);
  } else if (dice < 985) {
    call(world, bl__store_session_check);
  } else if (session->state != BL_STORE_SESSION_READY || draw(walk, 4) == 0) {
    call(world, bl__store_session_reopen);
  }
}

static void walk_once(uint64_t seed, unsigned trouble, uint64_t reached[4]) {
  static walk_t walk;
  walk = (walk_t){.key = seed};
  begin(&walk.world, STORE_SLOTS, BLOCKS / 2, "store", seed);
  uint64_t last = 0;
  for (unsigned i = 0, from = 0; i < WALK_STEPS; i++) {
    do_anything(&walk, trouble);
    expect_order(&walk, from, &last);
    const void *memory[FAKE_STARTS];
    from = fake_starts(memory);
    expect_invariants(&walk);
    forget_lost(&walk);
    reached[walk.world.session->state]++;
  }
  finish(&walk.world);
}

static void test_random_walks(void **state) {
  (void)state;
  const uint64_t seed = test_seed(20261123);
  uint64_t reached[4] = {0};
  for (unsigned i = 0; i < WALKS; i++) {
    walk_once(bl_random_bits(seed, i), i % 3 == 0 ? 0 : i % 3 == 1 ? 10 : 60, reached);
  }
  for (unsigned i = 0; i < 4; i++) { // it has seen them all
    assert_true(reached[i] > WALKS);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_transfers_begin_in_order),
      cmocka_unit_test(test_a_slow_path_has_one_at_a_time),
      cmocka_unit_test(test_an_eviction_waits_for_a_slot),
      cmocka_unit_test(test_an_eviction_without_a_slot_ends_the_session),
      cmocka_unit_test(test_a_block_that_fails_leaves_the_others),
      cmocka_unit_test(test_a_store_dies_in_the_middle_of_several),
      cmocka_unit_test(test_what_is_under_way_is_given_up),
      cmocka_unit_test(test_one_alone_is_given_up),
      cmocka_unit_test(test_sources_that_come_later),
      cmocka_unit_test(test_a_session_rests_with_everything_under_way),
      cmocka_unit_test(test_it_ends_while_it_opens),
      cmocka_unit_test(test_random_walks),
  };
  bl_log_init("in_flight_test", BL_LOG_ERROR);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
