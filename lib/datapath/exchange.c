// SPDX-License-Identifier: Apache-2.0
#include "datapath/exchange.h"

#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

#ifndef RULE
// Rules of exchange.h. A test disables them.
#define RULE(number) true
#endif

enum { ANNOUNCE, TRANSFER, QUEUES }; // frames to send; tensors whose bytes can move
enum { ROLES = 2 };
enum { NONE = 0 };

struct bl_exchange {
  bl_exchange_kind_t kind;
  uint64_t attempt;
  uint64_t peer_attempt; // the newest attempt in the peer's messages
  uint64_t stale_count;
  uint32_t max_in_flight;
  uint32_t local_count[ROLES];  // posted here
  uint32_t remote_count[ROLES]; // announced by the peer only
  uint32_t pool_count;
  uint32_t free_head;
  uint32_t bucket_mask;
  uint32_t *buckets;
  uint32_t queue_head[QUEUES], queue_tail[QUEUES];
  bl_tensor_t *pool; // index 0 is unused
};

bl_status_t bl_exchange_create(uint32_t max_in_flight, bl_exchange_t **out) {
  bl_exchange_t *exchange = calloc(1, sizeof *exchange);
  if (exchange == NULL || max_in_flight == 0 || max_in_flight > 1u << 24) {
    goto free_exchange;
  }
  exchange->max_in_flight = max_in_flight;
  // Includes tensors of older attempts: stale ones, and receives whose ACK is owed.
  exchange->pool_count = (3 * ROLES + 1) * max_in_flight + 1;
  uint32_t buckets = 16;
  while (buckets < exchange->pool_count) {
    buckets *= 2;
  }
  exchange->bucket_mask = buckets - 1;
  exchange->pool = calloc(exchange->pool_count, sizeof *exchange->pool);
  exchange->buckets = calloc(buckets, sizeof *exchange->buckets);
  if (exchange->pool == NULL || exchange->buckets == NULL) {
    goto free_exchange;
  }
  bl_exchange_reset(exchange, BL_EXCHANGE_PULL, 0);
  *out = exchange;
  return BL_OK;
free_exchange:
  bl_exchange_destroy(exchange);
  return BL_EXHAUSTED;
}

void bl_exchange_destroy(bl_exchange_t *exchange) {
  if (exchange != NULL) {
    free(exchange->pool);
    free(exchange->buckets);
    free(exchange);
  }
}

void bl_exchange_reset(bl_exchange_t *exchange, bl_exchange_kind_t kind, uint64_t attempt) {
  exchange->kind = kind;
  exchange->attempt = attempt;
  exchange->peer_attempt = 0;
  memset(exchange->buckets, 0, (exchange->bucket_mask + 1) * sizeof *exchange->buckets);
  memset(exchange->pool, 0, exchange->pool_count * sizeof *exchange->pool);
  memset(exchange->local_count, 0, sizeof exchange->local_count);
  memset(exchange->remote_count, 0, sizeof exchange->remote_count);
  memset(exchange->queue_head, 0, sizeof exchange->queue_head);
  memset(exchange->queue_tail, 0, sizeof exchange->queue_tail);
  for (uint32_t i = 1; i + 1 < exchange->pool_count; i++) {
    exchange->pool[i].hash_next = i + 1;
  }
  exchange->free_head = 1;
}

static uint32_t index_of(const bl_exchange_t *exchange, const bl_tensor_t *tensor) {
  return (uint32_t)(tensor - exchange->pool);
}

static uint32_t *bucket_of(bl_exchange_t *exchange, bl_tensor_role_t role, bl_tensor_key_t key) {
  const uint32_t words[5] = {key.boundary, (uint32_t)key.direction, key.micro_batch, key.piece, (uint32_t)role};
  return &exchange->buckets[bl_hash64(words, sizeof words, 0) & exchange->bucket_mask];
}

