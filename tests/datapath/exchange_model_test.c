// SPDX-License-Identifier: Apache-2.0
// Verifies the exchange of tensors (datapath/exchange.h) as two of them use it: the ends of one link, with a queue of frames
// in each direction, on all paths. Both ends post, move bytes in chunks, consume, give attempts up and begin the next
// whenever they like; the link is lost and made again, communicators break. Every state of small worlds is seen, and larger
// ones are walked through at random. In each of them:
//   - nobody touches memory that is its owner's again: a source is read until it is sent, a destination written until it is
//     whole, and neither once the begin of the next attempt has returned;
//   - what is consumed has the bytes of this attempt's send, if the sender is in it still;
//   - a receive that is whole stays until it is consumed, once; a tensor that is being moved is not freed;
//   - frames are never refused, posts never for want of room, and the counters say what is there;
//   - when nothing can be done any more, nothing of an older attempt is left, a send whose bytes were consumed is over, and
//     an attempt of both that lost no link has every tensor.
// And that each rule of exchange.h is needed: with any one of them taken out a violation is found.
// BALLAST_SOAK=1 sees larger worlds and walks longer.
#include "base/hash.h"
#include "base/random.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int broken_rule;
#define RULE(number) (broken_rule != (number))
#include "datapath/exchange.c"

#include "seed.h"

#include <setjmp.h>

#include <cmocka.h>

#define RULES         18
#define TENSORS_MAX   6 // tensor k is sent by end k % 2, in every attempt
#define CHUNKS_MAX    3
#define POOL_MAX      32
#define BUCKETS_MAX   32
#define ATTEMPTS_MAX  6
#define FRAMES_MAX    16 // of a direction; whoever has more to say waits
#define TRANSFERS_MAX 8  // of a communicator
#define DEPTH_MAX     400
#define CLEAR         0 // content of memory that its owner has written over

typedef enum { PULL, PUSH, DIRECT, ENGINE, PATHS } path_t; // shm, tcp, nccl, cuda-ipc

typedef struct options {
  path_t path;
  unsigned tensors, chunks, attempts, losses;
} options_t;

// ---- the world -----------------------------------------------------------------------------------------------------

typedef struct packet {
  uint8_t kind, attempt, tensor, at, content, generation;
} packet_t;

// A tensor that is being moved: what is remembered of it until it is let go.
typedef struct held {
  uint8_t index; // in the pool; 0: none
  uint8_t attempt, tensor;
} held_t;

typedef enum { ABSENT, QUEUED, OVER } half_t;

// Of a communicator: it moves when both halves are queued. Of a copy engine: the receiver's half, the other one is OVER.
typedef struct transfer {
  held_t held[2]; // sender's, receiver's
  uint8_t half[2];
  uint8_t content; // CLEAR: not yet moved
  bool failed;
} transfer_t;

typedef struct end {
  bl_exchange_t exchange;
  bl_tensor_t pool[POOL_MAX];
  uint32_t buckets[BUCKETS_MAX];
  packet_t queue[FRAMES_MAX]; // on their way here
  uint8_t queue_count;
  uint8_t attempt;
  bool linked;
  bool beginning;                        // its begin waits for what communicators still move
  bool spoiled;                          // the link or communicators failed in this attempt
  uint8_t posted, consumed, whole, over; // bits of tensors, of this attempt
  uint8_t taken[ATTEMPTS_MAX + 1];       // by attempt: what was consumed
  uint8_t lent;                          // destinations, until they are their owner's again
  uint8_t source[TENSORS_MAX];           // content
  uint8_t destination[TENSORS_MAX][CHUNKS_MAX];
  held_t moving, receiving;
  uint8_t content; // of the chunk that is received
} end_t;

typedef struct world {
  options_t options;
  end_t ends[2];
  transfer_t transfers[2][TRANSFERS_MAX]; // by sender
  uint8_t transfer_count[2];
  uint8_t generation; // of the communicators
  uint8_t losses;     // so far
  const char *violation;
} world_t;

static bool violates(world_t *w, const char *text) {
  w->violation = w->violation == NULL ? text : w->violation;
  return true;
}

static unsigned sender_of(unsigned tensor) {
  return tensor % 2;
}

static uint8_t bit(unsigned tensor) {
  return (uint8_t)(1u << tensor);
}

static uint8_t content_of(unsigned attempt, unsigned tensor) {
  return (uint8_t)(attempt * 16 + tensor + 1);
}

static bl_tensor_key_t key_of(unsigned tensor) {
  return (bl_tensor_key_t){.boundary = 1, .direction = BL_FORWARD, .micro_batch = tensor};
}

// Where a tensor lies, as the number of its memory.
static uint8_t *memory_of(unsigned tensor) {
  return (uint8_t *)(uintptr_t)(tensor + 1);
}

static unsigned tensor_at(const uint8_t *memory) {
  return (unsigned)(uintptr_t)memory - 1;
}

static bl_exchange_kind_t kind_of(const world_t *w) {
  return w->options.path == PULL || w->options.path == ENGINE ? BL_EXCHANGE_PULL : BL_EXCHANGE_PUSH;
}

