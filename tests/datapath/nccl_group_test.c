// SPDX-License-Identifier: Apache-2.0
// Verifies groups of the NCCL engine over the NCCL that is none (fake_gpu/nccl_group.h), three ranks in one process, each with
// an engine and a stream of its own: gathers and exchanges bring every block to its place, in the order of the stream; a rank
// that closes, an abort, collectives that differ and ranks that never come end what streams wait in, with the cause.
#include "datapath/nccl/engine.h"
#include "fake_gpu/nccl.h"
#include "sys/clock.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define RANKS  3u
#define BLOCK  (300u << 10) // more than moves at once
#define ROUNDS 20u
#define TASKS  64u

// ---- streams: tasks one after the other, each in a thread of the stream

typedef struct {
  void (*run)(void *arguments);
  unsigned char arguments[64];
} task_t;

struct bl_device_stream {
  pthread_t thread;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  task_t tasks[TASKS];
  unsigned put, done;
  bool stop;
};

static void *serve(void *argument) {
  bl_device_stream_t *stream = argument;
  pthread_mutex_lock(&stream->mutex);
  for (;;) {
    while (stream->done == stream->put && !stream->stop) {
      pthread_cond_wait(&stream->changed, &stream->mutex);
    }
    if (stream->done == stream->put) {
      break;
    }
    task_t task = stream->tasks[stream->done % TASKS];
    pthread_mutex_unlock(&stream->mutex);
    task.run(task.arguments);
    pthread_mutex_lock(&stream->mutex);
    stream->done++;
    pthread_cond_broadcast(&stream->changed);
  }
  pthread_mutex_unlock(&stream->mutex);
  return NULL;
}

static void put(bl_device_stream_t *stream, void (*run)(void *arguments), const void *arguments, size_t bytes) {
  pthread_mutex_lock(&stream->mutex);
  while (stream->put - stream->done == TASKS) {
    pthread_cond_wait(&stream->changed, &stream->mutex);
  }
  task_t *task = &stream->tasks[stream->put++ % TASKS];
  task->run = run;
  memcpy(task->arguments, arguments, bytes);
  pthread_cond_broadcast(&stream->changed);
  pthread_mutex_unlock(&stream->mutex);
}

static unsigned done_of(bl_device_stream_t *stream) {
  pthread_mutex_lock(&stream->mutex);
  const unsigned done = stream->done;
  pthread_mutex_unlock(&stream->mutex);
  return done;
}

static void finish(bl_device_stream_t *stream) {
  pthread_mutex_lock(&stream->mutex);
  while (stream->done != stream->put) {
    pthread_cond_wait(&stream->changed, &stream->mutex);
  }
  pthread_mutex_unlock(&stream->mutex);
}

// ---- three ranks

typedef struct {
  bl_nccl_engine_t *engine;
  bl_nccl_channel_t *group;
  bl_device_stream_t stream;
  uint8_t *window, *staging; // [RANKS][BLOCK]
} rank_t;

static rank_t ranks[RANKS];

static uint8_t *as_it_is(const void *address, uint64_t bytes, bool writes) {
  (void)bytes;
  (void)writes;
  return (uint8_t *)(uintptr_t)address;
}

static void check(bl_status_t status, const bl_error_t *err) {
  if (status != BL_OK) {
    fail_msg("%s: %s", bl_status_name(status), err->text);
  }
}

static void open_group(rank_t *rank, uint32_t number, const uint8_t *id) {
  bl_error_t err;
  bl_nccl_channel_options_t options = {
      .name = "three ranks", .rank = (int)number, .group_ranks = RANKS, .deadlines = {.create_ns = 20 * BL_NS_PER_S}};
  memcpy(options.id, id, sizeof options.id);
  check(bl_nccl_channel_open(rank->engine, &options, &rank->group, &err), &err);
}

