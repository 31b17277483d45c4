// SPDX-License-Identifier: Apache-2.0
// Verifies the matching of tensors of one link without any I/O: two exchanges talk through queues that a seeded order
// delivers, post in random order, give attempts up, and must move every tensor of the last attempt exactly once.
// Violations of the protocol are refused and quotas hold. The seed is printed; BALLAST_TEST_SEED sets it.
#include "base/random.h"
#include "datapath/exchange.h"
#include "seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MICRO_BATCHES 12u
#define TENSOR_BYTES  10u
#define CHUNK_BYTES   4u // three chunks per tensor
#define QUEUE_FRAMES  4096u

static bl_tensor_key_t key_of(uint32_t micro_batch) {
  return (bl_tensor_key_t){.boundary = 1, .direction = BL_BACKWARD, .micro_batch = micro_batch};
}

// One side: its exchange and the frames that are on their way to it.
typedef struct {
  bl_exchange_t *exchange;
  bl_frame_t queue[QUEUE_FRAMES];
  uint32_t head, tail;
  uint64_t attempt;
  uint32_t posted_sends, posted_receives; // bit per micro-batch, of this attempt
  uint32_t received;
  bl_tensor_t *receiving; // push: a chunk between its header and its end
  uint32_t chunk_bytes;
} side_t;

typedef struct {
  side_t side[2];
  bl_exchange_kind_t kind;
  uint64_t seed, index;
  uint8_t memory;
} world_t;

static uint64_t draw(world_t *world, uint64_t bound) {
  return bl_random_below(world->seed, world->index++, bound);
}

static void push(side_t *to, const bl_frame_t *frame) {
  assert_true(to->tail - to->head < QUEUE_FRAMES);
  to->queue[to->tail++ % QUEUE_FRAMES] = *frame;
}

static void deliver(world_t *world, int s) {
  side_t *side = &world->side[s];
  const char *reason = "none";
  if (side->receiving != NULL) { // the end of a chunk
    if (side->receiving->stale) {
      bl_exchange_drop(side->exchange, side->receiving);
    } else {
      bl_exchange_moved(side->exchange, side->receiving, side->chunk_bytes);
    }
    side->receiving = NULL;
    return;
  }
  if (side->head == side->tail) {
    return;
  }
  bl_frame_t frame = side->queue[side->head++ % QUEUE_FRAMES];
  bl_status_t status;
  if (frame.kind == BL_FRAME_DATA) {
    status = bl_exchange_on_data(side->exchange, &frame, &side->receiving, &reason);
    side->chunk_bytes = frame.body_bytes;
  } else {
    status = bl_exchange_on_frame(side->exchange, &frame, &reason);
  }
  if (status != BL_OK) {
    fail_msg("side %d refuses %s of attempt %llu at attempt %llu: %s", s, bl_frame_kind_name(frame.kind),
             (unsigned long long)frame.attempt, (unsigned long long)side->attempt, reason);
  }
}

// Frames first: what the link does, too, since a chunk may only follow the frames before it.
static void speak(world_t *world, int s) {
  side_t *side = &world->side[s], *other = &world->side[!s];
  bl_frame_t frame;
  if (bl_exchange_next_frame(side->exchange, &frame)) {
    push(other, &frame);
    return;
  }
  bl_tensor_t *tensor = bl_exchange_next_transfer(side->exchange);
  if (tensor == NULL) {
    return;
  }
  if (tensor->stale) {
    bl_exchange_drop(side->exchange, tensor);
    return;
  }
  uint64_t rest = tensor->bytes - tensor->moved_bytes;
  uint32_t bytes = (uint32_t)(rest < CHUNK_BYTES ? rest : CHUNK_BYTES);
  if (world->kind == BL_EXCHANGE_PUSH) {
    frame = (bl_frame_t){.kind = BL_FRAME_DATA,
                         .attempt = tensor->attempt,
                         .key = tensor->key,
                         .offset = tensor->moved_bytes,
                         .bytes = tensor->bytes,
                         .body_bytes = bytes};
    push(other, &frame);
  }
  bl_exchange_moved(side->exchange, tensor, bytes);
}