// A copy points into itself.
static void settle(world_t *w) {
  for (int e = 0; e < 2; e++) {
    w->ends[e].exchange.pool = w->ends[e].pool;
    w->ends[e].exchange.buckets = w->ends[e].buckets;
  }
}

static void copy(world_t *to, const world_t *from) {
  *to = *from;
  settle(to);
}

static void begin_world(world_t *w, const options_t *options) {
  memset(w, 0, sizeof *w);
  w->options = *options;
  w->generation = 1;
  for (int e = 0; e < 2; e++) {
    bl_exchange_t *made;
    assert_int_equal(bl_exchange_create((options->tensors + 1) / 2, &made), BL_OK);
    assert_true(made->pool_count <= POOL_MAX && made->bucket_mask < BUCKETS_MAX);
    w->ends[e].exchange = *made;
    bl_exchange_destroy(made);
    settle(w);
    bl_exchange_reset(&w->ends[e].exchange, kind_of(w), 0);
    w->ends[e].linked = true;
  }
}

static bl_tensor_t *find_of(end_t *end, unsigned tensor, unsigned e) {
  return bl_exchange_find(&end->exchange, sender_of(tensor) == e ? BL_TENSOR_SEND : BL_TENSOR_RECEIVE, key_of(tensor));
}

static held_t hold(const end_t *end, const bl_tensor_t *tensor) {
  return (held_t){.index = (uint8_t)(tensor - end->pool),
                  .attempt = (uint8_t)tensor->attempt,
                  .tensor = (uint8_t)tensor->key.micro_batch};
}

// NULL: it was freed behind the mover's back.
static bl_tensor_t *held_tensor(world_t *w, end_t *end, held_t held) {
  bl_tensor_t *tensor = &end->pool[held.index];
  const bool same =
      in_use(tensor) && tensor->active && tensor->attempt == held.attempt && tensor->key.micro_batch == held.tensor;
  return same || !violates(w, "a tensor that is being moved is freed") ? tensor : NULL;
}

static void write_chunk(world_t *w, end_t *end, const bl_tensor_t *tensor, uint64_t chunk, uint8_t content) {
  const unsigned number = tensor_at(tensor->destination);
  if (tensor->destination == NULL || (end->lent & bit(number)) == 0 || chunk >= w->options.chunks) {
    (void)violates(w, "memory is written that is its owner's");
  } else {
    end->destination[number][chunk] = content;
  }
}

static uint8_t read_source(world_t *w, const end_t *end, const uint8_t *source) {
  if (source == NULL) {
    (void)violates(w, "memory is read that nobody has posted");
    return CLEAR;
  }
  return end->source[tensor_at(source)];
}

// ---- what an end does ----------------------------------------------------------------------------------------------

// Begin has returned: all memory is its owner's.
static void take_back(end_t *end) {
  end->beginning = false;
  end->lent = 0;
  memset(end->source, CLEAR, sizeof end->source);
}

static bool begin_attempt(world_t *w, end_t *end) {
  if (end->beginning || end->attempt == w->options.attempts) {
    return false;
  }
  bl_exchange_begin(&end->exchange, ++end->attempt);
  end->posted = end->consumed = end->whole = end->over = 0;
  end->spoiled = false;
  end->beginning = w->options.path == DIRECT || w->options.path == ENGINE;
  if (!end->beginning) { // waits for the copy under way; what it wrote is the owner's to overwrite
    take_back(end);
  }
  return true;
}

static bool end_begin(const world_t *w, unsigned e) {
  bool moves = false;
  for (unsigned from = 0; from < 2; from++) {
    for (unsigned i = 0; i < w->transfer_count[from]; i++) {
      moves = moves || w->transfers[from][i].half[from != e] == QUEUED;
    }
  }
  return w->ends[e].beginning && !moves;
}

static bool post_tensor(world_t *w, unsigned e, unsigned tensor) {
  end_t *end = &w->ends[e];
  if (!end->linked || end->attempt == 0 || end->beginning || (end->posted & bit(tensor)) != 0) {
    return false;
  }
  uint64_t peer_bytes;
  bl_status_t status;
  end->posted |= bit(tensor);
  if (sender_of(tensor) == e) {
    end->source[tensor] = content_of(end->attempt, tensor);
    status = bl_exchange_post_send(&end->exchange, key_of(tensor), memory_of(tensor), w->options.chunks, 0, tensor,
                                   &peer_bytes);
  } else {
    memset(end->destination[tensor], CLEAR, CHUNKS_MAX);
    end->lent |= bit(tensor);
    status =
        bl_exchange_post_receive(&end->exchange, key_of(tensor), memory_of(tensor), w->options.chunks, &peer_bytes);
  }
  return status == BL_OK || violates(w, "a post is refused");
}

