// SPDX-License-Identifier: Apache-2.0
// Verifies the wire format: every kind survives the way through bytes, each limit is enforced with its reason, and no
// damaged header, greeting or word about communicators is ever taken for a valid one. The seed is printed;
// BALLAST_TEST_SEED sets it.
#include "base/random.h"
#include "datapath/greeting.h"
#include "datapath/nccl/rendezvous_message.h"
#include "seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

// Every field that a kind uses, in range.
static bl_frame_t example(bl_frame_kind_t kind) {
  bl_frame_t frame = {.kind = kind, .body_bytes = bl_frame_fixed_body_bytes(kind)};
  switch (kind) {
  case BL_FRAME_GREET:
  case BL_FRAME_WELCOME:
  case BL_FRAME_READY:
  case BL_FRAME_RENDEZVOUS:
    break;
  case BL_FRAME_GO:
  case BL_FRAME_DATA:
  case BL_FRAME_OFFER:
  case BL_FRAME_ACK:
  case BL_FRAME_CREDIT:
    frame.attempt = 77;
    frame.key = (bl_tensor_key_t){.boundary = 6, .direction = BL_BACKWARD, .micro_batch = 15, .piece = 4};
    frame.bytes = kind == BL_FRAME_ACK ? 0 : 3u << 20;
    frame.offset = kind == BL_FRAME_DATA || kind == BL_FRAME_OFFER ? 4096 : 0;
    frame.region = kind == BL_FRAME_OFFER || kind == BL_FRAME_GO ? 7 : 0;
    frame.body_bytes = kind == BL_FRAME_DATA ? BL_FRAME_CHUNK_BYTES : 0;
    frame.checksum = kind == BL_FRAME_DATA ? 0xfedcba9876543210ull : 0;
    break;
  case BL_FRAME_NOTE:
    frame.attempt = 77;
    frame.key.boundary = 3;
    break;
  case BL_FRAME_REGISTER:
  case BL_FRAME_UNREGISTER:
    frame.region = 4095;
    frame.bytes = kind == BL_FRAME_REGISTER ? 1ull << 33 : 0;
    break;
  case BL_FRAME_BYE:
  case BL_FRAME_REGISTERED:
  case BL_FRAME_UNREGISTERED:
  case BL_FRAME_ANSWER:
    frame.status = BL_DENIED;
    frame.body_bytes = 11;
    frame.retry_after_ms = kind == BL_FRAME_ANSWER ? 250 : 0;
    break;
  case BL_FRAME_EVICT:
  case BL_FRAME_LOAD:
  case BL_FRAME_RELEASE:
  case BL_FRAME_KEEP:
    frame.sequence = 99;
    frame.acknowledged = 98;
    frame.id = 5;
    frame.generation = 6;
    frame.bytes = 1000;
    frame.offset = 4096;
    frame.checksum = 0x0123456789abcdefull;
    frame.step = 1ull << 40;
    frame.chunk = 3;
    frame.micro_batch = 8;
    frame.loaded = kind == BL_FRAME_RELEASE;
    break;
  }
  return frame;
}

static void every_kind_comes_back(void **state) {
  (void)state;
  for (int kind = BL_FRAME_GREET; kind <= BL_FRAME_LAST; kind++) {
    bl_frame_t frame = example((bl_frame_kind_t)kind), back = {0};
    uint8_t header[BL_FRAME_HEADER_BYTES];
    const char *reason = "none";
    bl_frame_encode(&frame, header);
    assert_int_equal(bl_frame_decode(header, &back, &reason), BL_OK);
    assert_int_equal(back.kind, frame.kind);
    assert_int_equal(back.status, frame.status);
    assert_int_equal(back.body_bytes, frame.body_bytes);
    assert_int_equal(back.region, frame.region);
    assert_int_equal(back.offset, frame.offset);
    assert_int_equal(back.bytes, frame.bytes);
    assert_int_equal(back.checksum, frame.checksum);
    assert_int_equal(back.attempt, frame.attempt);
    assert_true(bl_tensor_key_equal(back.key, frame.key));
    assert_int_equal(back.sequence, frame.sequence);
    assert_int_equal(back.acknowledged, frame.acknowledged);
    assert_int_equal(back.id, frame.id);
    assert_int_equal(back.generation, frame.generation);
    assert_int_equal(back.step, frame.step);
    assert_int_equal(back.chunk, frame.chunk);
    assert_int_equal(back.micro_batch, frame.micro_batch);
    assert_int_equal(back.retry_after_ms, frame.retry_after_ms);
    assert_int_equal(back.loaded, frame.loaded);
    assert_string_not_equal(bl_frame_kind_name(frame.kind), "unknown");
    assert_true(bl_frame_may_begin(header, 3) && bl_frame_may_begin(header, sizeof header));
  }
}