static bl_tensor_t *find(bl_exchange_t *exchange, bl_tensor_role_t role, bl_tensor_key_t key, uint64_t attempt) {
  for (uint32_t i = *bucket_of(exchange, role, key); i != NONE; i = exchange->pool[i].hash_next) {
    bl_tensor_t *tensor = &exchange->pool[i];
    if (tensor->role == role && tensor->attempt == attempt && bl_tensor_key_equal(tensor->key, key)) {
      return tensor;
    }
  }
  return NULL;
}

static void enqueue(bl_exchange_t *exchange, int queue, bl_tensor_t *tensor) {
  uint32_t index = index_of(exchange, tensor);
  tensor->queue_next[queue] = NONE;
  tensor->queue_previous[queue] = exchange->queue_tail[queue];
  if (exchange->queue_tail[queue] != NONE) {
    exchange->pool[exchange->queue_tail[queue]].queue_next[queue] = index;
  } else {
    exchange->queue_head[queue] = index;
  }
  exchange->queue_tail[queue] = index;
  tensor->queued[queue] = true;
}

static void dequeue(bl_exchange_t *exchange, int queue, bl_tensor_t *tensor) {
  if (!tensor->queued[queue]) {
    return;
  }
  uint32_t next = tensor->queue_next[queue], previous = tensor->queue_previous[queue];
  if (previous != NONE) {
    exchange->pool[previous].queue_next[queue] = next;
  } else {
    exchange->queue_head[queue] = next;
  }
  if (next != NONE) {
    exchange->pool[next].queue_previous[queue] = previous;
  } else {
    exchange->queue_tail[queue] = previous;
  }
  tensor->queued[queue] = false;
}

// Each tensor is counted once: as local if it is posted here, else as remote.
static uint32_t *count_of(bl_exchange_t *exchange, const bl_tensor_t *tensor) {
  return tensor->local ? &exchange->local_count[tensor->role] : &exchange->remote_count[tensor->role];
}

// Tensors left over from an older attempt do not count.
static void uncount(bl_exchange_t *exchange, const bl_tensor_t *tensor) {
  *count_of(exchange, tensor) -= !tensor->owed && !tensor->stale;
}

static bl_tensor_t *add(bl_exchange_t *exchange, bl_tensor_role_t role, bl_tensor_key_t key, uint64_t attempt,
                        bool local) {
  uint32_t count = local ? exchange->local_count[role] : exchange->remote_count[role];
  if (count == exchange->max_in_flight || exchange->free_head == NONE) {
    return NULL;
  }
  uint32_t index = exchange->free_head;
  bl_tensor_t *tensor = &exchange->pool[index];
  exchange->free_head = tensor->hash_next;
  uint32_t *bucket = bucket_of(exchange, role, key);
  *tensor = (bl_tensor_t){
      .key = key, .attempt = attempt, .role = role, .local = local, .remote = !local, .hash_next = *bucket};
  *bucket = index;
  (*count_of(exchange, tensor))++;
  return tensor;
}

static void take_off(bl_exchange_t *exchange, bl_tensor_t *tensor) {
  dequeue(exchange, ANNOUNCE, tensor);
  dequeue(exchange, TRANSFER, tensor);
  uint32_t index = index_of(exchange, tensor);
  uint32_t *at = bucket_of(exchange, tensor->role, tensor->key);
  while (*at != index) {
    at = &exchange->pool[*at].hash_next;
  }
  *at = tensor->hash_next;
  uncount(exchange, tensor);
  memset(tensor, 0, sizeof *tensor);
  tensor->hash_next = exchange->free_head;
  exchange->free_head = index;
}

static bool in_use(const bl_tensor_t *tensor) {
  return tensor->local || tensor->remote;
}