static bool consume(world_t *w, unsigned e, unsigned tensor) {
  end_t *end = &w->ends[e];
  if ((end->posted & bit(tensor)) == 0 || sender_of(tensor) == e || end->beginning) {
    return false;
  }
  bl_tensor_t *receive = find_of(end, tensor, e);
  if (receive == NULL || !receive->complete) {
    return false;
  }
  for (unsigned i = 0; i < w->options.chunks; i++) {
    if (w->ends[1 - e].attempt == end->attempt && end->destination[tensor][i] != content_of(end->attempt, tensor)) {
      (void)violates(w, "a receive has other bytes than were sent");
    }
  }
  end->consumed |= bit(tensor);
  end->taken[end->attempt] |= bit(tensor);
  end->lent &= (uint8_t)~bit(tensor);
  bl_exchange_consume(&end->exchange, receive);
  return true;
}

static void put(end_t *to, packet_t packet) {
  to->queue[to->queue_count++] = packet;
}

static bool send_frame(world_t *w, unsigned e) {
  end_t *end = &w->ends[e], *peer = &w->ends[1 - e];
  bl_frame_t frame;
  if (!end->linked || peer->queue_count == FRAMES_MAX || !bl_exchange_next_frame(&end->exchange, &frame)) {
    return false;
  }
  put(peer, (packet_t){.kind = (uint8_t)frame.kind,
                       .attempt = (uint8_t)frame.attempt,
                       .tensor = (uint8_t)frame.key.micro_batch});
  return true;
}

// ---- bytes ---------------------------------------------------------------------------------------------------------

static void spoil_transfers(world_t *w) {
  w->generation++;
  for (unsigned from = 0; from < 2; from++) {
    for (unsigned i = 0; i < w->transfer_count[from]; i++) {
      w->transfers[from][i].failed = true;
    }
  }
}

static void launch(world_t *w, unsigned e, bl_tensor_t *tensor) {
  end_t *end = &w->ends[e];
  bl_exchange_launch(&end->exchange, tensor);
  w->transfers[e][w->transfer_count[e]++] = (transfer_t){.held = {hold(end, tensor)}, .half = {QUEUED}};
  put(&w->ends[1 - e], (packet_t){.kind = BL_FRAME_GO,
                                  .attempt = (uint8_t)tensor->attempt,
                                  .tensor = (uint8_t)tensor->key.micro_batch,
                                  .generation = w->generation});
}

static void launch_pull(world_t *w, unsigned e, bl_tensor_t *tensor) {
  const unsigned from = 1 - e;
  bl_exchange_launch(&w->ends[e].exchange, tensor);
  const held_t held = hold(&w->ends[e], tensor);
  w->transfers[from][w->transfer_count[from]++] =
      (transfer_t){.held = {{.tensor = held.tensor}, held}, .half = {OVER, QUEUED}};
}

// The mover takes the next tensor: a chunk of it is on its way.
static bool start_move(world_t *w, unsigned e) {
  end_t *end = &w->ends[e], *peer = &w->ends[1 - e];
  if (!end->linked || end->moving.index != 0 || end->exchange.queue_head[TRANSFER] == NONE ||
      peer->queue_count == FRAMES_MAX || w->transfer_count[0] == TRANSFERS_MAX ||
      w->transfer_count[1] == TRANSFERS_MAX) {
    return false;
  }
  bl_tensor_t *tensor = bl_exchange_next_transfer(&end->exchange);
  if (tensor->stale) {
    bl_exchange_drop(&end->exchange, tensor);
  } else if (w->options.path == DIRECT) {
    launch(w, e, tensor);
  } else if (w->options.path == ENGINE) {
    launch_pull(w, e, tensor);
  } else {
    end->moving = hold(end, tensor);
    if (w->options.path == PUSH) {
      put(peer, (packet_t){.kind = BL_FRAME_DATA,
                           .attempt = (uint8_t)tensor->attempt,
                           .tensor = (uint8_t)tensor->key.micro_batch,
                           .at = (uint8_t)tensor->moved_bytes,
                           .content = read_source(w, end, tensor->source)});
    }
  }
  return true;
}

static void have_moved(end_t *end, bl_tensor_t *tensor, uint64_t bytes) {
  const uint8_t number = bit(tensor->key.micro_batch);
  const bool receives = tensor->role == BL_TENSOR_RECEIVE, now = tensor->attempt == end->attempt;
  if (bl_exchange_moved(&end->exchange, tensor, bytes) && receives) {
    end->whole |= now ? number : 0;
  }
}

static bool end_move(world_t *w, unsigned e) {
  end_t *end = &w->ends[e];
  const held_t held = end->moving;
  if (held.index == 0) {
    return false;
  }
  end->moving.index = 0;
  bl_tensor_t *tensor = held_tensor(w, end, held);
  if (tensor == NULL) {
    return true;
  }
  if (tensor->stale) {
    bl_exchange_drop(&end->exchange, tensor);
    return true;
  }
  if (w->options.path == PULL) {
    write_chunk(w, end, tensor, tensor->moved_bytes, w->ends[1 - e].source[tensor->offset]);
  }
  have_moved(end, tensor, 1);
  return true;
}

// ---- what comes ----------------------------------------------------------------------------------------------------