static void act(world_t *world, int s) {
  side_t *side = &world->side[s];
  uint32_t i = (uint32_t)draw(world, MICRO_BATCHES), bit = 1u << i;
  uint64_t peer_bytes;
  if (side->attempt == 0) {
    return;
  }
  if ((side->posted_sends & bit) == 0 && draw(world, 2) == 0) {
    assert_int_equal(bl_exchange_post_send(side->exchange, key_of(i), &world->memory, TENSOR_BYTES, 0, i, &peer_bytes),
                     BL_OK);
    side->posted_sends |= bit;
  } else if ((side->posted_receives & bit) == 0) {
    assert_int_equal(bl_exchange_post_receive(side->exchange, key_of(i), &world->memory, TENSOR_BYTES, &peer_bytes),
                     BL_OK);
    side->posted_receives |= bit;
  } else {
    bl_tensor_t *receive = bl_exchange_find(side->exchange, BL_TENSOR_RECEIVE, key_of(i));
    if (receive != NULL && receive->complete) {
      assert_int_equal(side->received & bit, 0);
      bl_exchange_consume(side->exchange, receive);
      assert_null(bl_exchange_find(side->exchange, BL_TENSOR_RECEIVE, key_of(i)));
      side->received |= bit;
    }
  }
}

static void begin(side_t *side, uint64_t attempt) {
  bl_exchange_begin(side->exchange, attempt);
  side->attempt = attempt;
  side->posted_sends = side->posted_receives = side->received = 0;
}

static bool all_done(world_t *world, uint64_t attempt) {
  const uint32_t all = (1u << MICRO_BATCHES) - 1;
  for (int s = 0; s < 2; s++) {
    side_t *side = &world->side[s];
    if (side->attempt != attempt || side->received != all || side->head != side->tail || side->receiving != NULL) {
      return false;
    }
    for (uint32_t i = 0; i < MICRO_BATCHES; i++) {
      if (bl_exchange_find(side->exchange, BL_TENSOR_SEND, key_of(i)) != NULL) {
        return false;
      }
    }
  }
  return true;
}

static void run_world(bl_exchange_kind_t kind, uint64_t seed) {
  world_t *world = calloc(1, sizeof *world);
  *world = (world_t){.kind = kind, .seed = seed};
  for (int s = 0; s < 2; s++) {
    assert_int_equal(bl_exchange_create(MICRO_BATCHES, &world->side[s].exchange), BL_OK);
    bl_exchange_reset(world->side[s].exchange, kind, 0);
  }
  const uint64_t last = 1 + draw(world, 4);
  for (uint64_t moves = 0; !all_done(world, last); moves++) {
    if (moves > 2000000) {
      fail_msg("seed %llu: the tensors never all arrived", (unsigned long long)seed);
    }
    int s = (int)draw(world, 2);
    side_t *side = &world->side[s];
    switch (draw(world, 8)) {
    case 0:
    case 1:
      act(world, s);
      break;
    case 2:
      // A side may run ahead of the other by any number of attempts; the one behind follows at some time.
      if (side->attempt < last && draw(world, 20) == 0) {
        begin(side, side->attempt + 1 + draw(world, last - side->attempt));
      }
      break;
    case 3:
    case 4:
      speak(world, s);
      break;
    default:
      deliver(world, s);
      break;
    }
  }
  for (int s = 0; s < 2; s++) {
    bl_exchange_destroy(world->side[s].exchange);
  }
  free(world);
}

static void random_worlds_end_whole(void **state) {
  (void)state;
  uint64_t seed = test_seed(20);
  for (uint64_t i = 0; i < 300; i++) {
    run_world(i % 2 == 0 ? BL_EXCHANGE_PULL : BL_EXCHANGE_PUSH, seed + i);
  }
}

static bl_exchange_t *fresh(bl_exchange_kind_t kind, uint32_t max_in_flight) {
  bl_exchange_t *exchange;
  assert_int_equal(bl_exchange_create(max_in_flight, &exchange), BL_OK);
  bl_exchange_reset(exchange, kind, 1);
  return exchange;
}

