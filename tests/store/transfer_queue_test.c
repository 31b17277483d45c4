// SPDX-License-Identifier: Apache-2.0
// Verifies the turns on a store's link: one block at a time in the order of asking, whatever ends a turn (moved,
// refused in the callback itself, its session over, a stalled holder), what is asked about a slot before its
// turn comes, what is sent again; and a link with a rate, whose turns end when their bytes would be through.
#include "transfer_queue.h"

#include "loop/timer.h"
#include "sys/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#define MOST 64

typedef struct world {
  bl_loop_t *loop;
  bl_transfer_queue_t *queue;
  bl_timer_t *deadline;
  uint64_t served[MOST]; // ids, in order
  uint64_t served_ns[MOST];
  unsigned count, awaited;
  bool refuses;            // every turn is over in the callback
  unsigned depth, deepest; // of callbacks in one another
} world_t;

static world_t world;

static void stop(bl_timer_t *timer, void *context) {
  (void)timer;
  bl_loop_stop(((world_t *)context)->loop);
}

static void serve(void *context, const bl_queued_request_t *request) {
  world_t *self = context;
  assert_in_range(self->count, 0, MOST - 1);
  self->served_ns[self->count] = bl_clock_now_ns();
  self->served[self->count++] = request->frame.id;
  self->depth++;
  self->deepest = self->depth > self->deepest ? self->depth : self->deepest;
  if (self->refuses) {
    bl_transfer_queue_end(self->queue, request->session, request->frame.id, request->frame.generation);
  }
  self->depth--;
  if (self->count == self->awaited) {
    bl_loop_stop(self->loop);
  }
}

static void run_until(unsigned count) {
  world.awaited = count;
  if (world.count < count) {
    bl_timer_start(world.deadline, 20000, 0);
    bl_loop_run(world.loop);
  }
  assert_int_equal(world.count, count);
}

static int set_up_at(uint64_t rate) {
  bl_error_t err;
  world = (world_t){0};
  if (bl_loop_create(&world.loop, &err) != BL_OK || bl_timer_create(world.loop, stop, &world, &world.deadline, &err) ||
      bl_transfer_queue_create(world.loop, rate, serve, &world, &world.queue, &err) != BL_OK) {
    return -1;
  }
  return 0;
}

static int set_up(void **state) {
  (void)state;
  return set_up_at(0);
}

static int set_up_slow(void **state) {
  (void)state;
  return set_up_at(100000000); // a block takes 10 ms
}

static int tear_down(void **state) {
  (void)state;
  bl_transfer_queue_destroy(world.queue);
  bl_timer_destroy(world.deadline);
  bl_loop_destroy(world.loop);
  return 0;
}

static bool ask_as(uint64_t session, uint64_t id, uint64_t sequence) {
  const bl_queued_request_t request = {
      .session = session, .bytes = 1000000, .frame = {.id = id, .generation = 1, .sequence = sequence}};
  return bl_transfer_queue_ask(world.queue, &request);
}

static bool ask(uint64_t session, uint64_t id) {
  return ask_as(session, id, id);
}

static void served_are(const uint64_t *ids, unsigned count) {
  assert_int_equal(world.count, count);
  for (unsigned i = 0; i < count; i++) {
    assert_int_equal(world.served[i], ids[i]);
  }
}

static void one_at_a_time_in_order(void **state) {
  (void)state;
  assert_true(ask(1, 10));
  assert_false(ask(2, 20) || ask(3, 30) || ask(1, 11));
  served_are(NULL, 0);
  bl_transfer_queue_end(world.queue, 0, 20, 1); // not its turn
  bl_transfer_queue_end(world.queue, 0, 10, 2); // another use of the slot
  served_are(NULL, 0);
  bl_transfer_queue_end(world.queue, 0, 10, 1);
  served_are((uint64_t[]){20}, 1);
  bl_transfer_queue_end(world.queue, 0, 20, 1);
  bl_transfer_queue_end(world.queue, 0, 30, 1);
  served_are((uint64_t[]){20, 30, 11}, 3);
  bl_transfer_queue_end(world.queue, 0, 11, 1);
  assert_true(ask(1, 12)); // free again
}

static void refusals_do_not_hold_it_up(void **state) {
  (void)state;
  assert_true(ask(1, 1));
  for (uint64_t id = 2; id < 40; id++) {
    assert_false(ask(1 + id % 3, id));
  }
  world.refuses = true;
  bl_transfer_queue_end(world.queue, 0, 1, 1);
  assert_int_equal(world.count, 38);
  for (uint64_t i = 0; i < 38; i++) {
    assert_int_equal(world.served[i], i + 2);
  }
  assert_int_equal(world.deepest, 1); // the stack does not grow with the number of requests
  assert_true(ask(1, 50));
}

// A holder that sends without end costs a bounded amount of memory and time.
static void a_session_waits_with_few_requests(void **state) {
  (void)state;
  assert_true(ask(1, 1));
  for (uint64_t id = 0; id < BL_TRANSFER_QUEUE_SESSION_MAX; id++) {
    assert_false(ask(2, 100 + id));
  }
  assert_true(ask(2, 50));
  assert_false(ask(3, 51));
}