static void receive_go(world_t *w, unsigned e, const packet_t *packet, const bl_frame_t *frame) {
  end_t *end = &w->ends[e];
  const char *reason = NULL;
  bl_tensor_t *tensor = NULL;
  if (packet->generation != w->generation) { // of communicators that have failed
    end->spoiled = end->spoiled || packet->attempt == end->attempt;
    return;
  }
  if (bl_exchange_on_data(&end->exchange, frame, &tensor, &reason) != BL_OK) {
    (void)violates(w, reason);
    return;
  }
  if (tensor == NULL) { // only the end of the communicators ends the half that the sender has queued
    spoil_transfers(w);
    return;
  }
  for (unsigned i = 0; i < w->transfer_count[1 - e]; i++) {
    transfer_t *transfer = &w->transfers[1 - e][i];
    if (!transfer->failed && transfer->half[1] == ABSENT) {
      transfer->half[1] = QUEUED;
      transfer->held[1] = hold(end, tensor);
      if (transfer->held[0].tensor != packet->tensor || transfer->held[0].attempt != packet->attempt) {
        (void)violates(w, "halves of two tensors meet");
      }
      return;
    }
  }
  (void)violates(w, "a half has none to meet");
}

static bool deliver(world_t *w, unsigned e) {
  end_t *end = &w->ends[e];
  if (!end->linked || end->queue_count == 0 || end->receiving.index != 0) {
    return false;
  }
  const packet_t packet = end->queue[0];
  end->queue_count--;
  memmove(end->queue, end->queue + 1, end->queue_count * sizeof packet);
  bl_frame_t frame = {.kind = (bl_frame_kind_t)packet.kind,
                      .attempt = packet.attempt,
                      .key = key_of(packet.tensor),
                      .bytes = w->options.chunks,
                      .offset = packet.kind == BL_FRAME_OFFER ? packet.tensor : packet.at};
  const char *reason = NULL;
  if (packet.kind == BL_FRAME_GO) {
    receive_go(w, e, &packet, &frame);
  } else if (packet.kind == BL_FRAME_DATA) {
    bl_tensor_t *tensor = NULL;
    frame.body_bytes = 1;
    if (bl_exchange_on_data(&end->exchange, &frame, &tensor, &reason) != BL_OK) {
      (void)violates(w, reason);
    } else if (tensor != NULL) {
      end->receiving = hold(end, tensor);
      end->content = packet.content;
    }
  } else if (bl_exchange_on_frame(&end->exchange, &frame, &reason) != BL_OK) {
    (void)violates(w, reason);
  }
  return true;
}

static bool end_chunk(world_t *w, unsigned e) {
  end_t *end = &w->ends[e];
  const held_t held = end->receiving;
  if (held.index == 0) {
    return false;
  }
  end->receiving.index = 0;
  bl_tensor_t *tensor = held_tensor(w, end, held);
  if (tensor != NULL && tensor->stale) {
    bl_exchange_drop(&end->exchange, tensor);
  } else if (tensor != NULL) {
    write_chunk(w, end, tensor, tensor->moved_bytes, end->content);
    have_moved(end, tensor, 1);
  }
  return true;
}

// The half of end `e` in the oldest transfer of those that `from` sends is over.
static bool end_transfer(world_t *w, unsigned e, unsigned from) {
  end_t *end = &w->ends[e];
  const unsigned own = from != e;
  unsigned i = 0;
  while (i < w->transfer_count[from] && w->transfers[from][i].half[own] != QUEUED) {
    i++;
  }
  transfer_t *transfer = &w->transfers[from][i];
  if (i == w->transfer_count[from] || (!transfer->failed && transfer->half[1 - own] == ABSENT)) {
    return false;
  }
  const held_t held = transfer->held[own];
  transfer->half[own] = OVER;
  if (!transfer->failed && transfer->content == CLEAR) {
    transfer->content = w->ends[from].source[transfer->held[0].tensor];
  }
  bl_tensor_t *tensor = held.index != 0 ? held_tensor(w, end, held) : NULL;
  if (tensor == NULL && w->options.path == ENGINE && (end->lent & bit(held.tensor)) == 0) {
    (void)violates(w, "memory is written that is its owner's"); // a copy goes on when its link is lost
  }
  if (tensor != NULL && transfer->failed) {
    end->spoiled = end->spoiled || !tensor->stale;
    bl_exchange_drop(&end->exchange, tensor);
  } else if (tensor != NULL) {
    for (unsigned c = 0; own == 1 && c < w->options.chunks; c++) { // as long as both are queued it may write
      write_chunk(w, end, tensor, c, transfer->content);
    }
    if (tensor->stale) {
      bl_exchange_drop(&end->exchange, tensor);
    } else {
      have_moved(end, tensor, w->options.chunks);
    }
  }
  if (transfer->half[1 - own] != QUEUED && (transfer->failed || transfer->half[1 - own] == OVER)) {
    w->transfer_count[from]--;
    memmove(transfer, transfer + 1, (w->transfer_count[from] - i) * sizeof *transfer);
  }
  return true;
}

// ---- the link ------------------------------------------------------------------------------------------------------

