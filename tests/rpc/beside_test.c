// SPDX-License-Identifier: Apache-2.0
// Verifies an rpc beside another: calls from two loops at the same time, each answered on its own; its end with calls
// under way, again and again; a server on it; and the order in which the two may go.
#include "echo_world.h"
#include "loop/thread.h"
#include "rpc/channel.h"
#include "sys/clock.h"

#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

// A stream that is held after its first message.
typedef struct held {
  struct other *other;
  bl__rpc_request_t *request;
} held_t;

// What runs on the other loop, and all that only its thread touches.
typedef struct other {
  bl_loop_thread_t *thread;
  bl_loop_t *loop;
  bl_rpc_t *first;
  const char *address;
  bl_rpc_t *rpc;
  bl_rpc_channel_t *channel;
  bl_status_t status; // of the last thing done on the loop

  unsigned to_call; // unary calls to start, or still to make one after the other
  unsigned to_stream;
  held_t held[3]; // the streams
  unsigned answered;
  unsigned failed; // not with BL_CANCELLED
  unsigned cancelled;
  unsigned elsewhere; // callbacks on another thread
  sem_t ended;        // a chain of calls
} other_t;

static void create_rpc(void *context) {
  other_t *other = context;
  other->status = bl_rpc_create_beside(other->first, other->loop, &other->rpc, NULL);
  if (other->status == BL_OK && other->address != NULL) {
    other->status = bl_rpc_channel_create(other->rpc, other->address, NULL, &other->channel, NULL);
  }
}

static void destroy_rpc(void *context) {
  other_t *other = context;
  bl_rpc_channel_destroy(other->channel);
  other->channel = NULL;
  bl_rpc_destroy(other->rpc);
}

static void other_start(other_t *other, world_t *world) {
  bl_error_t err;
  *other = (other_t){.first = world->rpc, .address = world->echo.server != NULL ? world->echo.address : NULL};
  sem_init(&other->ended, 0, 0);
  assert_int_equal(bl_loop_thread_create("other", &other->thread, &err), BL_OK);
  other->loop = bl_loop_thread_loop(other->thread);
  bl_loop_thread_call(other->thread, create_rpc, other);
  assert_int_equal(other->status, BL_OK);
}

static void other_stop(other_t *other) {
  bl_loop_thread_call(other->thread, destroy_rpc, other);
  bl_loop_thread_destroy(other->thread);
  sem_destroy(&other->ended);
  assert_int_equal(other->elsewhere, 0);
}

// ---- at the same time --------------------------------------------------------------------------------------------------

enum { CHAIN = 3000 };

static void call_next(other_t *other);

static void chain_done(const ProtobufCMessage *output, const bl_error_t *err, void *context) {
  other_t *other = context;
  other->elsewhere += !bl_loop_is_current(other->loop);
  other->failed += err->status != BL_OK;
  if (output != NULL) {
    other->answered += echo_read_response(output).index == other->answered;
  }
  call_next(other);
}

static void call_next(other_t *other) {
  if (other->to_call == 0) {
    sem_post(&other->ended);
    return;
  }
  other->to_call--;
  if (echo_start(other->channel, "Say", &(echo_request_t){.count = CHAIN - 1 - other->to_call}, 100000, chain_done,
                 other, NULL, NULL) != BL_OK) {
    abort();
  }
}

static void start_chain(void *context) {
  other_t *other = context;
  other->to_call = CHAIN;
  call_next(other);
}

static void both_loops_call_at_the_same_time(void **state) {
  (void)state;
  world_t world;
  other_t other;
  world_init(&world, "127.0.0.1:0", NULL);
  other_start(&other, &world);
  bl_loop_thread_call(other.thread, start_chain, &other);
  unsigned own = 0;
  bool over = false;
  for (const uint64_t end_ns = bl_clock_now_ns() + WORLD_LIMIT_MS * BL_NS_PER_MS; !over;) {
    outcome_t outcome;
    world_call(&world, "Say", &(echo_request_t){.text = "mine"}, 100000, &outcome);
    assert_string_equal(outcome.err.text, "");
    assert_string_equal(outcome.text, "mine");
    own++;
    over = sem_trywait(&other.ended) == 0;
    assert_true(bl_clock_now_ns() < end_ns);
  }
  assert_int_equal(other.answered, CHAIN);
  assert_int_equal(other.failed, 0);
  assert_int_equal(world.echo.arrived, CHAIN + own);
  other_stop(&other);
  world_cleanup(&world);
}