static void expect_refused(const bl_frame_t *frame, const char *why) {
  uint8_t header[BL_FRAME_HEADER_BYTES];
  bl_frame_t back = {.bytes = 5};
  const char *reason = "none";
  bl_frame_encode(frame, header);
  assert_int_equal(bl_frame_decode(header, &back, &reason), BL_INVALID);
  assert_string_equal(reason, why);
  assert_int_equal(back.bytes, 5); // untouched
}

static void limits_hold(void **state) {
  (void)state;
  bl_frame_t frame = example(BL_FRAME_DATA);
  frame.body_bytes = BL_FRAME_CHUNK_BYTES + 1;
  expect_refused(&frame, "chunk size out of range");
  frame.body_bytes = 0;
  expect_refused(&frame, "chunk size out of range");
  frame = example(BL_FRAME_DATA);
  frame.offset = frame.bytes - 5;
  expect_refused(&frame, "chunk beyond its tensor or block");
  frame.offset = UINT64_MAX - 5;
  expect_refused(&frame, "chunk beyond its tensor or block");
  frame = example(BL_FRAME_CREDIT);
  frame.bytes = BL_FRAME_MAX_BYTES + 1;
  expect_refused(&frame, "tensor size out of range");
  frame.bytes = 0;
  expect_refused(&frame, "tensor size out of range");
  frame = example(BL_FRAME_OFFER);
  frame.region = BL_FRAME_MAX_ARENAS;
  expect_refused(&frame, "arena position out of range");
  frame = example(BL_FRAME_OFFER);
  frame.offset = UINT64_MAX;
  expect_refused(&frame, "arena position out of range");
  frame = example(BL_FRAME_ACK);
  frame.attempt = 0;
  expect_refused(&frame, "attempt is 0");
  frame = example(BL_FRAME_ACK);
  frame.key.direction = BL_DIRECTIONS;
  expect_refused(&frame, "unknown direction");
  frame = example(BL_FRAME_ACK);
  frame.body_bytes = 4;
  expect_refused(&frame, "unexpected body");
  frame = example(BL_FRAME_GREET);
  frame.body_bytes = UINT32_MAX;
  expect_refused(&frame, "wrong body size");
  frame = example(BL_FRAME_RENDEZVOUS);
  frame.body_bytes--;
  expect_refused(&frame, "wrong body size");
  frame = example(BL_FRAME_BYE);
  frame.body_bytes = BL_FRAME_TEXT_BYTES + 1;
  expect_refused(&frame, "text too long");
  frame = example(BL_FRAME_BYE);
  frame.status = BL_OK;
  expect_refused(&frame, "a goodbye without a cause");
  frame = example(BL_FRAME_REGISTER);
  frame.region = BL_FRAME_REGIONS;
  expect_refused(&frame, "region out of range");
  frame = example(BL_FRAME_REGISTER);
  frame.bytes = 0;
  expect_refused(&frame, "region size out of range");
  frame = example(BL_FRAME_EVICT);
  frame.sequence = 0;
  expect_refused(&frame, "sequence number is 0");
  frame = example(BL_FRAME_LOAD);
  frame.bytes = BL_FRAME_MAX_BYTES + 1;
  expect_refused(&frame, "block size or offset out of range");
  frame = example(BL_FRAME_DATA); // of a block
  frame.sequence = 4;
  frame.bytes = BL_FRAME_MAX_BYTES + 1;
  expect_refused(&frame, "block size or offset out of range");
  frame = example(BL_FRAME_GO); // of nothing
  frame.attempt = 0;
  expect_refused(&frame, "attempt is 0");
  frame = example(BL_FRAME_READY);
  frame.kind = (bl_frame_kind_t)99;
  expect_refused(&frame, "unknown kind of frame");
  uint8_t garbage[BL_FRAME_HEADER_BYTES] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
  const char *reason = NULL;
  assert_int_equal(bl_frame_decode(garbage, &frame, &reason), BL_INVALID);
  assert_string_equal(reason, "not a ballast frame");
  assert_false(bl_frame_may_begin(garbage, 1));
}