// An end sees that the link is gone. What it has sent may still be read.
static bool lose_link(world_t *w, unsigned e) {
  end_t *end = &w->ends[e];
  const bool first = w->ends[1 - e].linked;
  const bool copies = end->moving.index != 0 && w->options.path == PULL; // its mover is who sees it
  if (!end->linked || copies || (first && w->losses == w->options.losses)) {
    return false;
  }
  w->losses += first;
  for (unsigned from = 0; from < 2; from++) {
    for (unsigned i = 0; i < w->transfer_count[from]; i++) {
      w->transfers[from][i].held[from != e].index = 0;
    }
  }
  if (w->options.path == DIRECT) {
    spoil_transfers(w);
  }
  bl_exchange_lose(&end->exchange);
  end->linked = false;
  end->spoiled = true;
  end->queue_count = 0;
  end->moving.index = end->receiving.index = 0;
  return true;
}

static bool link_again(world_t *w) {
  if (w->ends[0].linked || w->ends[1].linked) {
    return false;
  }
  for (int e = 0; e < 2; e++) {
    end_t *end = &w->ends[e];
    bl_exchange_reset(&end->exchange, kind_of(w), end->attempt);
    end->linked = true;
    end->whole = end->queue_count = 0;
  }
  return true;
}

// ---- what holds ----------------------------------------------------------------------------------------------------

static unsigned in_free_list(const bl_exchange_t *exchange) {
  unsigned count = 0;
  for (uint32_t i = exchange->free_head; i != NONE && count < exchange->pool_count; i = exchange->pool[i].hash_next) {
    count++;
  }
  return count;
}

static void check_counters(world_t *w, const end_t *end) {
  const bl_exchange_t *exchange = &end->exchange;
  unsigned local[ROLES] = {0}, remote[ROLES] = {0}, owed = 0, used = 0, queued[QUEUES] = {0};
  for (uint32_t i = 1; i < exchange->pool_count; i++) {
    const bl_tensor_t *tensor = &exchange->pool[i];
    if (!in_use(tensor)) {
      continue;
    }
    used++;
    owed += tensor->owed;
    local[tensor->role] += tensor->local && !tensor->owed && !tensor->stale;
    remote[tensor->role] += !tensor->local;
    for (int queue = 0; queue < QUEUES; queue++) {
      queued[queue] += tensor->queued[queue];
    }
    if (tensor->attempt < exchange->attempt && !tensor->active && !tensor->owed) {
      (void)violates(w, "a tensor of an older attempt is left");
    }
  }
  for (int role = 0; role < ROLES; role++) {
    if (local[role] != exchange->local_count[role] || remote[role] != exchange->remote_count[role] ||
        local[role] > exchange->max_in_flight || remote[role] > exchange->max_in_flight ||
        owed > exchange->max_in_flight) {
      (void)violates(w, "the counters say other than what is there");
    }
  }
  for (int queue = 0; queue < QUEUES; queue++) {
    unsigned linked = 0;
    for (uint32_t i = exchange->queue_head[queue]; i != NONE && linked <= used;
         i = exchange->pool[i].queue_next[queue]) {
      linked++;
    }
    if (linked != queued[queue]) {
      (void)violates(w, "a queue has other tensors than say so");
    }
  }
  if (used + in_free_list(exchange) + 1 != exchange->pool_count) {
    (void)violates(w, "places are lost");
  }
}

// Sends that are over, receives that are whole.
static void check_tensors(world_t *w, unsigned e) {
  end_t *end = &w->ends[e], *peer = &w->ends[1 - e];
  for (unsigned k = 0; k < w->options.tensors; k++) {
    const bool posted = (end->posted & bit(k)) != 0 && !end->beginning;
    const bl_tensor_t *tensor = posted ? find_of(end, k, e) : NULL;
    if (!posted) {
      continue;
    }
    if (sender_of(k) != e) {
      const bool taken = (end->consumed & bit(k)) != 0;
      if (taken ? tensor != NULL : (end->whole & bit(k)) != 0 && (tensor == NULL || !tensor->complete)) {
        (void)violates(w, taken ? "a receive is there that was consumed" : "a receive that was whole is gone");
      }
    } else if (tensor == NULL && end->linked && !end->spoiled && (end->over & bit(k)) == 0) {
      end->over |= bit(k);
      end->source[k] = CLEAR; // its owner writes something else at once
      if (kind_of(w) == BL_EXCHANGE_PULL && peer->attempt == end->attempt && !peer->spoiled &&
          (peer->whole & bit(k)) == 0) {
        (void)violates(w, "a send is over that has not arrived");
      }
    }
  }
}

static void check(world_t *w) {
  for (unsigned e = 0; e < 2; e++) {
    check_tensors(w, e);
    check_counters(w, &w->ends[e]);
  }
}

// Nothing can be done but give up, or lose the link.
static void check_rest(world_t *w) {
  const bool same = w->ends[0].attempt == w->ends[1].attempt && w->ends[0].attempt > 0;
  const bool good = same && !w->ends[0].spoiled && !w->ends[1].spoiled;
  for (unsigned e = 0; e < 2; e++) {
    const end_t *end = &w->ends[e], *peer = &w->ends[1 - e];
    for (uint32_t i = 1; i < end->exchange.pool_count; i++) {
      const bl_tensor_t *tensor = &end->pool[i];
      if (in_use(tensor) && (tensor->attempt < end->attempt || (good && tensor->attempt > 0))) {
        (void)violates(w, "something is left");
      }
    }
    for (unsigned k = 0; k < w->options.tensors; k++) {
      const bool sends = sender_of(k) == e, ended = ((sends ? end->over : end->consumed) & bit(k)) != 0;
      const bool owed = sends && end->linked && !end->spoiled && (peer->taken[end->attempt] & bit(k)) != 0;
      if ((good || owed) && !ended) {
        (void)violates(w, good ? "a tensor never comes" : "a send that was consumed is never over");
      }
    }
  }
}

