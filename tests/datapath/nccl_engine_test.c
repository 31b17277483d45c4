// SPDX-License-Identifier: Apache-2.0
// Verifies the NCCL path over a fake NCCL (fake_nccl.h), both ends in this process: transfers arrive whole and in
// order; whatever one pair meets (a peer that never comes, dies in the middle of a send with or without a word, a call
// or an abort that does not return, an error that comes later) ends with its cause within the deadline and leaves other
// pairs alone; nothing touches memory once a transfer has ended; and no call is made that NCCL forbids.
#include "fake_nccl.h"

#include "base/random.h"
#include "datapath/nccl/engine.h"
#include "sys/clock.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define TIMEOUT_NS (UINT64_C(120) * BL_NS_PER_S)
#define SOON_NS    (UINT64_C(150) * BL_NS_PER_MS) // deadlines that tests run into, on channels that fail anyway
#define BYTES      4096u

static const bl_nccl_deadlines_t patient = {0}, hasty = {.create_ns = SOON_NS, .transfer_ns = SOON_NS},
                                 hasty_when_made = {.transfer_ns = SOON_NS, .abort_ns = SOON_NS};

typedef struct {
  fake_nccl_world_t world;
  fake_end_t ends[2];
  bl_nccl_api_t apis[2];
  bl_nccl_engine_t *engines[2];
  atomic_uint stuck;
  char stuck_text[BL_ERROR_TEXT_BYTES];
} rig_t;

typedef struct {
  bl_nccl_transfer_t transfer; // first
  uint8_t bytes[BYTES];
  atomic_bool over;
  atomic_uint *order; // counts ends
  unsigned place;
} block_t;

static void on_stuck(void *context, const bl_error_t *err) {
  rig_t *rig = context;
  snprintf(rig->stuck_text, sizeof rig->stuck_text, "%s", err->text);
  atomic_fetch_add(&rig->stuck, 1);
}

static void start(rig_t *rig) {
  memset(rig, 0, sizeof *rig);
  fake_nccl_init(&rig->world);
  for (int s = 0; s < 2; s++) {
    bl_error_t err = {0};
    rig->ends[s] = (fake_end_t){.world = &rig->world, .side = s};
    rig->apis[s] = fake_nccl_api(&rig->ends[s], 22809);
    bl_nccl_engine_options_t options = {
        .api = &rig->apis[s],
        .deadlines = {.create_ns = TIMEOUT_NS, .transfer_ns = TIMEOUT_NS, .abort_ns = TIMEOUT_NS},
        .on_stuck = on_stuck,
        .context = rig};
    assert_int_equal(bl_nccl_engine_create(&options, &rig->engines[s], &err), BL_OK);
  }
}

static void stop(rig_t *rig) {
  for (int s = 0; s < 2; s++) {
    assert_int_equal(atomic_load(&rig->world.side[s].misuses), 0);
    bl_nccl_engine_destroy(rig->engines[s]);
  }
  pthread_mutex_destroy(&rig->world.mutex);
}

// Both ends of a new channel; rank 0 at side `sender`.
static void open_pair(rig_t *rig, int sender, bl_nccl_deadlines_t deadlines, bl_nccl_channel_t *ends[2]) {
  bl_error_t err = {0};
  uint8_t id[BL_NCCL_ID_BYTES];
  assert_int_equal(bl_nccl_engine_new_id(rig->engines[0], id, &err), BL_OK);
  for (int s = 0; s < 2; s++) {
    bl_nccl_channel_options_t options = {
        .name = s == 0 ? "left" : "right", .rank = s == sender ? 0 : 1, .deadlines = deadlines};
    memcpy(options.id, id, sizeof id);
    assert_int_equal(bl_nccl_channel_open(rig->engines[s], &options, &ends[s], &err), BL_OK);
  }
}

static void close_pair(bl_nccl_channel_t *ends[2]) {
  bl_nccl_channel_close(ends[0]);
  bl_nccl_channel_close(ends[1]);
}

static void ended(bl_nccl_transfer_t *transfer) {
  block_t *block = (block_t *)(void *)transfer;
  block->place = block->order != NULL ? atomic_fetch_add(block->order, 1) : 0;
  atomic_store(&block->over, true);
}

static void nap(void) {
  struct timespec pause = {.tv_nsec = 1000000};
  nanosleep(&pause, NULL);
}

static void must_end(block_t *block) {
  for (uint64_t until_ns = bl_clock_now_ns() + TIMEOUT_NS; !atomic_load(&block->over); nap()) {
    assert_true(bl_clock_now_ns() < until_ns);
  }
}