void bl_exchange_begin(bl_exchange_t *exchange, uint64_t attempt) {
  exchange->attempt = attempt;
  for (uint32_t i = 1; i < exchange->pool_count; i++) {
    bl_tensor_t *tensor = &exchange->pool[i];
    if (!in_use(tensor) || (tensor->attempt >= attempt && RULE(1))) {
      continue;
    }
    const bool left = tensor->attempt < exchange->peer_attempt && RULE(18);
    // The peer may wait for the ACK at the end of its attempt.
    if (tensor->consumed && !left && RULE(2)) {
      uncount(exchange, tensor);
      tensor->owed = RULE(3);
      continue;
    }
    if (tensor->active && RULE(4)) {
      uncount(exchange, tensor);
      tensor->stale = true;
      dequeue(exchange, ANNOUNCE, tensor);
    } else if (RULE(5)) {
      take_off(exchange, tensor);
    }
  }
}

void bl_exchange_lose(bl_exchange_t *exchange) {
  for (uint32_t i = 1; i < exchange->pool_count; i++) {
    bl_tensor_t *tensor = &exchange->pool[i];
    if (!in_use(tensor)) {
      continue;
    }
    tensor->active = false;
    if (tensor->complete && !tensor->consumed && !tensor->stale && RULE(6)) {
      dequeue(exchange, ANNOUNCE, tensor);
    } else {
      take_off(exchange, tensor);
    }
  }
}

// Both halves are known. If this side moves the bytes, the tensor can move.
static void matched(bl_exchange_t *exchange, bl_tensor_t *tensor) {
  bool we_move =
      exchange->kind == BL_EXCHANGE_PULL ? tensor->role == BL_TENSOR_RECEIVE : tensor->role == BL_TENSOR_SEND;
  if (we_move) {
    enqueue(exchange, TRANSFER, tensor);
  }
}

// Finds or creates the entry of a post. On BL_OK *posted is local.
static bl_status_t post(bl_exchange_t *exchange, bl_tensor_role_t role, bl_tensor_key_t key, uint64_t bytes,
                        uint64_t *peer_bytes, bl_tensor_t **posted) {
  if (exchange->attempt == 0) {
    return BL_PRECONDITION;
  }
  bl_tensor_t *tensor = find(exchange, role, key, exchange->attempt);
  if (tensor == NULL) {
    tensor = add(exchange, role, key, exchange->attempt, true);
    if (tensor == NULL) {
      return BL_EXHAUSTED;
    }
  } else {
    if (tensor->local) {
      return BL_PRECONDITION;
    }
    if (tensor->bytes != bytes) {
      *peer_bytes = tensor->bytes;
      return BL_INVALID;
    }
    if (exchange->local_count[role] == exchange->max_in_flight) {
      return BL_EXHAUSTED;
    }
    exchange->remote_count[role] -= RULE(7);
    tensor->local = true;
    exchange->local_count[role]++;
  }
  tensor->bytes = bytes;
  *posted = tensor;
  return BL_OK;
}

bl_status_t bl_exchange_post_send(bl_exchange_t *exchange, bl_tensor_key_t key, const uint8_t *source, uint64_t bytes,
                                  uint32_t arena, uint64_t offset, uint64_t *peer_bytes) {
  bl_tensor_t *tensor;
  bl_status_t status = post(exchange, BL_TENSOR_SEND, key, bytes, peer_bytes, &tensor);
  if (status != BL_OK) {
    return status;
  }
  tensor->source = source;
  tensor->arena = arena;
  tensor->offset = offset;
  if (exchange->kind == BL_EXCHANGE_PULL) {
    enqueue(exchange, ANNOUNCE, tensor);
  } else if (tensor->remote || !RULE(8)) {
    matched(exchange, tensor);
  }
  return BL_OK;
}

bl_status_t bl_exchange_post_receive(bl_exchange_t *exchange, bl_tensor_key_t key, uint8_t *destination, uint64_t bytes,
                                     uint64_t *peer_bytes) {
  bl_tensor_t *tensor;
  bl_status_t status = post(exchange, BL_TENSOR_RECEIVE, key, bytes, peer_bytes, &tensor);
  if (status != BL_OK) {
    return status;
  }
  tensor->destination = destination;
  if (exchange->kind == BL_EXCHANGE_PUSH) {
    enqueue(exchange, ANNOUNCE, tensor);
  } else if (tensor->remote) {
    matched(exchange, tensor);
  }
  return BL_OK;
}