// ---- its end with calls under way ----------------------------------------------------------------------------------------

static void count_end(const ProtobufCMessage *output, const bl_error_t *err, void *context) {
  (void)output;
  other_t *other = context;
  other->elsewhere += !bl_loop_is_current(other->loop);
  other->cancelled += err->status == BL_CANCELLED;
  other->failed += err->status != BL_CANCELLED;
}

static void hold(const ProtobufCMessage *output, void *context) {
  (void)output;
  const held_t *held = context;
  held->other->elsewhere += !bl_loop_is_current(held->other->loop);
  bl__rpc_request_hold(held->request);
}

static void held_end(const ProtobufCMessage *output, const bl_error_t *err, void *context) {
  count_end(output, err, ((const held_t *)context)->other);
}

static void start_hanging(void *context) {
  other_t *other = context;
  const echo_request_t much = {.count = 1000000, .payload_bytes = 4096};
  for (unsigned i = 0; i < other->to_call; i++) {
    if (echo_start(other->channel, "Hang", &(echo_request_t){0}, 100000, count_end, other, NULL, NULL) != BL_OK) {
      abort();
    }
  }
  for (unsigned i = 0; i < other->to_stream; i++) {
    held_t *held = &other->held[i];
    held->other = other;
    if (echo_start_stream(other->channel, "Count", &much, 100000, hold, held_end, held, &held->request, NULL) !=
        BL_OK) {
      abort();
    }
  }
}

static void its_end_cancels_calls_that_the_server_has(void **state) {
  (void)state;
  world_t world;
  other_t other;
  outcome_t outcome;
  world_init(&world, "127.0.0.1:0", NULL);
  other_start(&other, &world);
  other.to_call = 5;
  other.to_stream = 3;
  bl_loop_thread_call(other.thread, start_hanging, &other);
  world_wait_for(&world, &world.echo.arrived, 8);
  other_stop(&other);
  assert_int_equal(other.cancelled, 8);
  assert_int_equal(other.failed, 0);
  world_wait_for(&world, &world.echo.cancelled, 8);
  world_call(&world, "Say", &(echo_request_t){.text = "goes on"}, 100000, &outcome);
  assert_string_equal(outcome.err.text, "");
  assert_string_equal(outcome.text, "goes on");
  world_cleanup(&world);
}

typedef struct turnover {
  other_t other;
  world_t *world;
  bl_message_t over;
  unsigned rounds;
  unsigned finished;
} turnover_t;

enum { ROUNDS = 60 };

// Calls in every state of their lives when their rpc goes: just started, on their way, held.
static void create_and_use(void *context) {
  turnover_t *turnover = context;
  other_t *other = &turnover->other;
  create_rpc(other);
  if (other->status != BL_OK) {
    abort();
  }
  other->to_call = turnover->rounds % 4;
  other->to_stream = turnover->rounds % 3;
  start_hanging(other);
}

static void on_over(bl_message_t *message) {
  BL_MESSAGE_OWNER(message, turnover_t, over)->finished = 1;
}

static void *turn_over(void *argument) {
  turnover_t *turnover = argument;
  for (; turnover->rounds < ROUNDS; turnover->rounds++) {
    bl_loop_thread_call(turnover->other.thread, create_and_use, turnover);
    uint64_t until_ns = bl_clock_now_ns() + turnover->rounds * 50000ull; // up to 3 ms: from before it connects to after
    while (bl_clock_now_ns() < until_ns) {
      sched_yield();
    }
    bl_loop_thread_call(turnover->other.thread, destroy_rpc, &turnover->other);
  }
  bl_loop_post(turnover->world->loop, &turnover->over);
  return NULL;
}