static block_t *new_block(uint64_t seed, uint64_t bytes, atomic_uint *order) {
  block_t *block = calloc(1, sizeof *block);
  *block = (block_t){.order = order};
  for (size_t i = 0; i < BYTES && seed != 0; i++) {
    block->bytes[i] = (uint8_t)bl_random_bits(seed, i);
  }
  block->transfer = (bl_nccl_transfer_t){.buffer = block->bytes, .bytes = bytes, .over = ended};
  return block;
}

static void post(bl_nccl_channel_t *channel, block_t *block) {
  bl_error_t err = {0};
  if (bl_nccl_channel_post(channel, &block->transfer, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
}

// A block goes over the channel and arrives.
static void moves(bl_nccl_channel_t *ends[2], int sender, uint64_t seed) {
  block_t *sent = new_block(seed, BYTES, NULL), *received = new_block(0, BYTES, NULL);
  post(ends[sender], sent);
  post(ends[!sender], received);
  must_end(sent);
  must_end(received);
  assert_int_equal(sent->transfer.status, BL_OK);
  assert_int_equal(received->transfer.status, BL_OK);
  assert_memory_equal(sent->bytes, received->bytes, BYTES);
  free(sent);
  free(received);
}

// ---- all is well ----------------------------------------------------------------------------------------------------

static void transfers_arrive_in_order(void **state) {
  (void)state;
  enum { COUNT = 150 };
  static rig_t rig;
  start(&rig);
  atomic_store(&rig.world.side[0].launch_slow, true);
  bl_nccl_channel_t *ways[2][2];
  open_pair(&rig, 0, patient, ways[0]);
  open_pair(&rig, 1, patient, ways[1]);
  block_t *sent[2][COUNT], *received[2][COUNT];
  static atomic_uint order[2];
  atomic_store(&order[0], 0);
  atomic_store(&order[1], 0);
  for (unsigned i = 0; i < COUNT; i++) { // before they are made, and while they move
    for (int w = 0; w < 2; w++) {
      uint64_t bytes = 1 + bl_random_below(7, i, BYTES);
      sent[w][i] = new_block(i + 1, bytes, NULL);
      received[w][i] = new_block(0, bytes, &order[w]);
      post(ways[w][w], sent[w][i]);
      post(ways[w][!w], received[w][i]);
    }
  }
  for (unsigned i = 0; i < COUNT; i++) {
    for (int w = 0; w < 2; w++) {
      must_end(sent[w][i]);
      must_end(received[w][i]);
      assert_int_equal(received[w][i]->place, i);
      assert_memory_equal(sent[w][i]->bytes, received[w][i]->bytes, sent[w][i]->transfer.bytes);
      free(sent[w][i]);
      free(received[w][i]);
    }
  }
  bl_nccl_counters_t counters = bl_nccl_engine_counters(rig.engines[0]);
  assert_int_equal(counters.transfers, 2 * COUNT);
  assert_int_equal(counters.failed, 0);
  close_pair(ways[0]);
  close_pair(ways[1]);
  stop(&rig);
}

// NCCL connects two ranks with their first transfer: that takes as long as making them may, not as long as a transfer
// may.
static void connecting_is_part_of_making(void **state) {
  (void)state;
  static rig_t rig;
  start(&rig);
  atomic_store(&rig.world.side[1].connect_ns, 4 * SOON_NS);
  bl_nccl_channel_t *ends[2];
  bl_error_t err = {0};
  open_pair(&rig, 0, hasty_when_made, ends);
  for (int s = 0; s < 2; s++) {
    assert_int_equal(bl_nccl_channel_wait(ends[s], bl_clock_now_ns() + TIMEOUT_NS, &err), BL_OK);
  }
  moves(ends, 0, 6);
  assert_int_equal(bl_nccl_engine_counters(rig.engines[0]).transfers, 1); // what the engine makes for itself is none
  close_pair(ends);

  open_pair(&rig, 0, hasty, ends); // and no longer
  assert_int_equal(bl_nccl_channel_wait(ends[0], bl_clock_now_ns() + TIMEOUT_NS, &err), BL_DEADLINE);
  assert_non_null(strstr(err.text, "it was not made within"));
  close_pair(ends);
  stop(&rig);
}

// ---- one pair fails, another one does not ---------------------------------------------------------------------------

typedef struct {
  rig_t rig;
  bl_nccl_channel_t *good[2], *bad[2];
  block_t *sent, *received;
} pairs_t;

// The faults that tests set from here on are of the second pair.
static void start_pairs(pairs_t *pairs) {
  start(&pairs->rig);
  bl_error_t err = {0};
  open_pair(&pairs->rig, 0, patient, pairs->good);
  assert_int_equal(bl_nccl_channel_wait(pairs->good[0], bl_clock_now_ns() + TIMEOUT_NS, &err), BL_OK);
  assert_int_equal(bl_nccl_channel_wait(pairs->good[1], bl_clock_now_ns() + TIMEOUT_NS, &err), BL_OK);
  pairs->rig.world.side[0].only_pair = pairs->rig.world.side[1].only_pair = 1;
  pairs->sent = new_block(5, BYTES, NULL);
  pairs->received = new_block(0, BYTES, NULL);
}

static void open_bad(pairs_t *pairs, bl_nccl_deadlines_t deadlines) {
  open_pair(&pairs->rig, 0, deadlines, pairs->bad);
}

static void stop_pairs(pairs_t *pairs) {
  moves(pairs->good, 0, 77);
  close_pair(pairs->good);
  close_pair(pairs->bad);
  stop(&pairs->rig);
  free(pairs->sent);
  free(pairs->received);
}

static void fails_with(bl_nccl_channel_t *channel, bl_status_t status, const char *part) {
  bl_error_t err = {0};
  for (uint64_t until_ns = bl_clock_now_ns() + TIMEOUT_NS; bl_nccl_channel_state(channel, &err) != BL_NCCL_DEAD;
       nap()) {
    assert_true(bl_clock_now_ns() < until_ns);
  }
  if (err.status != status || strstr(err.text, part) == NULL) {
    fail_msg("%s: %s", bl_status_name(err.status), err.text);
  }
  block_t *late = new_block(1, 8, NULL);
  assert_int_equal(bl_nccl_channel_post(channel, &late->transfer, &err), status);
  assert_int_equal(bl_nccl_channel_wait(channel, bl_clock_now_ns() + TIMEOUT_NS, &err), status);
  free(late);
}

static void a_peer_that_never_comes(void **state) {
  (void)state;
  static pairs_t pairs;
  start_pairs(&pairs);
  atomic_store(&pairs.rig.world.side[1].never_made, true);
  open_bad(&pairs, hasty);
  post(pairs.bad[0], pairs.sent);
  moves(pairs.good, 0, 3);
  must_end(pairs.sent);
  assert_int_equal(pairs.sent->transfer.status, BL_DEADLINE);
  fails_with(pairs.bad[0], BL_DEADLINE, "NCCL, left: it was not made within");
  stop_pairs(&pairs);
}

static void communicators_that_cannot_be_made(void **state) {
  (void)state;
  static pairs_t pairs;
  start_pairs(&pairs);
  atomic_store(&pairs.rig.world.side[0].create_fails, true);
  open_bad(&pairs, hasty);
  fails_with(pairs.bad[0], BL_IO, "NCCL, left: unhandled system error");
  fails_with(pairs.bad[1], BL_DEADLINE, "the peer does not take part");
  stop_pairs(&pairs);
}

// With a word from NCCL, and without.
static void a_peer_that_dies_mid_send(void **state) {
  (void)state;
  for (int told = 0; told < 2; told++) {
    static pairs_t pairs;
    start_pairs(&pairs);
    atomic_store(&pairs.rig.world.side[0].dies_half_way, true);
    open_bad(&pairs, told ? patient : hasty_when_made);
    post(pairs.bad[1], pairs.received);
    post(pairs.bad[0], pairs.sent);
    for (uint64_t until_ns = bl_clock_now_ns() + TIMEOUT_NS; atomic_load(&pairs.rig.world.side[1].launches) == 0;
         nap()) {
      assert_true(bl_clock_now_ns() < until_ns);
    }
    atomic_store(&pairs.rig.world.side[1].peer_error, told);
    must_end(pairs.received);
    assert_int_equal(pairs.received->transfer.status, told ? BL_UNAVAILABLE : BL_DEADLINE);
    fails_with(pairs.bad[1], pairs.received->transfer.status,
               told ? "NCCL, right: remote process exited"
                    : "NCCL, right: a transfer of 4096 bytes was not over after");
    // The abort has returned before the transfer ended: its memory is ours.
    assert_true(atomic_load(&pairs.rig.world.side[1].aborts) >= 1);
    memset(pairs.received->bytes, 9, BYTES);
    bl_nccl_channel_abort(pairs.bad[0], BL_UNAVAILABLE, "its process is gone");
    must_end(pairs.sent);
    assert_int_equal(pairs.received->bytes[0], 9);
    stop_pairs(&pairs);
  }
}

static void errors_that_come_later(void **state) {
  (void)state;
  static pairs_t pairs;
  start_pairs(&pairs);
  open_bad(&pairs, patient);
  moves(pairs.bad, 0, 8);
  atomic_store(&pairs.rig.world.side[1].own_error, true); // idle: nobody waits for anything
  fails_with(pairs.bad[1], BL_IO, "unhandled cuda error");
  bl_nccl_channel_abort(pairs.bad[0], BL_UNAVAILABLE, "its process is gone");
  fails_with(pairs.bad[0], BL_UNAVAILABLE, "NCCL, left: its process is gone");
  stop_pairs(&pairs);

  start_pairs(&pairs);
  atomic_store(&pairs.rig.world.side[0].launch_fails, true);
  open_bad(&pairs, patient);
  post(pairs.bad[0], pairs.sent);
  must_end(pairs.sent);
  assert_int_equal(pairs.sent->transfer.status, BL_IO);
  fails_with(pairs.bad[0], BL_IO, "internal error");
  stop_pairs(&pairs);
}

static void a_call_that_does_not_return(void **state) {
  (void)state;
  static pairs_t pairs;
  start_pairs(&pairs);
  open_bad(&pairs, hasty_when_made);
  bl_error_t err = {0};
  assert_int_equal(bl_nccl_channel_wait(pairs.bad[0], bl_clock_now_ns() + TIMEOUT_NS, &err), BL_OK);
  pairs.rig.world.side[0].only_pair = 1;
  atomic_store(&pairs.rig.world.side[0].launch_blocks, true);
  post(pairs.bad[0], pairs.sent);
  must_end(pairs.sent); // the abort has interrupted it
  assert_int_equal(pairs.sent->transfer.status, BL_DEADLINE);
  fails_with(pairs.bad[0], BL_DEADLINE, "was not over after");
  stop_pairs(&pairs);
}

static void an_abort_that_does_not_return(void **state) {
  (void)state;
  static pairs_t pairs;
  start_pairs(&pairs);
  atomic_store(&pairs.rig.world.side[0].never_moves, true);
  atomic_store(&pairs.rig.world.side[0].abort_blocks, true);
  open_bad(&pairs, hasty_when_made);
  post(pairs.bad[0], pairs.sent);
  for (uint64_t until_ns = bl_clock_now_ns() + TIMEOUT_NS; atomic_load(&pairs.rig.stuck) == 0; nap()) {
    assert_true(bl_clock_now_ns() < until_ns);
  }
  assert_int_equal(bl_nccl_channel_state(pairs.bad[0], NULL), BL_NCCL_STUCK);
  assert_false(atomic_load(&pairs.sent->over)); // its memory may be touched still
  assert_non_null(strstr(pairs.rig.stuck_text, "this process must end: NCCL, left: "));
  moves(pairs.good, 0, 4);
  atomic_store(&pairs.rig.world.side[0].abort_blocks, false);
  must_end(pairs.sent); // late, but it is over
  assert_int_equal(pairs.sent->transfer.status, BL_DEADLINE);
  fails_with(pairs.bad[0], BL_DEADLINE, "was not over after");
  assert_int_equal(bl_nccl_engine_counters(pairs.rig.engines[0]).stuck, 1);
  stop_pairs(&pairs);
}

static void closing_ends_what_is_under_way(void **state) {
  (void)state;
  static pairs_t pairs;
  start_pairs(&pairs);
  atomic_store(&pairs.rig.world.side[1].never_moves, true);
  open_bad(&pairs, patient);
  block_t *waiting[40];
  for (int i = 0; i < 40; i++) { // launched and not
    waiting[i] = new_block(0, BYTES, NULL);
    post(pairs.bad[1], waiting[i]);
  }
  bl_nccl_channel_close(pairs.bad[1]);
  for (int i = 0; i < 40; i++) {
    assert_true(atomic_load(&waiting[i]->over));
    assert_int_equal(waiting[i]->transfer.status, BL_CANCELLED);
    free(waiting[i]);
  }
  pairs.bad[1] = NULL;
  stop_pairs(&pairs);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(transfers_arrive_in_order),      cmocka_unit_test(connecting_is_part_of_making),
      cmocka_unit_test(a_peer_that_never_comes),        cmocka_unit_test(communicators_that_cannot_be_made),
      cmocka_unit_test(a_peer_that_dies_mid_send),      cmocka_unit_test(errors_that_come_later),
      cmocka_unit_test(a_call_that_does_not_return),    cmocka_unit_test(an_abort_that_does_not_return),
      cmocka_unit_test(closing_ends_what_is_under_way),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
