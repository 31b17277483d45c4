// SPDX-License-Identifier: Apache-2.0
// Verifies notes between the compute threads of two stages, over shm and tcp: they are read by number, those of an attempt
// that has not begun here wait for it, older ones are dropped, aborts and lost peers end waits, and a peer that sends more than
// it may loses its link. A link for notes alone shares no memory.
#include "pair.h"

#define FOR_EACH_PATH(path) for (bl_path_t path = BL_PATH_SHM; path <= BL_PATH_TCP; path++)

static void post(pair_t *pair, int from, uint32_t number, uint8_t value) {
  uint8_t body[BL_NOTE_BYTES];
  bl_error_t err;
  memset(body, value, sizeof body);
  CHECK_OK(bl_transport_post_note(pair->transport[from], !from, number, body, &err), err);
}

static void expect(pair_t *pair, int at, uint32_t number, uint8_t value) {
  uint8_t body[BL_NOTE_BYTES], expected[BL_NOTE_BYTES];
  bl_error_t err;
  memset(expected, value, sizeof expected);
  CHECK_OK(bl_transport_wait_note(pair->transport[at], !at, number, soon(), body, &err), err);
  assert_memory_equal(body, expected, sizeof body);
}

static void begin(pair_t *pair, int side, uint64_t attempt) {
  bl_error_t err;
  CHECK_OK(bl_transport_begin(pair->transport[side], attempt, &err), err);
}

static void read_by_number_and_attempt(void **state) {
  (void)state;
  FOR_EACH_PATH(path) {
    pair_t pair;
    pair_open(&pair, path);
    begin(&pair, 0, 1);
    begin(&pair, 1, 1);
    for (uint32_t round = 0; round < 100; round++) {
      post(&pair, 0, 2 * round, (uint8_t)round);
      post(&pair, 0, 2 * round + 1, (uint8_t)(round + 100));
      expect(&pair, 1, 2 * round + 1, (uint8_t)(round + 100));
      expect(&pair, 1, 2 * round, (uint8_t)round);
      post(&pair, 1, round, (uint8_t)(round + 50));
      expect(&pair, 0, round, (uint8_t)(round + 50));
    }
    post(&pair, 0, 1000, 9); // nobody reads it
    begin(&pair, 0, 2);
    post(&pair, 0, 0, 7); // before the other end begins
    post(&pair, 1, 1000, 8);
    begin(&pair, 1, 2);
    expect(&pair, 1, 0, 7);
    uint8_t body[BL_NOTE_BYTES];
    bl_error_t err;
    assert_int_equal(
        bl_transport_wait_note(pair.transport[1], 0, 1000, bl_clock_now_ns() + 20 * BL_NS_PER_MS, body, &err),
        BL_DEADLINE);
    assert_string_equal(err.text, "note 1000 from stage 0: nothing came before the deadline");
    pair_close(&pair);
  }
}

typedef struct {
  pair_t *pair;
  bl_status_t status;
  bl_error_t err;
} waiter_t;

static void *wait_in_vain(void *argument) {
  waiter_t *waiter = argument;
  uint8_t body[BL_NOTE_BYTES];
  waiter->status = bl_transport_wait_note(waiter->pair->transport[1], 0, 5, soon(), body, &waiter->err);
  return NULL;
}

static void waits_end(void **state) {
  (void)state;
  FOR_EACH_PATH(path) {
    for (int lost = 0; lost < 2; lost++) {
      pair_t pair;
      pair_open(&pair, path);
      begin(&pair, 0, 1);
      begin(&pair, 1, 1);
      waiter_t waiter = {.pair = &pair};
      pthread_t thread;
      assert_int_equal(pthread_create(&thread, NULL, wait_in_vain, &waiter), 0);
      bl_transport_wait_t wait;
      while (bl_transport_waits(pair.transport[1], &wait, 1) == 0) {
        usleep(1000);
      }
      assert_string_equal(wait.what, "note 5 from stage 0");
      if (lost) {
        bl_transport_destroy(pair.transport[0]);
        pair.transport[0] = NULL;
      } else {
        bl_transport_abort(pair.transport[1]);
      }
      pthread_join(thread, NULL);
      assert_int_equal(waiter.status, lost ? BL_UNAVAILABLE : BL_CANCELLED);
      const uint8_t body[BL_NOTE_BYTES] = {0};
      assert_int_equal(bl_transport_post_note(pair.transport[1], 0, 6, body, &waiter.err),
                       lost ? BL_UNAVAILABLE : BL_CANCELLED);
      assert_int_equal(bl_transport_post_note(pair.transport[1], 7, 6, body, &waiter.err),
                       lost ? BL_INVALID : BL_CANCELLED);
      pair_close(&pair);
    }
  }
}

// Between ends that exchange nothing else, whatever path is requested: no memory of the other end is mapped.
static void a_link_for_notes_alone(void **state) {
  (void)state;
  const bl_path_t asked[] = {BL_PATH_AUTO, BL_PATH_SHM, BL_PATH_TCP, BL_PATH_NCCL};
  for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++) {
    pair_t pair;
    pair_init(&pair);
    pair.notes_only = true;
    pair_listen(&pair);
    pair_connect(&pair, asked[i]);
    pair_connect(&pair, asked[i]); // keeps the link
    pair_begin(&pair, 1);
    post(&pair, 0, 0, 3);
    post(&pair, 1, 0, 4);
    expect(&pair, 1, 0, 3);
    expect(&pair, 0, 0, 4);
    for (int side = 0; side < 2; side++) {
      bl_transport_path_t path;
      assert_int_equal(bl_transport_paths(pair.transport[side], &path, 1), 1);
      assert_int_equal(path.path, asked[i] == BL_PATH_TCP ? BL_PATH_TCP : BL_PATH_SHM);
      assert_int_equal(path.mapped_bytes, 0);
      assert_non_null(strstr(path.reason, "notes only"));
    }
    pair_close(&pair);
  }
}

static void too_many_end_the_link(void **state) {
  (void)state;
  pair_t pair;
  pair_open(&pair, BL_PATH_SHM);
  begin(&pair, 0, 1);
  begin(&pair, 1, 1);
  const uint8_t body[BL_NOTE_BYTES] = {0};
  bl_error_t err;
  bl_status_t status = BL_OK;
  for (uint32_t i = 0; i < 1000 && (status == BL_OK || status == BL_EXHAUSTED); i++) {
    status = bl_transport_post_note(pair.transport[0], 1, i, body, &err);
    usleep(200);
  }
  assert_int_equal(status, BL_UNAVAILABLE);
  uint8_t read[BL_NOTE_BYTES];
  assert_int_equal(bl_transport_wait_note(pair.transport[1], 0, 2000, soon(), read, &err), BL_INTERNAL);
  assert_non_null(strstr(err.text, "sends notes that were not asked for"));
  pair_close(&pair);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(read_by_number_and_attempt), cmocka_unit_test(waits_end),
                                     cmocka_unit_test(a_link_for_notes_alone), cmocka_unit_test(too_many_end_the_link)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