static void it_may_end_at_any_time(void **state) {
  (void)state;
  world_t world;
  world_init(&world, "127.0.0.1:0", NULL);
  turnover_t turnover = {.world = &world, .over = {.handle = on_over}};
  other_start(&turnover.other, &world);
  bl_loop_thread_call(turnover.other.thread, destroy_rpc, &turnover.other);
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, turn_over, &turnover), 0);
  world_wait_for(&world, &turnover.finished, 1); // the server works meanwhile
  pthread_join(thread, NULL);
  bl_loop_thread_destroy(turnover.other.thread);
  sem_destroy(&turnover.other.ended);
  assert_int_equal(turnover.other.cancelled, ROUNDS / 4 * (0 + 1 + 2 + 3) + ROUNDS / 3 * (0 + 1 + 2));
  assert_int_equal(turnover.other.failed, 0);
  assert_int_equal(turnover.other.elsewhere, 0);
  world_cleanup(&world);
}

// ---- a server on it ------------------------------------------------------------------------------------------------------

typedef struct served {
  other_t other;
  echo_server_t echo;
  sem_t stopped;
} served_t;

static void start_server(void *context) {
  served_t *served = context;
  served->other.status = echo_server_start(&served->echo, served->other.rpc, "127.0.0.1:0", NULL, NULL);
}

static void on_stopped(bl_rpc_server_t *server, void *context) {
  served_t *served = context;
  bl_rpc_server_destroy(server);
  sem_post(&served->stopped);
}

static void stop_server(void *context) {
  served_t *served = context;
  bl_rpc_server_shutdown(served->echo.server, 1000, on_stopped, served);
}

static void a_server_may_live_on_it(void **state) {
  (void)state;
  world_t world;
  served_t served = {0};
  outcome_t outcome;
  world_init(&world, NULL, NULL);
  other_start(&served.other, &world);
  sem_init(&served.stopped, 0, 0);
  bl_loop_thread_call(served.other.thread, start_server, &served);
  assert_int_equal(served.other.status, BL_OK);
  assert_int_equal(bl_rpc_channel_create(world.rpc, served.echo.address, NULL, &world.channel, NULL), BL_OK);
  for (unsigned i = 0; i < 100; i++) {
    world_call(&world, "Say", &(echo_request_t){.text = "there"}, 100000, &outcome);
    assert_string_equal(outcome.err.text, "");
    assert_string_equal(outcome.text, "there");
  }
  bl_loop_thread_call(served.other.thread, stop_server, &served);
  while (sem_wait(&served.stopped) != 0) {
  }
  assert_int_equal(served.echo.arrived, 100);
  other_stop(&served.other);
  sem_destroy(&served.stopped);
  world_cleanup(&world);
}

// ---- order ---------------------------------------------------------------------------------------------------------------

static void try_destroy(void *context) {
  other_t *other = context;
  bl_rpc_destroy(other->rpc); // its channel lives
}

static void the_first_goes_last(void **state) {
  (void)state;
  world_t world;
  other_t other, third;
  outcome_t outcome;
  world_init(&world, "127.0.0.1:0", NULL);
  other_start(&other, &world);
  other_start(&third, &world);
  bl_rpc_channel_destroy(world.channel);
  world_stop_server(&world, 1000);
  bl_rpc_destroy(world.rpc); // refused and logged: two live beside it
  bl_loop_thread_call(other.thread, try_destroy, &other);
  other_stop(&other);
  bl_rpc_destroy(world.rpc); // and one
  assert_int_equal(echo_server_start(&world.echo, world.rpc, "127.0.0.1:0", NULL, NULL), BL_OK);
  assert_int_equal(bl_rpc_channel_create(world.rpc, world.echo.address, NULL, &world.channel, NULL), BL_OK);
  world_call(&world, "Say", &(echo_request_t){.text = "alive"}, 100000, &outcome);
  assert_string_equal(outcome.err.text, "");
  assert_string_equal(outcome.text, "alive");
  other_stop(&third);
  world_cleanup(&world);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(both_loops_call_at_the_same_time), cmocka_unit_test(its_end_cancels_calls_that_the_server_has),
      cmocka_unit_test(a_server_may_live_on_it),          cmocka_unit_test(the_first_goes_last),
      cmocka_unit_test(it_may_end_at_any_time),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