static void what_is_asked_about_a_slot_is_served_first(void **state) {
  (void)state;
  assert_true(ask(1, 10));
  assert_false(ask(2, 20) || ask(3, 30));
  assert_false(ask_as(3, 30, 30)); // sent again over another connection: it waits once
  bl_transfer_queue_hurry(world.queue, 3, 31);
  bl_transfer_queue_hurry(world.queue, 2, 30); // of another session
  served_are(NULL, 0);
  bl_transfer_queue_hurry(world.queue, 3, 30);
  served_are((uint64_t[]){30}, 1);
  bl_transfer_queue_end(world.queue, 0, 10, 1);
  bl_transfer_queue_end(world.queue, 0, 20, 1);
  served_are((uint64_t[]){30, 20}, 2);
  assert_true(ask(1, 11));
  assert_true(ask(1, 11)); // sent again in its own turn
}

static void sessions_that_are_over_wait_no_more(void **state) {
  (void)state;
  assert_true(ask(1, 10));
  assert_false(ask(2, 20) || ask(1, 11) || ask(2, 21) || ask(3, 30));
  bl_transfer_queue_forget(world.queue, 1); // and its turn ends
  served_are((uint64_t[]){20}, 1);
  bl_transfer_queue_forget(world.queue, 2);
  served_are((uint64_t[]){20, 30}, 2);
}

static void a_stalled_holder_lets_others_pass(void **state) {
  (void)state;
  const uint64_t began_ns = bl_clock_now_ns();
  assert_true(ask(1, 10));
  assert_false(ask(2, 20) || ask(3, 30));
  run_until(2);
  served_are((uint64_t[]){20, 30}, 2);
  assert_true(bl_clock_now_ns() - began_ns >= UINT64_C(2) * (BL_TRANSFER_QUEUE_TIMEOUT_MS - 2) * BL_NS_PER_MS);
  // Its other blocks hold nobody up, until it ends a turn.
  bl_transfer_queue_end(world.queue, 0, 30, 1);
  assert_true(ask(1, 11) && ask(2, 21) && ask(3, 31)); // two are stalled, and the link is free
  assert_true(ask(1, 13));
  bl_transfer_queue_end(world.queue, 1, 10, 1); // late: nobody's turn, but its session is no longer stalled
  assert_false(ask(1, 14));
  assert_true(ask(2, 22));
  bl_transfer_queue_end(world.queue, 3, 31, 1);
  served_are((uint64_t[]){20, 30, 14}, 3);
}

// What stands first goes with its session: the next one takes as long as its own bytes do.
static void a_rate_holds_for_what_follows(void **state) {
  (void)state;
  assert_false(ask(1, 1));
  const uint64_t began_ns = bl_clock_now_ns();
  const bl_queued_request_t large = {
      .session = 2, .bytes = 20000000, .frame = {.id = 2, .generation = 1, .sequence = 2}};
  assert_false(bl_transfer_queue_ask(world.queue, &large));
  assert_false(bl_transfer_queue_ask(world.queue, &large)); // sent again
  bl_transfer_queue_forget(world.queue, 1);
  run_until(1);
  served_are((uint64_t[]){2}, 1);
  assert_true(world.served_ns[0] - began_ns >= UINT64_C(199) * BL_NS_PER_MS);
}

static void a_rate_is_kept(void **state) {
  (void)state;
  const uint64_t began_ns = bl_clock_now_ns();
  for (uint64_t id = 1; id <= 20; id++) {
    assert_false(ask(id % 4, id));
  }
  bl_transfer_queue_forget(world.queue, 0);    // 5 of them
  bl_transfer_queue_end(world.queue, 0, 1, 1); // says nothing of when bytes are through
  run_until(15);
  const uint64_t took_ns = world.served_ns[14] - began_ns;
  assert_true(took_ns >= UINT64_C(149) * BL_NS_PER_MS);
  for (unsigned i = 0; i < 15; i++) {
    assert_true(world.served[i] % 4 != 0 && (i == 0 || world.served[i] > world.served[i - 1]));
    assert_true(world.served_ns[i] - began_ns >= (i + 1) * UINT64_C(10) * BL_NS_PER_MS - BL_NS_PER_MS);
  }
}

// Bytes pass while the loop does something else, too: a late timer makes no later turn later.
static void a_late_timer_does_not_add_up(void **state) {
  (void)state;
  const uint64_t began_ns = bl_clock_now_ns();
  for (uint64_t id = 1; id <= 40; id++) {
    assert_false(ask(id, id));
  }
  while (bl_clock_now_ns() < began_ns + UINT64_C(380) * BL_NS_PER_MS) {
  }
  run_until(40);
  assert_in_range(world.served_ns[39] - began_ns, UINT64_C(399) * BL_NS_PER_MS, UINT64_C(650) * BL_NS_PER_MS);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(one_at_a_time_in_order, set_up, tear_down),
      cmocka_unit_test_setup_teardown(refusals_do_not_hold_it_up, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_session_waits_with_few_requests, set_up, tear_down),
      cmocka_unit_test_setup_teardown(what_is_asked_about_a_slot_is_served_first, set_up, tear_down),
      cmocka_unit_test_setup_teardown(sessions_that_are_over_wait_no_more, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_stalled_holder_lets_others_pass, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_rate_is_kept, set_up_slow, tear_down),
      cmocka_unit_test_setup_teardown(a_late_timer_does_not_add_up, set_up_slow, tear_down),
      cmocka_unit_test_setup_teardown(a_rate_holds_for_what_follows, set_up_slow, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