bl_tensor_t *bl_exchange_find(bl_exchange_t *exchange, bl_tensor_role_t role, bl_tensor_key_t key) {
  bl_tensor_t *tensor = find(exchange, role, key, exchange->attempt);
  return tensor != NULL && tensor->local && !tensor->consumed ? tensor : NULL;
}

void bl_exchange_consume(bl_exchange_t *exchange, bl_tensor_t *receive) {
  receive->consumed = true;
  if (!receive->queued[ANNOUNCE] || !RULE(10)) {
    take_off(exchange, receive);
  }
}

// The peer has begun a newer attempt. Tensors of older attempts that only the peer had announced will never arrive, and
// the peer needs no ACKs of them.
static void peer_moved_on(bl_exchange_t *exchange, uint64_t attempt) {
  exchange->peer_attempt = attempt;
  for (uint32_t i = 1; i < exchange->pool_count; i++) {
    bl_tensor_t *tensor = &exchange->pool[i];
    const bool announced = tensor->remote && !tensor->local && RULE(11), owed = tensor->owed && RULE(18);
    if ((announced || owed) && tensor->attempt < attempt) {
      take_off(exchange, tensor);
    }
  }
}

static bl_status_t on_ack(bl_exchange_t *exchange, const bl_frame_t *frame, const char **reason) {
  bl_tensor_t *send = find(exchange, BL_TENSOR_SEND, frame->key, frame->attempt);
  if (send == NULL || send->queued[ANNOUNCE]) {
    *reason = "acknowledges a tensor that was not offered";
    return BL_INVALID;
  }
  take_off(exchange, send);
  return BL_OK;
}

static bl_status_t on_announcement(bl_exchange_t *exchange, const bl_frame_t *frame, const char **reason) {
  bl_tensor_role_t role = frame->kind == BL_FRAME_OFFER ? BL_TENSOR_RECEIVE : BL_TENSOR_SEND;
  bl_tensor_t *tensor = find(exchange, role, frame->key, frame->attempt);
  if (tensor == NULL) {
    tensor = add(exchange, role, frame->key, frame->attempt, false);
    if (tensor == NULL) {
      *reason = "announces more tensors than fit in flight";
      return BL_INVALID;
    }
    tensor->bytes = frame->bytes;
  } else if (tensor->remote) {
    *reason = "announces a tensor twice";
    return BL_INVALID;
  } else if (tensor->bytes != frame->bytes) {
    *reason = "announces a tensor with another size than was posted here";
    return BL_INVALID;
  }
  tensor->remote = true;
  if (role == BL_TENSOR_RECEIVE) {
    tensor->arena = frame->region;
    tensor->offset = frame->offset;
  }
  if (tensor->local || !RULE(9)) {
    matched(exchange, tensor);
  }
  return BL_OK;
}

bl_status_t bl_exchange_on_frame(bl_exchange_t *exchange, const bl_frame_t *frame, const char **reason) {
  bool pull = exchange->kind == BL_EXCHANGE_PULL;
  if (frame->kind != BL_FRAME_OFFER && frame->kind != BL_FRAME_ACK && frame->kind != BL_FRAME_CREDIT) {
    *reason = "sends a frame that is not expected now";
    return BL_INVALID;
  }
  if (pull != (frame->kind != BL_FRAME_CREDIT)) {
    *reason = "sends a frame of the other path";
    return BL_INVALID;
  }
  if (frame->attempt > exchange->peer_attempt) {
    peer_moved_on(exchange, frame->attempt);
  }
  if ((frame->attempt < exchange->attempt && RULE(12)) || frame->attempt < exchange->peer_attempt) {
    exchange->stale_count++;
    return BL_OK;
  }
  return frame->kind == BL_FRAME_ACK ? on_ack(exchange, frame, reason) : on_announcement(exchange, frame, reason);
}