static bl_frame_t frame_of(bl_frame_kind_t kind, uint32_t micro_batch) {
  return (bl_frame_t){.kind = kind, .attempt = 1, .key = key_of(micro_batch), .bytes = TENSOR_BYTES};
}

static void expect_violation(bl_exchange_t *exchange, const bl_frame_t *frame, const char *why) {
  const char *reason = "none";
  bl_tensor_t *receive = NULL;
  bl_status_t status = frame->kind == BL_FRAME_DATA ? bl_exchange_on_data(exchange, frame, &receive, &reason)
                                                    : bl_exchange_on_frame(exchange, frame, &reason);
  assert_int_equal(status, BL_INVALID);
  assert_string_equal(reason, why);
}

static void violations_are_refused(void **state) {
  (void)state;
  uint8_t memory = 0;
  uint64_t peer_bytes = 0;
  bl_tensor_t *receive = NULL;
  const char *reason;
  bl_exchange_t *pull = fresh(BL_EXCHANGE_PULL, 4), *push_side = fresh(BL_EXCHANGE_PUSH, 4);

  bl_frame_t frame = frame_of(BL_FRAME_ACK, 0);
  expect_violation(pull, &frame, "acknowledges a tensor that was not offered");
  assert_int_equal(bl_exchange_post_send(pull, key_of(0), &memory, TENSOR_BYTES, 0, 0, &peer_bytes), BL_OK);
  expect_violation(pull, &frame, "acknowledges a tensor that was not offered"); // its OFFER has not left yet
  frame = frame_of(BL_FRAME_CREDIT, 0);
  expect_violation(pull, &frame, "sends a frame of the other path");
  frame = frame_of(BL_FRAME_READY, 0);
  expect_violation(pull, &frame, "sends a frame that is not expected now");
  frame = frame_of(BL_FRAME_OFFER, 1);
  assert_int_equal(bl_exchange_on_frame(pull, &frame, &reason), BL_OK);
  expect_violation(pull, &frame, "announces a tensor twice");
  assert_int_equal(bl_exchange_post_receive(pull, key_of(1), &memory, 7, &peer_bytes), BL_INVALID);
  assert_int_equal(peer_bytes, TENSOR_BYTES);
  assert_int_equal(bl_exchange_post_receive(pull, key_of(2), &memory, 7, &peer_bytes), BL_OK);
  frame = frame_of(BL_FRAME_OFFER, 2);
  expect_violation(pull, &frame, "announces a tensor with another size than was posted here");

  frame = frame_of(BL_FRAME_DATA, 0);
  frame.body_bytes = 4;
  expect_violation(push_side, &frame, "sends data without credit");
  assert_int_equal(bl_exchange_post_receive(push_side, key_of(0), &memory, TENSOR_BYTES, &peer_bytes), BL_OK);
  expect_violation(push_side, &frame, "sends data without credit"); // the credit has not left yet
  bl_frame_t credit;
  assert_true(bl_exchange_next_frame(push_side, &credit));
  assert_int_equal(credit.kind, BL_FRAME_CREDIT);
  frame.offset = 4;
  expect_violation(push_side, &frame, "sends a chunk out of order or of another size");
  frame.offset = 0;
  frame.bytes = TENSOR_BYTES + 1;
  expect_violation(push_side, &frame, "sends a chunk out of order or of another size");
  frame.bytes = TENSOR_BYTES;
  assert_int_equal(bl_exchange_on_data(push_side, &frame, &receive, &reason), BL_OK);
  assert_non_null(receive);
  expect_violation(push_side, &frame, "sends data without credit"); // a second chunk inside the first
  frame.attempt = 2;
  expect_violation(push_side, &frame, "sends data without credit"); // of an attempt that gave none
  expect_violation(pull, &frame, "sends a frame of the other path");
  bl_exchange_destroy(pull);
  bl_exchange_destroy(push_side);
}