// ---- actions -------------------------------------------------------------------------------------------------------

enum {
  BEGIN,
  LOSE, // what need not happen comes first
  BEGUN,
  FRAME,
  DELIVER,
  MOVE,
  MOVED,
  CHUNK,
  SENT,
  RECEIVED,
  POST,
  CONSUME = POST + TENSORS_MAX,
  OF_AN_END = CONSUME + TENSORS_MAX,
  RELINK = 2 * OF_AN_END,
  ACTIONS
};

static bool act_at(world_t *w, unsigned e, unsigned what) {
  if (what >= POST) {
    const unsigned tensor = (what - POST) % TENSORS_MAX;
    return tensor < w->options.tensors && (what < CONSUME ? post_tensor(w, e, tensor) : consume(w, e, tensor));
  }
  switch (what) {
  case BEGIN:
    return begin_attempt(w, &w->ends[e]);
  case LOSE:
    return lose_link(w, e);
  case BEGUN:
    if (end_begin(w, e)) {
      take_back(&w->ends[e]);
      return true;
    }
    return false;
  case FRAME:
    return send_frame(w, e);
  case DELIVER:
    return deliver(w, e);
  case MOVE:
    return start_move(w, e);
  case MOVED:
    return end_move(w, e);
  case CHUNK:
    return end_chunk(w, e);
  default:
    return end_transfer(w, e, what == SENT ? e : 1 - e);
  }
}

// False, and nothing has changed: it is not possible here.
static bool act(world_t *w, unsigned action) {
  const bool done = action == RELINK ? link_again(w) : act_at(w, action / OF_AN_END, action % OF_AN_END);
  if (done && w->violation == NULL) {
    check(w);
  }
  return done;
}

// Whether it may also not happen. An end whose peer has lost the link sees that in the end.
static bool is_chance(const world_t *w, unsigned action) {
  const unsigned what = action % OF_AN_END;
  return action != RELINK && (what == BEGIN || (what == LOSE && w->ends[1 - action / OF_AN_END].linked));
}

static void print_action(unsigned action) {
  static const char *const names[] = {
      "begins the next attempt", "loses the link", "has begun",   "sends a frame", "gets a frame",
      "begins to move",          "has moved",      "has a chunk", "has sent",      "has received"};
  const unsigned e = action / OF_AN_END, what = action % OF_AN_END;
  if (action == RELINK) {
    printf("  the link is made again\n");
  } else if (what >= POST) {
    printf("  %u %s %u\n", e, what < CONSUME ? "posts" : "consumes", (what - POST) % TENSORS_MAX);
  } else {
    printf("  %u %s\n", e, names[what]);
  }
}

// ---- states --------------------------------------------------------------------------------------------------------

typedef struct bytes {
  uint8_t bytes[1024];
  size_t count;
} bytes_t;

static void pack(bytes_t *to, const void *from, size_t count) {
  memcpy(to->bytes + to->count, from, count);
  to->count += count;
}

static void pack_byte(bytes_t *to, unsigned value) {
  to->bytes[to->count++] = (uint8_t)value;
}

static void pack_tensor(bytes_t *to, const bl_tensor_t *tensor) {
  pack_byte(to, tensor->key.micro_batch | (unsigned)tensor->role << 3 | (unsigned)tensor->attempt << 4);
}

// What of an exchange makes a difference: not the places of its tensors.
static void pack_exchange(bytes_t *to, const world_t *w, bl_exchange_t *exchange) {
  pack_byte(to, (unsigned)exchange->peer_attempt);
  for (int queue = 0; queue < QUEUES; queue++) {
    for (uint32_t i = exchange->queue_head[queue]; i != NONE; i = exchange->pool[i].queue_next[queue]) {
      pack_tensor(to, &exchange->pool[i]);
    }
    pack_byte(to, 0xFF);
  }
  for (unsigned role = 0; role < ROLES; role++) {
    for (unsigned attempt = 1; attempt <= w->options.attempts; attempt++) {
      for (unsigned k = 0; k < w->options.tensors; k++) {
        const bl_tensor_t *tensor = find(exchange, (bl_tensor_role_t)role, key_of(k), attempt);
        pack_byte(to, tensor == NULL ? 0
                                     : 1u | (unsigned)tensor->local << 1 | (unsigned)tensor->remote << 2 |
                                           (unsigned)tensor->active << 3 | (unsigned)tensor->stale << 4 |
                                           (unsigned)tensor->complete << 5 | (unsigned)tensor->consumed << 6 |
                                           (unsigned)tensor->owed << 7);
        if (tensor != NULL) {
          pack_byte(to, (unsigned)tensor->moved_bytes);
        }
      }
    }
  }
}

