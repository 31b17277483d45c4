// SPDX-License-Identifier: Apache-2.0
#include "datapath/exchange.h"

#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

enum { ANNOUNCE, TRANSFER, QUEUES }; // frames that must go out; tensors whose bytes can move
enum { ROLES = 2 };
enum { NONE = 0 };

struct bl_exchange {
  bl_exchange_kind_t kind;
  uint64_t attempt;
  uint64_t peer_attempt; // the newest the peer has spoken of
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

bl_status_t bl_exchange_create(uint32_t max_in_flight, bl_exchange_t **exchange) {
  bl_exchange_t *x = calloc(1, sizeof *x);
  if (x == NULL || max_in_flight == 0 || max_in_flight > 1u << 24) {
    goto free_exchange;
  }
  x->max_in_flight = max_in_flight;
  x->pool_count = (2 * ROLES + 1) * max_in_flight + 1; // and receives of older attempts whose ACK is owed
  uint32_t buckets = 16;
  while (buckets < x->pool_count) {
    buckets *= 2;
  }
  x->bucket_mask = buckets - 1;
  x->pool = calloc(x->pool_count, sizeof *x->pool);
  x->buckets = calloc(buckets, sizeof *x->buckets);
  if (x->pool == NULL || x->buckets == NULL) {
    goto free_exchange;
  }
  bl_exchange_reset(x, BL_EXCHANGE_PULL, 0);
  *exchange = x;
  return BL_OK;
free_exchange:
  bl_exchange_destroy(x);
  return BL_EXHAUSTED;
}

void bl_exchange_destroy(bl_exchange_t *exchange) {
  if (exchange != NULL) {
    free(exchange->pool);
    free(exchange->buckets);
    free(exchange);
  }
}

void bl_exchange_reset(bl_exchange_t *x, bl_exchange_kind_t kind, uint64_t attempt) {
  x->kind = kind;
  x->attempt = attempt;
  x->peer_attempt = 0;
  memset(x->buckets, 0, (x->bucket_mask + 1) * sizeof *x->buckets);
  memset(x->pool, 0, x->pool_count * sizeof *x->pool);
  memset(x->local_count, 0, sizeof x->local_count);
  memset(x->remote_count, 0, sizeof x->remote_count);
  memset(x->queue_head, 0, sizeof x->queue_head);
  memset(x->queue_tail, 0, sizeof x->queue_tail);
  for (uint32_t i = 1; i + 1 < x->pool_count; i++) {
    x->pool[i].hash_next = i + 1;
  }
  x->free_head = 1;
}

static uint32_t index_of(const bl_exchange_t *x, const bl_tensor_t *tensor) {
  return (uint32_t)(tensor - x->pool);
}

static uint32_t *bucket_of(bl_exchange_t *x, bl_tensor_role_t role, bl_tensor_key_t key) {
  const uint32_t words[5] = {key.boundary, (uint32_t)key.direction, key.micro_batch, key.piece, (uint32_t)role};
  return &x->buckets[bl_hash64(words, sizeof words, 0) & x->bucket_mask];
}

static bl_tensor_t *find(bl_exchange_t *x, bl_tensor_role_t role, bl_tensor_key_t key, uint64_t attempt) {
  for (uint32_t i = *bucket_of(x, role, key); i != NONE; i = x->pool[i].hash_next) {
    bl_tensor_t *tensor = &x->pool[i];
    if (tensor->role == role && tensor->attempt == attempt && bl_tensor_key_equal(tensor->key, key)) {
      return tensor;
    }
  }
  return NULL;
}

static void enqueue(bl_exchange_t *x, int queue, bl_tensor_t *tensor) {
  uint32_t index = index_of(x, tensor);
  tensor->queue_next[queue] = NONE;
  tensor->queue_previous[queue] = x->queue_tail[queue];
  if (x->queue_tail[queue] != NONE) {
    x->pool[x->queue_tail[queue]].queue_next[queue] = index;
  } else {
    x->queue_head[queue] = index;
  }
  x->queue_tail[queue] = index;
  tensor->queued[queue] = true;
}

static void dequeue(bl_exchange_t *x, int queue, bl_tensor_t *tensor) {
  if (!tensor->queued[queue]) {
    return;
  }
  uint32_t next = tensor->queue_next[queue], previous = tensor->queue_previous[queue];
  if (previous != NONE) {
    x->pool[previous].queue_next[queue] = next;
  } else {
    x->queue_head[queue] = next;
  }
  if (next != NONE) {
    x->pool[next].queue_previous[queue] = previous;
  } else {
    x->queue_tail[queue] = previous;
  }
  tensor->queued[queue] = false;
}

// Each tensor is counted once: as local if it is posted here, else as remote.
static uint32_t *count_of(bl_exchange_t *x, const bl_tensor_t *tensor) {
  return tensor->local ? &x->local_count[tensor->role] : &x->remote_count[tensor->role];
}

static bl_tensor_t *add(bl_exchange_t *x, bl_tensor_role_t role, bl_tensor_key_t key, uint64_t attempt, bool local) {
  uint32_t count = local ? x->local_count[role] : x->remote_count[role];
  if (count == x->max_in_flight || x->free_head == NONE) {
    return NULL;
  }
  uint32_t index = x->free_head;
  bl_tensor_t *tensor = &x->pool[index];
  x->free_head = tensor->hash_next;
  uint32_t *bucket = bucket_of(x, role, key);
  *tensor = (bl_tensor_t){
      .key = key, .attempt = attempt, .role = role, .local = local, .remote = !local, .hash_next = *bucket};
  *bucket = index;
  (*count_of(x, tensor))++;
  return tensor;
}

static void take_off(bl_exchange_t *x, bl_tensor_t *tensor) {
  dequeue(x, ANNOUNCE, tensor);
  dequeue(x, TRANSFER, tensor);
  uint32_t index = index_of(x, tensor);
  uint32_t *at = bucket_of(x, tensor->role, tensor->key);
  while (*at != index) {
    at = &x->pool[*at].hash_next;
  }
  *at = tensor->hash_next;
  *count_of(x, tensor) -= !tensor->owed;
  memset(tensor, 0, sizeof *tensor);
  tensor->hash_next = x->free_head;
  x->free_head = index;
}

static bool in_use(const bl_tensor_t *tensor) {
  return tensor->local || tensor->remote;
}

void bl_exchange_begin(bl_exchange_t *x, uint64_t attempt) {
  x->attempt = attempt;
  for (uint32_t i = 1; i < x->pool_count; i++) {
    bl_tensor_t *tensor = &x->pool[i];
    if (!in_use(tensor) || tensor->attempt >= attempt) {
      continue;
    }
    if (tensor->consumed) { // the peer may wait for its ACK at the end of its attempt
      x->local_count[tensor->role] -= !tensor->owed;
      tensor->owed = true;
      continue;
    }
    if (tensor->active) {
      tensor->stale = true;
      dequeue(x, ANNOUNCE, tensor);
    } else {
      take_off(x, tensor);
    }
  }
}

void bl_exchange_lose(bl_exchange_t *x) {
  for (uint32_t i = 1; i < x->pool_count; i++) {
    bl_tensor_t *tensor = &x->pool[i];
    if (!in_use(tensor)) {
      continue;
    }
    tensor->active = false;
    if (tensor->complete && !tensor->consumed && !tensor->stale) {
      dequeue(x, ANNOUNCE, tensor);
    } else {
      take_off(x, tensor);
    }
  }
}

// Both halves are known: what happens next depends on who moves the bytes.
static void matched(bl_exchange_t *x, bl_tensor_t *tensor) {
  bool we_move = x->kind == BL_EXCHANGE_PULL ? tensor->role == BL_TENSOR_RECEIVE : tensor->role == BL_TENSOR_SEND;
  if (we_move) {
    enqueue(x, TRANSFER, tensor);
  }
}

// Finds or makes the entry of a post. On BL_OK *tensor is local.
static bl_status_t post(bl_exchange_t *x, bl_tensor_role_t role, bl_tensor_key_t key, uint64_t bytes,
                        uint64_t *peer_bytes, bl_tensor_t **posted) {
  if (x->attempt == 0) {
    return BL_PRECONDITION;
  }
  bl_tensor_t *tensor = find(x, role, key, x->attempt);
  if (tensor == NULL) {
    tensor = add(x, role, key, x->attempt, true);
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
    if (x->local_count[role] == x->max_in_flight) {
      return BL_EXHAUSTED;
    }
    x->remote_count[role]--;
    tensor->local = true;
    x->local_count[role]++;
  }
  tensor->bytes = bytes;
  *posted = tensor;
  return BL_OK;
}

bl_status_t bl_exchange_post_send(bl_exchange_t *x, bl_tensor_key_t key, const uint8_t *source, uint64_t bytes,
                                  uint32_t arena, uint64_t offset, uint64_t *peer_bytes) {
  bl_tensor_t *tensor;
  bl_status_t status = post(x, BL_TENSOR_SEND, key, bytes, peer_bytes, &tensor);
  if (status != BL_OK) {
    return status;
  }
  tensor->source = source;
  tensor->arena = arena;
  tensor->offset = offset;
  if (x->kind == BL_EXCHANGE_PULL) {
    enqueue(x, ANNOUNCE, tensor);
  } else if (tensor->remote) {
    matched(x, tensor);
  }
  return BL_OK;
}

bl_status_t bl_exchange_post_receive(bl_exchange_t *x, bl_tensor_key_t key, uint8_t *destination, uint64_t bytes,
                                     uint64_t *peer_bytes) {
  bl_tensor_t *tensor;
  bl_status_t status = post(x, BL_TENSOR_RECEIVE, key, bytes, peer_bytes, &tensor);
  if (status != BL_OK) {
    return status;
  }
  tensor->destination = destination;
  if (x->kind == BL_EXCHANGE_PUSH) {
    enqueue(x, ANNOUNCE, tensor);
  } else if (tensor->remote) {
    matched(x, tensor);
  }
  return BL_OK;
}

bl_tensor_t *bl_exchange_find(bl_exchange_t *x, bl_tensor_role_t role, bl_tensor_key_t key) {
  bl_tensor_t *tensor = find(x, role, key, x->attempt);
  return tensor != NULL && tensor->local && !tensor->consumed ? tensor : NULL;
}

void bl_exchange_consume(bl_exchange_t *x, bl_tensor_t *receive) {
  receive->consumed = true;
  if (!receive->queued[ANNOUNCE]) {
    take_off(x, receive);
  }
}

// The peer has moved on: what only it had announced for older attempts will never come.
static void peer_moved_on(bl_exchange_t *x, uint64_t attempt) {
  x->peer_attempt = attempt;
  for (uint32_t i = 1; i < x->pool_count; i++) {
    bl_tensor_t *tensor = &x->pool[i];
    if (tensor->remote && !tensor->local && tensor->attempt < attempt) {
      take_off(x, tensor);
    }
  }
}

static bl_status_t on_ack(bl_exchange_t *x, const bl_frame_t *frame, const char **reason) {
  bl_tensor_t *send = find(x, BL_TENSOR_SEND, frame->key, frame->attempt);
  if (send == NULL || send->queued[ANNOUNCE]) {
    *reason = "acknowledges a tensor that was not offered";
    return BL_INVALID;
  }
  take_off(x, send);
  return BL_OK;
}

static bl_status_t on_announcement(bl_exchange_t *x, const bl_frame_t *frame, const char **reason) {
  bl_tensor_role_t role = frame->kind == BL_FRAME_OFFER ? BL_TENSOR_RECEIVE : BL_TENSOR_SEND;
  bl_tensor_t *tensor = find(x, role, frame->key, frame->attempt);
  if (tensor == NULL) {
    tensor = add(x, role, frame->key, frame->attempt, false);
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
    tensor->arena = frame->arena;
    tensor->offset = frame->offset;
  }
  if (tensor->local) {
    matched(x, tensor);
  }
  return BL_OK;
}

bl_status_t bl_exchange_on_frame(bl_exchange_t *x, const bl_frame_t *frame, const char **reason) {
  bool pull = x->kind == BL_EXCHANGE_PULL;
  if (frame->kind != BL_FRAME_OFFER && frame->kind != BL_FRAME_ACK && frame->kind != BL_FRAME_CREDIT) {
    *reason = "sends a frame that is not expected now";
    return BL_INVALID;
  }
  if (pull != (frame->kind != BL_FRAME_CREDIT)) {
    *reason = "sends a frame of the other path";
    return BL_INVALID;
  }
  if (frame->attempt > x->peer_attempt) {
    peer_moved_on(x, frame->attempt);
  }
  if (frame->attempt < x->attempt || frame->attempt < x->peer_attempt) {
    x->stale_count++;
    return BL_OK;
  }
  return frame->kind == BL_FRAME_ACK ? on_ack(x, frame, reason) : on_announcement(x, frame, reason);
}

bl_status_t bl_exchange_on_data(bl_exchange_t *x, const bl_frame_t *frame, bl_tensor_t **receive, const char **reason) {
  if (x->kind != BL_EXCHANGE_PUSH) {
    *reason = "sends a frame of the other path";
    return BL_INVALID;
  }
  if (frame->attempt < x->attempt) {
    x->stale_count++;
    *receive = NULL;
    return BL_OK;
  }
  bl_tensor_t *tensor = find(x, BL_TENSOR_RECEIVE, frame->key, frame->attempt);
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

bool bl_exchange_next_frame(bl_exchange_t *x, bl_frame_t *frame) {
  if (x->queue_head[ANNOUNCE] == NONE) {
    return false;
  }
  bl_tensor_t *tensor = &x->pool[x->queue_head[ANNOUNCE]];
  dequeue(x, ANNOUNCE, tensor);
  *frame = (bl_frame_t){.attempt = tensor->attempt, .key = tensor->key, .bytes = tensor->bytes};
  if (tensor->role == BL_TENSOR_SEND) {
    frame->kind = BL_FRAME_OFFER;
    frame->arena = tensor->arena;
    frame->offset = tensor->offset;
  } else if (x->kind == BL_EXCHANGE_PUSH) {
    frame->kind = BL_FRAME_CREDIT;
  } else {
    frame->kind = BL_FRAME_ACK;
    if (tensor->consumed) {
      take_off(x, tensor);
    }
  }
  return true;
}

bl_tensor_t *bl_exchange_next_transfer(bl_exchange_t *x) {
  if (x->queue_head[TRANSFER] == NONE) {
    return NULL;
  }
  bl_tensor_t *tensor = &x->pool[x->queue_head[TRANSFER]];
  tensor->active = true;
  return tensor;
}

void bl_exchange_launch(bl_exchange_t *x, bl_tensor_t *tensor) {
  dequeue(x, TRANSFER, tensor);
}

bool bl_exchange_moved(bl_exchange_t *x, bl_tensor_t *tensor, uint64_t bytes) {
  tensor->moved_bytes += bytes;
  bool whole = tensor->moved_bytes == tensor->bytes;
  if (tensor->role == BL_TENSOR_SEND) {
    if (whole) {
      take_off(x, tensor);
    }
    return whole;
  }
  if (whole || x->kind == BL_EXCHANGE_PUSH) {
    tensor->active = false;
  }
  if (whole) {
    dequeue(x, TRANSFER, tensor);
    tensor->complete = true;
    if (x->kind == BL_EXCHANGE_PULL) {
      enqueue(x, ANNOUNCE, tensor);
    }
  }
  return whole;
}

void bl_exchange_drop(bl_exchange_t *x, bl_tensor_t *tensor) {
  take_off(x, tensor);
}

uint64_t bl_exchange_stale_count(const bl_exchange_t *x) {
  return x->stale_count;
}