static void quotas_hold_on_both_sides(void **state) {
  (void)state;
  uint8_t memory = 0;
  uint64_t peer_bytes;
  const char *reason;
  bl_exchange_t *exchange = fresh(BL_EXCHANGE_PULL, 3);
  for (uint32_t i = 0; i < 3; i++) {
    bl_frame_t frame = frame_of(BL_FRAME_OFFER, i);
    assert_int_equal(bl_exchange_on_frame(exchange, &frame, &reason), BL_OK);
  }
  bl_frame_t frame = frame_of(BL_FRAME_OFFER, 3);
  expect_violation(exchange, &frame, "announces more tensors than fit in flight");
  for (uint32_t i = 0; i < 3; i++) { // what the peer announced ahead does not take room from our own posts
    assert_int_equal(bl_exchange_post_receive(exchange, key_of(10 + i), &memory, 8, &peer_bytes), BL_OK);
  }
  assert_int_equal(bl_exchange_post_receive(exchange, key_of(0), &memory, TENSOR_BYTES, &peer_bytes), BL_EXHAUSTED);
  assert_int_equal(bl_exchange_post_receive(exchange, key_of(20), &memory, 8, &peer_bytes), BL_EXHAUSTED);
  assert_int_equal(bl_exchange_post_receive(exchange, key_of(10), &memory, 8, &peer_bytes), BL_PRECONDITION);
  // A peer that moves on takes its old announcements with it.
  frame.attempt = 2;
  assert_int_equal(bl_exchange_on_frame(exchange, &frame, &reason), BL_OK);
  bl_exchange_begin(exchange, 2);
  assert_int_equal(bl_exchange_post_receive(exchange, key_of(3), &memory, TENSOR_BYTES, &peer_bytes), BL_OK);
  assert_non_null(bl_exchange_next_transfer(exchange));
  bl_exchange_destroy(exchange);
}

// A peer that has ended its attempt waits until what it sent has been taken, also by one that is ahead of it.
// An ACK that could not leave is for a peer that is still in its attempt: such do not pile up.
static void what_the_peer_has_left_is_not_acknowledged(void **state) {
  (void)state;
  uint8_t memory = 0;
  uint64_t peer_bytes;
  const char *reason;
  bl_exchange_t *exchange = fresh(BL_EXCHANGE_PULL, 1);
  bl_frame_t frame = frame_of(BL_FRAME_OFFER, 0);
  for (frame.attempt = 1; frame.attempt <= 8; frame.attempt++) {
    assert_int_equal(bl_exchange_on_frame(exchange, &frame, &reason), BL_OK);
    assert_int_equal(bl_exchange_post_receive(exchange, key_of(0), &memory, TENSOR_BYTES, &peer_bytes), BL_OK);
    bl_tensor_t *tensor = bl_exchange_next_transfer(exchange);
    assert_true(bl_exchange_moved(exchange, tensor, TENSOR_BYTES));
    bl_exchange_consume(exchange, tensor);
    bl_exchange_begin(exchange, frame.attempt + 1);
  }
  bl_frame_t ack;
  assert_true(bl_exchange_next_frame(exchange, &ack));
  assert_int_equal(ack.attempt, 8);
  assert_false(bl_exchange_next_frame(exchange, &ack));
  bl_exchange_destroy(exchange);
}

// What is still being moved of an attempt that was given up takes no room from the next one.
static void the_next_attempt_has_all_its_room(void **state) {
  (void)state;
  uint8_t memory = 0;
  uint64_t peer_bytes;
  const char *reason;
  bl_exchange_t *exchange = fresh(BL_EXCHANGE_PULL, 1);
  const bl_frame_t frame = frame_of(BL_FRAME_OFFER, 0);
  assert_int_equal(bl_exchange_on_frame(exchange, &frame, &reason), BL_OK);
  assert_int_equal(bl_exchange_post_receive(exchange, key_of(0), &memory, TENSOR_BYTES, &peer_bytes), BL_OK);
  bl_tensor_t *moving = bl_exchange_next_transfer(exchange);
  assert_non_null(moving);
  bl_exchange_begin(exchange, 2);
  assert_true(moving->stale);
  assert_int_equal(bl_exchange_post_receive(exchange, key_of(0), &memory, TENSOR_BYTES, &peer_bytes), BL_OK);
  assert_int_equal(bl_exchange_post_receive(exchange, key_of(1), &memory, TENSOR_BYTES, &peer_bytes), BL_EXHAUSTED);
  bl_exchange_drop(exchange, moving);
  assert_int_equal(bl_exchange_post_receive(exchange, key_of(1), &memory, TENSOR_BYTES, &peer_bytes), BL_EXHAUSTED);
  bl_exchange_destroy(exchange);
}