static void pack_held(bytes_t *to, held_t held) {
  pack_byte(to, held.index == 0 ? 0 : held.attempt);
  pack_byte(to, held.index == 0 ? 0 : held.tensor);
}

static uint64_t digest(world_t *w) {
  bytes_t state;
  state.count = 0;
  for (int e = 0; e < 2; e++) {
    end_t *end = &w->ends[e];
    pack_byte(&state,
              end->attempt | (unsigned)end->linked << 4 | (unsigned)end->beginning << 5 | (unsigned)end->spoiled << 6);
    const uint8_t sets[] = {end->posted, end->consumed, end->whole, end->over, end->lent};
    pack(&state, sets, sizeof sets);
    pack(&state, end->taken, w->options.attempts + 1);
    pack(&state, end->source, w->options.tensors);
    pack(&state, end->destination, w->options.tensors * sizeof end->destination[0]);
    pack_held(&state, end->moving);
    pack_held(&state, end->receiving);
    pack_byte(&state, end->receiving.index != 0 ? end->content : 0);
    for (unsigned i = 0; i < end->queue_count; i++) {
      packet_t packet = end->queue[i];
      packet.generation = packet.generation == w->generation && packet.kind == BL_FRAME_GO;
      pack(&state, &packet, sizeof packet);
    }
    pack_byte(&state, 0xFF);
    pack_exchange(&state, w, &end->exchange);
    for (unsigned i = 0; i < w->transfer_count[e]; i++) {
      const transfer_t *transfer = &w->transfers[e][i];
      pack_held(&state, transfer->held[0]);
      pack_held(&state, transfer->held[1]);
      pack_byte(&state, transfer->half[0] | transfer->half[1] << 2 | (unsigned)transfer->failed << 4);
      pack_byte(&state, transfer->content);
    }
    pack_byte(&state, 0xFF);
  }
  pack_byte(&state, w->losses);
  const uint64_t hash = bl_hash64(state.bytes, state.count, 0);
  return hash != 0 ? hash : 1;
}

typedef struct seen {
  uint64_t *digests; // open addressing; 0: empty
  size_t capacity, count;
} seen_t;

static bool insert(seen_t *seen, uint64_t value) {
  size_t i = value & (seen->capacity - 1);
  while (seen->digests[i] != 0 && seen->digests[i] != value) {
    i = (i + 1) & (seen->capacity - 1);
  }
  const bool is_new = seen->digests[i] == 0;
  seen->digests[i] = value;
  seen->count += is_new;
  return is_new;
}

// True when it is new.
static bool remember(seen_t *seen, uint64_t value) {
  if (seen->count * 2 >= seen->capacity) {
    seen_t wider = {.capacity = seen->capacity > 0 ? seen->capacity * 2 : 1u << 16};
    wider.digests = calloc(wider.capacity, sizeof *wider.digests);
    assert_non_null(wider.digests);
    for (size_t i = 0; i < seen->capacity; i++) {
      if (seen->digests[i] != 0) {
        (void)insert(&wider, seen->digests[i]);
      }
    }
    free(seen->digests);
    *seen = wider;
  }
  return insert(seen, value);
}

// ---- every state ---------------------------------------------------------------------------------------------------

typedef struct visit {
  world_t world;
  unsigned action; // that is tried next
  bool rests;      // so far
} visit_t;

typedef struct search {
  visit_t *path; // [DEPTH_MAX]
  seen_t seen;
  size_t transitions;
  unsigned depth, deepest;
} search_t;

static void print_path(const search_t *search) {
  for (unsigned i = 0; i + 1 < search->depth; i++) {
    print_action(search->path[i].action - 1);
  }
}

// Goes on from the state at the end of the path: true when there is a new one behind it.
static bool go_deeper(search_t *search, const char **violation) {
  visit_t *at = &search->path[search->depth - 1], *next = at + 1;
  copy(&next->world, &at->world);
  while (at->action < ACTIONS) {
    const unsigned action = at->action++;
    if (!act(&next->world, action)) {
      continue;
    }
    search->transitions++;
    at->rests = at->rests && is_chance(&at->world, action);
    *violation = next->world.violation;
    if (*violation != NULL || remember(&search->seen, digest(&next->world))) {
      next->action = 0;
      next->rests = true;
      search->depth++;
      assert_true(search->depth < DEPTH_MAX - 1);
      return true;
    }
    copy(&next->world, &at->world);
  }
  if (at->rests) {
    check_rest(&at->world);
    *violation = at->world.violation;
  }
  return false;
}

// Sees every state, or those before the first violation, which it gives; NULL: there is none.
static const char *see_all(const options_t *options) {
  static const char *const paths[] = {"pull", "push", "nccl", "cuda-ipc"};
  search_t search = {.path = calloc(DEPTH_MAX, sizeof *search.path), .depth = 1};
  assert_non_null(search.path);
  const char *violation = NULL;
  begin_world(&search.path[0].world, options);
  search.path[0].rests = true;
  remember(&search.seen, digest(&search.path[0].world));
  while (search.depth > 0 && violation == NULL) {
    search.deepest = search.depth > search.deepest ? search.depth : search.deepest;
    if (!go_deeper(&search, &violation) && violation == NULL) {
      search.depth--;
    }
  }
  if (violation != NULL && broken_rule == 0) {
    print_path(&search);
  } else if (violation == NULL && broken_rule == 0) {
    printf("%s, %u tensors of %u chunks, %u attempts, links lost %u: %zu states, %zu transitions, %u deep, complete\n",
           paths[options->path], options->tensors, options->chunks, options->attempts, options->losses,
           search.seen.count, search.transitions, search.deepest);
    assert_true(search.seen.count > 1000);
  }
  free(search.path);
  free(search.seen.digests);
  return violation;
}