static void start(uint32_t opened) {
  bl_error_t err;
  const bl_nccl_api_t *api = fake_nccl_api(as_it_is, "");
  uint8_t id[BL_NCCL_ID_BYTES];
  fake_nccl_queue = put;
  for (uint32_t r = 0; r < RANKS; r++) {
    rank_t *rank = &ranks[r];
    memset(rank, 0, sizeof *rank);
    check(bl_nccl_engine_create(&(bl_nccl_engine_options_t){.api = api}, &rank->engine, &err), &err);
    pthread_mutex_init(&rank->stream.mutex, NULL);
    pthread_cond_init(&rank->stream.changed, NULL);
    assert_int_equal(pthread_create(&rank->stream.thread, NULL, serve, &rank->stream), 0);
    rank->window = calloc(RANKS, BLOCK);
    rank->staging = calloc(RANKS, BLOCK);
  }
  check(bl_nccl_engine_new_id(ranks[0].engine, id, &err), &err);
  for (uint32_t r = 0; r < opened; r++) {
    open_group(&ranks[r], r, id);
  }
  for (uint32_t r = 0; r < opened && opened == RANKS; r++) {
    check(bl_nccl_channel_wait(ranks[r].group, bl_clock_now_ns() + 60 * BL_NS_PER_S, &err), &err);
  }
}

static void stop(void) {
  for (uint32_t r = 0; r < RANKS; r++) {
    rank_t *rank = &ranks[r];
    bl_nccl_channel_close(rank->group);
    pthread_mutex_lock(&rank->stream.mutex);
    rank->stream.stop = true;
    pthread_cond_broadcast(&rank->stream.changed);
    pthread_mutex_unlock(&rank->stream.mutex);
    pthread_join(rank->stream.thread, NULL);
    bl_nccl_engine_destroy(rank->engine);
    free(rank->window);
    free(rank->staging);
  }
}

// Waits until the group of a rank has failed, and returns its cause.
static bl_error_t failure_of(const rank_t *rank) {
  bl_error_t err = {0};
  while (bl_nccl_channel_state(rank->group, &err) != BL_NCCL_DEAD) {
    usleep(1000);
  }
  return err;
}

// ---- collectives

typedef struct {
  uint8_t *at, value;
} fill_t;

static void fill(void *arguments) {
  const fill_t *task = arguments;
  memset(task->at, task->value, BLOCK);
}

typedef struct {
  const uint8_t *at;
  uint8_t value;
} expect_t;

static _Atomic unsigned wrong;

static void expect(void *arguments) {
  const expect_t *task = arguments;
  for (uint32_t i = 0; i < BLOCK; i++) {
    wrong += task->at[i] != task->value;
  }
}

static uint8_t value_of(uint32_t round, uint32_t from, uint32_t to) {
  return (uint8_t)(1 + round * 16 + from * RANKS + to);
}

static void put_fill(rank_t *rank, uint8_t *at, uint8_t value) {
  put(&rank->stream, fill, &(fill_t){at, value}, sizeof(fill_t));
}

static void put_expect(rank_t *rank, const uint8_t *at, uint8_t value) {
  put(&rank->stream, expect, &(expect_t){at, value}, sizeof(expect_t));
}

static bl_status_t exchange(rank_t *rank, uint32_t number, uint64_t bytes, bl_error_t *err) {
  bl_nccl_piece_t pieces[2 * RANKS];
  uint32_t count = 0;
  for (uint32_t peer = 0; peer < RANKS; peer++) {
    if (peer != number) {
      pieces[count++] = (bl_nccl_piece_t){.buffer = rank->staging + peer * BLOCK, .bytes = bytes, .rank = peer};
      pieces[count++] =
          (bl_nccl_piece_t){.buffer = rank->window + peer * BLOCK, .bytes = bytes, .rank = peer, .sends = true};
    }
  }
  return bl_nccl_channel_exchange(rank->group, &rank->stream, pieces, count, err);
}

// Nothing is waited for between the rounds: the order of the stream is all there is.
static void *run_rounds(void *argument) {
  rank_t *rank = argument;
  const uint32_t number = (uint32_t)(rank - ranks);
  bl_error_t err;
  for (uint32_t round = 0; round < ROUNDS; round++) {
    put_fill(rank, rank->window + number * BLOCK, value_of(round, number, 0));
    check(bl_nccl_channel_gather(rank->group, &rank->stream, rank->window, BLOCK, &err), &err);
    for (uint32_t from = 0; from < RANKS; from++) {
      put_expect(rank, rank->window + from * BLOCK, value_of(round, from, 0));
    }
    for (uint32_t to = 0; to < RANKS; to++) {
      put_fill(rank, rank->window + to * BLOCK, value_of(round, number, to));
    }
    check(exchange(rank, number, BLOCK, &err), &err);
    for (uint32_t from = 0; from < RANKS; from++) {
      if (from != number) {
        put_expect(rank, rank->staging + from * BLOCK, value_of(round, from, number));
      }
    }
  }
  finish(&rank->stream);
  return NULL;
}