static void what_was_taken_is_acknowledged_from_ahead(void **state) {
  (void)state;
  uint8_t memory = 0;
  uint64_t peer_bytes;
  const char *reason;
  bl_exchange_t *ahead = fresh(BL_EXCHANGE_PULL, 1), *behind = fresh(BL_EXCHANGE_PULL, 1);
  bl_frame_t frame;
  assert_int_equal(bl_exchange_post_send(behind, key_of(0), &memory, TENSOR_BYTES, 0, 0, &peer_bytes), BL_OK);
  assert_true(bl_exchange_next_frame(behind, &frame));
  assert_int_equal(bl_exchange_on_frame(ahead, &frame, &reason), BL_OK);
  assert_int_equal(bl_exchange_post_receive(ahead, key_of(0), &memory, TENSOR_BYTES, &peer_bytes), BL_OK);
  bl_tensor_t *tensor = bl_exchange_next_transfer(ahead);
  assert_true(bl_exchange_moved(ahead, tensor, TENSOR_BYTES));
  bl_exchange_consume(ahead, tensor);
  bl_exchange_begin(ahead, 2); // before the ACK has left
  bl_exchange_begin(ahead, 3);
  // It takes no room of the attempt that runs.
  assert_int_equal(bl_exchange_post_receive(ahead, key_of(0), &memory, TENSOR_BYTES, &peer_bytes), BL_OK);
  assert_true(bl_exchange_next_frame(ahead, &frame));
  assert_int_equal(frame.kind, BL_FRAME_ACK);
  assert_int_equal(frame.attempt, 1);
  assert_int_equal(bl_exchange_on_frame(behind, &frame, &reason), BL_OK);
  assert_null(bl_exchange_find(behind, BL_TENSOR_SEND, key_of(0)));
  assert_false(bl_exchange_next_frame(ahead, &frame));
  bl_exchange_destroy(ahead);
  bl_exchange_destroy(behind);
}

static void losing_keeps_what_is_complete(void **state) {
  (void)state;
  uint8_t memory = 0;
  uint64_t peer_bytes;
  const char *reason;
  bl_exchange_t *exchange = fresh(BL_EXCHANGE_PULL, 4);
  for (uint32_t i = 0; i < 2; i++) {
    bl_frame_t frame = frame_of(BL_FRAME_OFFER, i);
    assert_int_equal(bl_exchange_on_frame(exchange, &frame, &reason), BL_OK);
    assert_int_equal(bl_exchange_post_receive(exchange, key_of(i), &memory, TENSOR_BYTES, &peer_bytes), BL_OK);
  }
  bl_tensor_t *tensor = bl_exchange_next_transfer(exchange);
  assert_int_equal(tensor->key.micro_batch, 0);
  assert_true(bl_exchange_moved(exchange, tensor, TENSOR_BYTES));
  tensor = bl_exchange_next_transfer(exchange); // half of the second
  assert_false(bl_exchange_moved(exchange, tensor, 4));
  bl_exchange_lose(exchange);
  assert_null(bl_exchange_next_transfer(exchange));
  assert_null(bl_exchange_find(exchange, BL_TENSOR_RECEIVE, key_of(1)));
  tensor = bl_exchange_find(exchange, BL_TENSOR_RECEIVE, key_of(0));
  assert_non_null(tensor);
  assert_true(tensor->complete);
  bl_exchange_consume(exchange, tensor);
  bl_frame_t frame;
  assert_false(bl_exchange_next_frame(exchange, &frame));
  bl_exchange_destroy(exchange);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(random_worlds_end_whole),
      cmocka_unit_test(violations_are_refused),
      cmocka_unit_test(quotas_hold_on_both_sides),
      cmocka_unit_test(what_was_taken_is_acknowledged_from_ahead),
      cmocka_unit_test(losing_keeps_what_is_complete),
      cmocka_unit_test(the_next_attempt_has_all_its_room),
      cmocka_unit_test(what_the_peer_has_left_is_not_acknowledged),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