static const options_t small[] = {
    {PULL, 2, 2, 2, 1}, {PUSH, 2, 2, 2, 1}, {DIRECT, 2, 1, 2, 1}, {PULL, 2, 1, 3, 0}, {ENGINE, 2, 1, 2, 1}};
static const options_t large[] = {{PULL, 3, 2, 2, 0},   {PUSH, 3, 2, 2, 0},   {DIRECT, 3, 1, 2, 0}, {PULL, 2, 1, 3, 1},
                                  {PUSH, 2, 1, 3, 1},   {DIRECT, 2, 1, 3, 1}, {PULL, 2, 1, 2, 2},   {PUSH, 2, 1, 2, 2},
                                  {ENGINE, 3, 1, 2, 0}, {ENGINE, 2, 1, 3, 1}};
#define COUNT(table) (sizeof(table) / sizeof(table)[0])

static const char *see_all_of(const options_t *options, size_t count) {
  const char *violation = NULL;
  for (size_t i = 0; i < count && violation == NULL; i++) {
    violation = see_all(&options[i]);
  }
  return violation;
}

static void test_every_state_is_sound(void **state) {
  (void)state;
  broken_rule = 0;
  const char *violation = see_all_of(small, COUNT(small));
  if (violation == NULL && test_soak()) {
    violation = see_all_of(large, COUNT(large));
  }
  if (violation != NULL) {
    fail_msg("%s", violation);
  }
}

// ---- walks ---------------------------------------------------------------------------------------------------------

#define STEPS_MAX  4000
#define RULE_WALKS 200 // before all small worlds are seen

static const char *walk(uint64_t seed, path_t path, size_t *steps) {
  static world_t world;
  const options_t options = {
      .path = path, .tensors = TENSORS_MAX, .chunks = CHUNKS_MAX, .attempts = ATTEMPTS_MAX, .losses = 2};
  const uint64_t key = bl_random_key(seed, "exchange");
  uint64_t draws = 0;
  begin_world(&world, &options);
  const uint64_t rare = 8 + bl_random_below(key, draws++, 120); // how seldom attempts and links end
  for (unsigned step = 0; step < STEPS_MAX; step++) {
    const unsigned first = (unsigned)bl_random_below(key, draws++, ACTIONS);
    bool done = false;
    for (unsigned i = 0; i < ACTIONS && !done; i++) {
      const unsigned action = (first + i) % ACTIONS;
      const bool skipped = is_chance(&world, action) && bl_random_below(key, draws++, rare) != 0;
      done = !skipped && act(&world, action);
    }
    if (world.violation != NULL) {
      return world.violation;
    }
    *steps += done;
    if (!done) {
      static world_t last;
      bool chance = false;
      copy(&last, &world);
      for (unsigned action = 0; action < ACTIONS && !chance; action++) {
        chance = is_chance(&last, action) && act(&last, action);
      }
      check_rest(&world);
      if (world.violation != NULL || !chance) {
        return world.violation;
      }
      copy(&world, &last);
    }
  }
  return "something never ends";
}

static unsigned walks(void) {
  return test_soak() ? 300000 : 3000;
}

static void test_walks_are_sound(void **state) {
  (void)state;
  broken_rule = 0;
  size_t steps = 0;
  const uint64_t first = test_seed(1);
  for (uint64_t seed = first; seed < first + walks(); seed++) {
    const char *violation = walk(seed, (path_t)(seed % PATHS), &steps);
    if (violation != NULL) {
      fail_msg("seed %lu, path %u: %s", (unsigned long)seed, (unsigned)(seed % PATHS), violation);
    }
  }
  printf("%u walks, %zu steps\n", walks(), steps);
}

static void test_every_rule_is_needed(void **state) {
  (void)state;
  for (int rule = 1; rule <= RULES; rule++) {
    const char *violation = NULL;
    uint64_t seed = 0;
    size_t steps = 0;
    broken_rule = rule;
    while (violation == NULL && seed < RULE_WALKS) {
      seed++;
      violation = walk(seed, (path_t)(seed % PATHS), &steps);
    }
    const bool walked = violation != NULL;
    if (!walked) {
      violation = see_all_of(small, COUNT(small));
    }
    printf("without rule %d: %s", rule, violation != NULL ? violation : "no violation");
    printf(walked ? " (seed %lu)\n" : " (among all states)\n", (unsigned long)seed);
    assert_non_null(violation);
  }
  broken_rule = 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_state_is_sound),
      cmocka_unit_test(test_walks_are_sound),
      cmocka_unit_test(test_every_rule_is_needed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