static void every_flipped_bit_is_found(void **state) {
  (void)state;
  for (int kind = BL_FRAME_GREET; kind <= BL_FRAME_LAST; kind++) {
    bl_frame_t frame = example((bl_frame_kind_t)kind), back;
    uint8_t header[BL_FRAME_HEADER_BYTES];
    const char *reason;
    bl_frame_encode(&frame, header);
    for (unsigned bit = 0; bit < 8 * BL_FRAME_HEADER_BYTES; bit++) {
      header[bit / 8] ^= (uint8_t)(1u << bit % 8);
      assert_int_equal(bl_frame_decode(header, &back, &reason), BL_INVALID);
      header[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_int_equal(bl_frame_decode(header, &back, &reason), BL_OK);
  }
}

// 0, 1, or a limit, or one beside them.
static uint64_t near_an_edge(uint64_t seed, uint64_t *index) {
  const uint64_t edges[] = {0, 1, 4096, BL_FRAME_CHUNK_BYTES, BL_FRAME_MAX_BYTES, UINT64_MAX};
  uint64_t edge = edges[bl_random_below(seed, (*index)++, 6)];
  return edge + bl_random_below(seed, (*index)++, 3) - 1;
}

// A liar who computes checksums gets through only with fields in range.
static void whatever_is_accepted_is_in_range(void **state) {
  (void)state;
  uint64_t seed = test_seed(20);
  uint64_t index = 0;
  unsigned accepted = 0;
  for (int i = 0; i < 200000; i++) {
    bl_frame_t frame = example((bl_frame_kind_t)(1 + bl_random_below(seed, index++, BL_FRAME_LAST))), back;
    for (uint64_t changes = bl_random_below(seed, index++, 4); changes > 0; changes--) {
      switch (bl_random_below(seed, index++, 8)) {
      case 0:
        frame.kind = (bl_frame_kind_t)bl_random_below(seed, index++, BL_FRAME_LAST + 3);
        break;
      case 1:
        frame.body_bytes = (uint32_t)near_an_edge(seed, &index);
        break;
      case 2:
        frame.attempt = near_an_edge(seed, &index);
        break;
      case 3:
        frame.key.direction = (bl_direction_t)bl_random_below(seed, index++, 256);
        break;
      case 4:
        frame.region = (uint32_t)near_an_edge(seed, &index);
        break;
      case 5:
        frame.sequence = near_an_edge(seed, &index);
        break;
      case 6:
        frame.offset = near_an_edge(seed, &index);
        break;
      default:
        frame.bytes = near_an_edge(seed, &index);
        break;
      }
    }
    uint8_t header[BL_FRAME_HEADER_BYTES];
    const char *reason;
    bl_frame_encode(&frame, header);
    if (bl_frame_decode(header, &back, &reason) != BL_OK) {
      continue;
    }
    accepted++;
    assert_in_range(back.kind, BL_FRAME_GREET, BL_FRAME_LAST);
    assert_true(back.body_bytes <= BL_FRAME_CHUNK_BYTES);
    const bool moves = back.kind == BL_FRAME_GO || back.kind == BL_FRAME_DATA;
    if ((back.kind >= BL_FRAME_OFFER && back.kind <= BL_FRAME_CREDIT) || (moves && back.sequence == 0)) {
      assert_in_range(back.key.direction, 0, BL_DIRECTIONS - 1);
      assert_true(back.attempt > 0);
    }
    if (back.kind >= BL_FRAME_EVICT && back.kind <= BL_FRAME_KEEP) {
      assert_true(back.sequence > 0);
    }
    if (back.kind == BL_FRAME_DATA) {
      assert_true(back.bytes <= BL_FRAME_MAX_BYTES && back.offset + back.body_bytes <= back.bytes);
    }
  }
  assert_true(accepted > 1000);
}

static void greetings_come_back(void **state) {
  (void)state;
  bl_greeting_t greeting = {
      .session = 1ull << 50, .stage = 3, .peer = 4, .path = 1, .arena_count = 2, .arena_bytes = {4096, 1ull << 33}};
  memset(greeting.token, 0xa1, sizeof greeting.token);
  memset(greeting.own_token, 0xb2, sizeof greeting.own_token);
  strcpy(greeting.reason, "shm: same\nmachine");
  strcpy(greeting.gpu, "GPU-00ff");
  greeting.nccl = 22809;
  greeting.wants_nccl = true;
  uint8_t body[BL_FRAME_GREETING_BYTES];
  bl_greeting_t back;
  const char *reason = NULL;
  bl_greeting_encode(&greeting, body);
  assert_int_equal(bl_greeting_decode(body, &back, &reason), BL_OK);
  assert_int_equal(back.stage, 3);
  assert_int_equal(back.peer, 4);
  assert_int_equal(back.session, 1ull << 50);
  assert_int_equal(back.arena_count, 2);
  assert_int_equal(back.arena_bytes[1], 1ull << 33);
  assert_memory_equal(back.token, greeting.token, sizeof greeting.token);
  assert_memory_equal(back.own_token, greeting.own_token, sizeof greeting.own_token);
  assert_string_equal(back.reason, "shm: same?machine"); // no line breaks into a log
  assert_string_equal(back.gpu, "GPU-00ff");
  assert_int_equal(back.nccl, 22809);
  assert_true(back.wants_nccl && !back.shared_gpu);

  bl_greeting_t bad = greeting;
  bad.arena_count = BL_FRAME_MAX_ARENAS + 1;
  bl_greeting_encode(&bad, body);
  assert_int_equal(bl_greeting_decode(body, &back, &reason), BL_INVALID);
  bad = greeting;
  bad.arena_bytes[1] = 0;
  bl_greeting_encode(&bad, body);
  assert_int_equal(bl_greeting_decode(body, &back, &reason), BL_INVALID);
  bad = greeting;
  bad.stage = -1;
  bl_greeting_encode(&bad, body);
  assert_int_equal(bl_greeting_decode(body, &back, &reason), BL_INVALID);
  bl_greeting_encode(&greeting, body);
  memset(body + BL_FRAME_GREETING_BYTES - 8 - BL_GREETING_REASON_BYTES, 'x', BL_GREETING_REASON_BYTES); // no terminator
  assert_int_equal(bl_greeting_decode(body, &back, &reason), BL_INVALID);

  bad = greeting;
  bad.path = BL_PATH_AUTO;
  bl_greeting_encode(&bad, body);
  assert_int_equal(bl_greeting_decode(body, &back, &reason), BL_INVALID);
  bad = greeting;
  bad.nccl = -1;
  bl_greeting_encode(&bad, body);
  assert_int_equal(bl_greeting_decode(body, &back, &reason), BL_INVALID);
}

static void words_about_communicators_come_back(void **state) {
  (void)state;
  bl_rendezvous_message_t rendezvous = {.kind = BL_NCCL_RENDEZVOUS_DROP,
                                        .generation = 9,
                                        .status = BL_IO,
                                        .text = "no\tmemory"},
                          back;
  memset(rendezvous.ids[0], 0xa1, sizeof rendezvous.ids[0]);
  memset(rendezvous.ids[1], 0xb2, sizeof rendezvous.ids[1]);
  uint8_t body[BL_FRAME_RENDEZVOUS_BYTES];
  const char *reason = NULL;
  bl_rendezvous_message_encode(&rendezvous, body);
  assert_int_equal(bl_rendezvous_message_decode(body, &back, &reason), BL_OK);
  assert_int_equal(back.kind, BL_NCCL_RENDEZVOUS_DROP);
  assert_int_equal(back.generation, 9);
  assert_int_equal(back.status, BL_IO);
  assert_memory_equal(back.ids, rendezvous.ids, sizeof rendezvous.ids);
  assert_string_equal(back.text, "no?memory");

  const bl_rendezvous_message_t bad[] = {{.kind = BL_NCCL_RENDEZVOUS_KINDS, .generation = 1},
                                         {.kind = BL_NCCL_RENDEZVOUS_IDS, .generation = 0},
                                         {.kind = BL_NCCL_RENDEZVOUS_READY, .generation = 1, .status = BL_STATUS_COUNT},
                                         {.kind = BL_NCCL_RENDEZVOUS_BROKE, .generation = 1, .status = BL_OK}};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    bl_rendezvous_message_encode(&bad[i], body);
    assert_int_equal(bl_rendezvous_message_decode(body, &back, &reason), BL_INVALID);
  }
  bl_rendezvous_message_encode(&rendezvous, body);
  memset(body + BL_FRAME_RENDEZVOUS_BYTES - BL_RENDEZVOUS_TEXT_BYTES, 'x', BL_RENDEZVOUS_TEXT_BYTES); // no terminator
  assert_int_equal(bl_rendezvous_message_decode(body, &back, &reason), BL_INVALID);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_kind_comes_back),      cmocka_unit_test(limits_hold),
      cmocka_unit_test(every_flipped_bit_is_found), cmocka_unit_test(whatever_is_accepted_is_in_range),
      cmocka_unit_test(greetings_come_back),        cmocka_unit_test(words_about_communicators_come_back),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
