// SPDX-License-Identifier: Apache-2.0
// Whatever a peer sends, what the data path decodes is in range, and the matching of tensors neither moves bytes beyond
// a tensor nor loses count of itself. The input is first one header, greeting and word about communicators, then a list
// of records: what this side does (post, begin, move, consume) and frames that a liar with the right checksums sends.
#include "target.h"

#include "datapath/exchange.h"
#include "datapath/greeting.h"
#include "datapath/nccl/rendezvous_message.h"

#include <string.h>

#define RECORD_BYTES 10
#define IN_FLIGHT    6

static void decode_raw(const uint8_t *bytes, size_t size_bytes) {
  const char *reason = NULL;
  uint8_t block[BL_FRAME_MAX_BODY_BYTES] = {0};
  memcpy(block, bytes, size_bytes < sizeof block ? size_bytes : sizeof block);
  bl_frame_t frame;
  if (bl_frame_decode(block, &frame, &reason) != BL_OK) {
    FUZZ_CHECK(reason != NULL);
  }
  bl_greeting_t greeting;
  if (bl_greeting_decode(block, &greeting, &reason) == BL_OK) {
    FUZZ_CHECK(greeting.stage >= 0 && greeting.peer >= 0 && greeting.arena_count <= BL_FRAME_MAX_ARENAS);
    FUZZ_CHECK(memchr(greeting.reason, '\0', sizeof greeting.reason) != NULL);
  }
  bl_rendezvous_message_t rendezvous;
  if (bl_rendezvous_message_decode(block, &rendezvous, &reason) == BL_OK) {
    FUZZ_CHECK(rendezvous.generation > 0 && rendezvous.status < BL_STATUS_COUNT);
    FUZZ_CHECK(memchr(rendezvous.text, '\0', sizeof rendezvous.text) != NULL);
  }
}

typedef struct {
  bl_exchange_t *exchange;
  bl_tensor_t *receive; // a chunk between its header and its end
  uint32_t chunk_bytes;
  uint64_t attempt;
} side_t;

static void move(side_t *side, bl_tensor_t *tensor, uint64_t bytes) {
  if (tensor->stale) {
    bl_exchange_drop(side->exchange, tensor);
    return;
  }
  FUZZ_CHECK(bytes <= tensor->bytes - tensor->moved_bytes);
  FUZZ_CHECK(tensor->role == BL_TENSOR_SEND ? tensor->source != NULL : tensor->destination != NULL);
  bl_exchange_moved(side->exchange, tensor, bytes);
}

static void end_chunk(side_t *side) {
  if (side->receive != NULL) {
    move(side, side->receive, side->chunk_bytes);
    side->receive = NULL;
  }
}

// False when the peer has broken the protocol: a transport would end the link.
static bool hear(side_t *side, const bl_frame_t *said) {
  uint8_t header[BL_FRAME_HEADER_BYTES];
  bl_frame_t frame;
  const char *reason = NULL;
  bl_frame_encode(said, header);
  if (bl_frame_decode(header, &frame, &reason) != BL_OK) {
    FUZZ_CHECK(reason != NULL);
    return false;
  }
  if (frame.kind < BL_FRAME_DATA || frame.kind > BL_FRAME_CREDIT) {
    return false;
  }
  end_chunk(side);
  if (frame.kind != BL_FRAME_DATA) {
    return bl_exchange_on_frame(side->exchange, &frame, &reason) == BL_OK;
  }
  side->chunk_bytes = frame.body_bytes;
  if (bl_exchange_on_data(side->exchange, &frame, &side->receive, &reason) != BL_OK) {
    side->receive = NULL;
    return false;
  }
  FUZZ_CHECK(side->receive == NULL || side->receive->attempt == side->attempt);
  return true;
}

static void act(side_t *side, unsigned what, bl_tensor_key_t key, uint64_t bytes) {
  static uint8_t memory;
  uint64_t peer_bytes;
  bl_frame_t frame;
  bl_tensor_t *tensor;
  switch (what) {
  case 0:
    bl_exchange_begin(side->exchange, ++side->attempt);
    break;
  case 1:
    (void)!bl_exchange_post_send(side->exchange, key, &memory, bytes, 0, 0, &peer_bytes);
    break;
  case 2:
    (void)!bl_exchange_post_receive(side->exchange, key, &memory, bytes, &peer_bytes);
    break;
  case 3:
    tensor = bl_exchange_find(side->exchange, BL_TENSOR_RECEIVE, key);
    if (tensor != NULL && tensor->complete) {
      FUZZ_CHECK(tensor->moved_bytes == tensor->bytes);
      bl_exchange_consume(side->exchange, tensor);
    }
    break;
  case 4:
    while (bl_exchange_next_frame(side->exchange, &frame)) {
      FUZZ_CHECK(frame.attempt <= side->attempt);
    }
    break;
  default:
    end_chunk(side);
    tensor = bl_exchange_next_transfer(side->exchange);
    if (tensor != NULL) {
      move(side, tensor, (tensor->bytes - tensor->moved_bytes + 1) / 2);
    }
    break;
  }
}

static void talk(const uint8_t *bytes, size_t size_bytes) {
  side_t side = {0};
  bl_exchange_kind_t kind = size_bytes > 0 && bytes[0] % 2 == 1 ? BL_EXCHANGE_PUSH : BL_EXCHANGE_PULL;
  FUZZ_CHECK(bl_exchange_create(IN_FLIGHT, &side.exchange) == BL_OK);
  bl_exchange_reset(side.exchange, kind, 0);
  for (size_t at = 1; at + RECORD_BYTES <= size_bytes; at += RECORD_BYTES) {
    const uint8_t *record = bytes + at;
    const bl_tensor_key_t key = {.direction = (bl_direction_t)(record[1] % 4), .micro_batch = record[2] % 8};
    const uint64_t tensor_bytes = (uint64_t)record[7] << 8 | record[8];
    if (record[0] < 128) {
      bl_tensor_key_t valid = key;
      valid.direction = (bl_direction_t)(record[1] % BL_DIRECTIONS);
      act(&side, record[0] % 6, valid, tensor_bytes + 1);
      continue;
    }
    bl_frame_t frame = {.kind = (bl_frame_kind_t)(BL_FRAME_DATA + record[0] % 4),
                        .key = key,
                        .attempt = record[3],
                        .body_bytes = (uint32_t)record[4] << 8 | record[5],
                        .offset = record[6],
                        .bytes = tensor_bytes,
                        .region = record[9]};
    if (!hear(&side, &frame)) {
      side.receive = NULL;
      bl_exchange_lose(side.exchange);
      bl_exchange_reset(side.exchange, kind, side.attempt); // the next link
    }
  }
  bl_exchange_lose(side.exchange);
  bl_exchange_destroy(side.exchange);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes) {
  decode_raw(bytes, size_bytes);
  talk(bytes, size_bytes);
  return 0;
}