static void blocks_come_to_their_places(void **state) {
  (void)state;
  start(RANKS);
  pthread_t threads[RANKS];
  wrong = 0;
  for (uint32_t r = 0; r < RANKS; r++) {
    assert_int_equal(pthread_create(&threads[r], NULL, run_rounds, &ranks[r]), 0);
  }
  for (uint32_t r = 0; r < RANKS; r++) {
    pthread_join(threads[r], NULL);
    bl_error_t err = {0};
    assert_int_equal(bl_nccl_channel_state(ranks[r].group, &err), BL_NCCL_READY);
    assert_int_equal(err.status, BL_OK);
  }
  assert_int_equal(wrong, 0);
  stop();
}

// Two ranks wait in a gather; the third one never calls it.
static void put_two_gathers(void) {
  bl_error_t err;
  for (uint32_t r = 0; r < 2; r++) {
    check(bl_nccl_channel_gather(ranks[r].group, &ranks[r].stream, ranks[r].window, BLOCK, &err), &err);
  }
  usleep(20000);
  assert_int_equal(done_of(&ranks[0].stream), 0);
}

static void a_rank_that_ends(void **state) {
  (void)state;
  start(RANKS);
  put_two_gathers();
  bl_nccl_channel_close(ranks[2].group);
  ranks[2].group = NULL;
  for (uint32_t r = 0; r < 2; r++) {
    finish(&ranks[r].stream);
    bl_error_t err = failure_of(&ranks[r]);
    assert_int_equal(err.status, BL_UNAVAILABLE);
    assert_string_equal(err.text, "NCCL, three ranks: remote process exited or there was a network error");
    assert_int_equal(bl_nccl_channel_gather(ranks[r].group, &ranks[r].stream, ranks[r].window, BLOCK, &err),
                     BL_UNAVAILABLE);
  }
  stop();
}

// Every rank aborts its own end: one that waits for the third need not notice that the first is gone.
static void an_abort(void **state) {
  (void)state;
  start(RANKS);
  put_two_gathers();
  for (uint32_t r = 0; r < 2; r++) {
    bl_nccl_channel_abort(ranks[r].group, BL_CANCELLED, "the attempt was aborted");
    finish(&ranks[r].stream);
    const bl_status_t status = failure_of(&ranks[r]).status;
    assert_true(status == BL_CANCELLED || (r == 1 && status == BL_UNAVAILABLE)); // it may have seen the other one go
  }
  stop();
}

static void collectives_that_differ(void **state) {
  (void)state;
  start(RANKS);
  bl_error_t err;
  for (uint32_t r = 0; r < RANKS; r++) {
    check(exchange(&ranks[r], r, r == 1 ? BLOCK / 2 : BLOCK, &err), &err);
  }
  for (uint32_t r = 0; r < RANKS; r++) {
    finish(&ranks[r].stream);
    const bl_status_t status = failure_of(&ranks[r]).status;
    assert_true(status == BL_IO || status == BL_UNAVAILABLE); // it found the fault, or lost one that did
  }
  stop();
}

static void ranks_that_never_come(void **state) {
  (void)state;
  start(2);
  bl_error_t err;
  assert_int_equal(bl_nccl_channel_wait(ranks[0].group, bl_clock_now_ns() + 50 * BL_NS_PER_MS, &err), BL_DEADLINE);
  assert_int_equal(bl_nccl_channel_gather(ranks[0].group, &ranks[0].stream, ranks[0].window, BLOCK, &err),
                   BL_PRECONDITION);
  stop();
  assert_int_equal(bl_nccl_channel_open(NULL, &(bl_nccl_channel_options_t){.rank = 3, .group_ranks = 3}, NULL, &err),
                   BL_INVALID);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(blocks_come_to_their_places), cmocka_unit_test(a_rank_that_ends),
                                     cmocka_unit_test(an_abort), cmocka_unit_test(collectives_that_differ),
                                     cmocka_unit_test(ranks_that_never_come)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