bl_status_t bl_exchange_on_data(bl_exchange_t *exchange, const bl_frame_t *frame, bl_tensor_t **receive,
                                const char **reason) {
  if (exchange->kind != BL_EXCHANGE_PUSH) {
    *reason = "sends a frame of the other path";
    return BL_INVALID;
  }
  if (frame->attempt < exchange->attempt && RULE(13)) {
    exchange->stale_count++;
    *receive = NULL;
    return BL_OK;
  }
  bl_tensor_t *tensor = find(exchange, BL_TENSOR_RECEIVE, frame->key, frame->attempt);
  if (tensor == NULL || tensor->complete || tensor->active || tensor->queued[ANNOUNCE]) {
    *reason = "sends data without credit";
    return BL_INVALID;
  }
  if (tensor->bytes != frame->bytes || tensor->moved_bytes != frame->offset ||
      frame->body_bytes > tensor->bytes - tensor->moved_bytes) {
    *reason = "sends a chunk out of order or of another size";
    return BL_INVALID;
  }
  tensor->active = true;
  *receive = tensor;
  return BL_OK;
}

bool bl_exchange_next_frame(bl_exchange_t *exchange, bl_frame_t *frame) {
  if (exchange->queue_head[ANNOUNCE] == NONE) {
    return false;
  }
  bl_tensor_t *tensor = &exchange->pool[exchange->queue_head[ANNOUNCE]];
  dequeue(exchange, ANNOUNCE, tensor);
  *frame = (bl_frame_t){.attempt = tensor->attempt, .key = tensor->key, .bytes = tensor->bytes};
  if (tensor->role == BL_TENSOR_SEND) {
    frame->kind = BL_FRAME_OFFER;
    frame->region = tensor->arena;
    frame->offset = tensor->offset;
  } else if (exchange->kind == BL_EXCHANGE_PUSH) {
    frame->kind = BL_FRAME_CREDIT;
  } else {
    frame->kind = BL_FRAME_ACK;
    if (tensor->consumed && RULE(14)) {
      take_off(exchange, tensor);
    }
  }
  return true;
}

bl_tensor_t *bl_exchange_next_transfer(bl_exchange_t *exchange) {
  if (exchange->queue_head[TRANSFER] == NONE) {
    return NULL;
  }
  bl_tensor_t *tensor = &exchange->pool[exchange->queue_head[TRANSFER]];
  tensor->active = true;
  return tensor;
}

void bl_exchange_launch(bl_exchange_t *exchange, bl_tensor_t *tensor) {
  if (RULE(17)) {
    dequeue(exchange, TRANSFER, tensor);
  }
}

bool bl_exchange_moved(bl_exchange_t *exchange, bl_tensor_t *tensor, uint64_t bytes) {
  tensor->moved_bytes += bytes;
  bool whole = tensor->moved_bytes == tensor->bytes || !RULE(16);
  if (tensor->role == BL_TENSOR_SEND) {
    if (whole) {
      take_off(exchange, tensor);
    }
    return whole;
  }
  if (whole || (exchange->kind == BL_EXCHANGE_PUSH && RULE(15))) {
    tensor->active = false;
  }
  if (whole) {
    dequeue(exchange, TRANSFER, tensor);
    tensor->complete = true;
    if (exchange->kind == BL_EXCHANGE_PULL) {
      enqueue(exchange, ANNOUNCE, tensor);
    }
  }
  return whole;
}

void bl_exchange_drop(bl_exchange_t *exchange, bl_tensor_t *tensor) {
  take_off(exchange, tensor);
}

uint64_t bl_exchange_stale_count(const bl_exchange_t *exchange) {
  return exchange->stale_count;
}
