// SPDX-License-Identifier: Apache-2.0
// The transfer thread: sends operations over the data connection, moves their blocks, takes the answers.
#include "client/transfer.h"
#include "client/client_core.h"
#include "datapath/block.h"
#include "sys/clock.h"
#include "sys/thread.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define TICK_NS     (UINT64_C(10) * 1000000) // granularity of deadlines
#define LINK_MIN_NS (UINT64_C(50) * 1000000) // between attempts to connect again, growing
#define LINK_MAX_NS (UINT64_C(1000) * 1000000)
#define LINK_TRY_NS (UINT64_C(300) * 1000000) // for one attempt
#define CHUNKS      4                         // sent before answers are looked at
#define HALF_NS     (UINT64_C(250) * 1000000) // a cancelled load on nccl may still end by itself

void bl__transfer_wake(bl_client_t *client) {
  uint64_t one = 1;
  (void)!write(client->wake_fd, &one, sizeof one); // full means that it is awake
}

// ---- beginning ---------------------------------------------------------------------------------------------------------

static void take_submitted(bl_client_t *client) {
  pthread_mutex_lock(&client->mutex);
  if (client->submitted_first != NULL) {
    if (client->queue_last != NULL) {
      client->queue_last->next = client->submitted_first;
    } else {
      client->queue_first = client->submitted_first;
    }
    client->queue_last = client->submitted_last;
    client->submitted_first = client->submitted_last = NULL;
  }
  pthread_mutex_unlock(&client->mutex);
}

void bl__queue_again(bl_client_t *client, bl__operation_t *operation) {
  operation->sequence = 0;
  operation->at = operation->hash = 0;
  operation->next = client->queue_first;
  client->queue_first = operation;
  client->queue_last = client->queue_last == NULL ? operation : client->queue_last;
  pthread_mutex_lock(&client->mutex);
  client->counters.retries++;
  pthread_mutex_unlock(&client->mutex);
}

static void push_sending(bl_client_t *client, bl__operation_t *operation) {
  operation->sender = (bl_block_sender_t){.from = operation->from,
                                          .bytes = operation->bytes,
                                          .sequence = operation->sequence,
                                          .verified = !client->unverified};
  operation->next = NULL;
  if (client->sending_last != NULL) {
    client->sending_last->next = operation;
  } else {
    client->sending_first = operation;
  }
  client->sending_last = operation;
}

static void put(bl_client_t *client, bl_block_frame_t *frame, int fd) {
  pthread_mutex_lock(&client->mutex);
  frame->acknowledged = client->sequences.acknowledged;
  pthread_mutex_unlock(&client->mutex);
  if (!bl_outlet_put(&client->outlet, frame, NULL, fd)) {
    bl__link_lost(client, "too much is queued"); // cannot be: the window is smaller
  }
}

bl__sent_t *bl__request_put(bl_client_t *client, bl__operation_verb_t verb, bl__operation_t *operation,
                            const bl_block_frame_t *frame) {
  uint64_t sequence = 0;
  pthread_mutex_lock(&client->mutex);
  bool free = bl__sequences_next(&client->sequences, &sequence);
  pthread_mutex_unlock(&client->mutex);
  if (!free) {
    return NULL;
  }
  bl__sent_t *sent = &client->sent[sequence % BL__WINDOW];
  *sent = (bl__sent_t){.sequence = sequence,
                       .operation = operation,
                       .frame = *frame,
                       .verb = verb,
                       .from = operation != NULL ? operation->from : NULL};
  sent->frame.sequence = sequence;
  client->sent_count++;
  if (operation != NULL) {
    operation->sequence = sequence;
  }
  put(client, &sent->frame, -1);
  return sent;
}

static bool has_flow(const bl_client_t *client, const bl__operation_t *operation) {
  return client->flow_bytes == 0 || client->flow == 0 || client->flow + operation->bytes <= client->flow_bytes;
}

// On nccl nothing is shown: what is withdrawn has to be at rest.
static bool withdraw(bl_client_t *client, bl__operation_t *operation) {
  pthread_mutex_lock(&client->mutex);
  const bl__client_source_t source = client->sources[operation->source];
  pthread_mutex_unlock(&client->mutex);
  if (bl__way_reads(client, source.base, source.bytes)) {
    return false;
  }
  bl__operation_end(client, operation);
  return true;
}

static bool start_show(bl_client_t *client, bl__operation_t *operation) {
  if (client->by == BL_PATH_NCCL) {
    return withdraw(client, operation);
  }
  for (unsigned i = 0; i < BL__WINDOW; i++) {
    if (client->shown[i] == NULL) {
      client->shown[i] = operation;
      bl_block_frame_t frame = {.kind = operation->verb == BL__SHOW ? BL_BLOCK_SHOW : BL_BLOCK_HIDE,
                                .source = operation->source,
                                .bytes = operation->bytes};
      if (!bl_outlet_put(&client->outlet, &frame, NULL, operation->fd)) {
        client->shown[i] = NULL; // its descriptors are not out yet
        return false;
      }
      return true;
    }
  }
  return false;
}

// False: not now.
static bool start_one(bl_client_t *client, bl__operation_t *operation) {
  bl_block_frame_t frame = {.id = operation->room, .generation = operation->generation, .bytes = operation->bytes};
  switch (operation->verb) {
  case BL__SHOW:
  case BL__HIDE:
    return start_show(client, operation);
  case BL__EVICT:
    if (!has_flow(client, operation)) {
      return false;
    }
    frame.kind = BL_BLOCK_EVICT;
    frame.source = operation->source;
    frame.offset = operation->source_offset;
    frame.step = operation->label.step;
    frame.chunk = operation->label.chunk;
    frame.micro_batch = operation->label.micro_batch;
    if (client->by == BL_PATH_CUDA_IPC || client->by == BL_PATH_NCCL) {
      frame.checksum = operation->checksum;
    } else if (client->shm && !client->unverified) {
      frame.checksum = operation->known ? operation->checksum : bl_block_checksum(operation->from, operation->bytes);
    }
    break;
  case BL__LOAD:
    if (!has_flow(client, operation)) {
      return false;
    }
    frame.kind = BL_BLOCK_LOAD;
    break;
  case BL__RELEASE:
    frame.kind = BL_BLOCK_RELEASE;
    break;
  }
  if (bl__request_put(client, operation->verb, operation, &frame) == NULL) {
    return false;
  }
  if (operation->verb != BL__RELEASE) {
    client->flow += operation->bytes;
  }
  if (operation->verb == BL__EVICT && client->by == BL_PATH_TCP) {
    push_sending(client, operation);
  }
  return true;
}

static void start_operations(bl_client_t *client, uint64_t now_ns) {
  while (client->linked && client->queue_first != NULL && now_ns >= client->pause_until_ns &&
         client->sent_count < BL_CLIENT_IN_FLIGHT && bl__releases_put(client)) {
    bl__operation_t *operation = client->queue_first, *next = operation->next;
    if (!start_one(client, operation)) {
      return;
    }
    client->queue_first = next; // `next` of a started one may link another list by now
    client->queue_last = next == NULL ? NULL : client->queue_last;
    if (client->shm && operation->verb == BL__EVICT && bl_outlet_flush(&client->outlet) == BL_OUTLET_BROKEN) {
      bl__link_lost(client, strerror(errno)); // the store begins while the next one's checksum is computed
    }
  }
}

// ---- giving up ---------------------------------------------------------------------------------------------------------

void bl__sending_drop(bl_client_t *client, bl__operation_t *operation) {
  bl__operation_t *previous = NULL;
  for (bl__operation_t *at = client->sending_first; at != NULL; previous = at, at = at->next) {
    if (at == operation) {
      if (previous != NULL) {
        previous->next = at->next;
      } else {
        client->sending_first = at->next;
      }
      client->sending_last = client->sending_last == at ? previous : client->sending_last;
      break;
    }
  }
  // A chunk under way goes on from memory of ours: the caller's is free.
  bl_outlet_t *outlet = &client->outlet;
  if (client->linked && outlet->chunk_bytes > 0 && outlet->chunk >= operation->from &&
      outlet->chunk < operation->from + operation->bytes) {
    memcpy(client->side, outlet->chunk, outlet->chunk_bytes);
    outlet->chunk = client->side;
  }
}

// Ends a sent operation before its answer; the room's state comes with the answers that are still due.
static void give_up_sent(bl_client_t *client, bl__sent_t *sent) {
  bl__operation_t *operation = sent->operation;
  sent->operation = NULL;
  if (operation->verb == BL__EVICT) {
    bl__sending_drop(client, operation);
    bl__release_queue(client,
                      &(bl__release_t){.id = operation->room, .generation = operation->generation, .sets = true});
  } else if (operation->verb == BL__LOAD && client->coming == operation) {
    client->coming = NULL;
    bl_inlet_into(&client->inlet, NULL);
  }
  sent->sets = operation->verb == BL__RELEASE;
  bl__room_set(client, operation->room, BL__ROOM_UNKNOWN, operation->generation);
}

// A cancelled load whose half may be queued ends by itself if the store lives; stopping it costs the communicators.
static bool may_still_end(const bl_client_t *client, bl__operation_t *operation, uint64_t now_ns) {
  if (client->by != BL_PATH_NCCL || !client->linked || operation->verb != BL__LOAD || operation->sequence == 0) {
    return false;
  }
  if (operation->patience_ns == 0) {
    operation->patience_ns = now_ns + HALF_NS;
  }
  return now_ns < operation->patience_ns;
}

// Whether the operation ends now, without an answer; operation->err says how.
static bool is_given_up(const bl_client_t *client, bl__operation_t *operation, uint64_t now_ns) {
  bool may_stop = operation->verb == BL__EVICT || operation->verb == BL__LOAD;
  if (may_stop && atomic_load_explicit(&operation->cancelled, memory_order_relaxed) &&
      !may_still_end(client, operation, now_ns)) {
    (void)bl_error_set(&operation->err, BL_CANCELLED, "given up by its caller");
    return true;
  }
  if (now_ns >= operation->deadline_ns) {
    bool known = !client->linked && client->link_why[0] != '\0';
    (void)bl_error_set(&operation->err, BL_UNAVAILABLE, "the store at %s did not answer in time%s%s", client->store,
                       known ? ": " : "", known ? client->link_why : "");
    return true;
  }
  return false;
}

static void give_up_queued(bl_client_t *client, uint64_t now_ns) {
  bl__operation_t *kept = NULL, *last = NULL;
  for (bl__operation_t *operation = client->queue_first, *next; operation != NULL; operation = next) {
    next = operation->next;
    if (is_given_up(client, operation, now_ns)) {
      if (operation->verb <= BL__RELEASE) { // nothing was asked: the room is as before
        bl__room_set(client, operation->room, operation->verb == BL__EVICT ? BL__ROOM_EMPTY : BL__ROOM_FULL,
                     operation->generation);
      }
      bl__operation_end(client, operation);
      continue;
    }
    operation->next = NULL;
    if (last != NULL) {
      last->next = operation;
    } else {
      kept = operation;
    }
    last = operation;
  }
  client->queue_first = kept;
  client->queue_last = last;
}

static void give_up(bl_client_t *client, uint64_t now_ns) {
  give_up_queued(client, now_ns);
  for (unsigned i = 0; i < BL__WINDOW; i++) {
    bl__operation_t *operation = client->sent[i].operation;
    if (client->sent[i].sequence != 0 && operation != NULL && is_given_up(client, operation, now_ns)) {
      if (operation->verb == BL__LOAD && bl__way_moves(client, operation->sequence)) {
        bl__link_lost(client, "a load that had begun was given up"); // nothing else stops what may write its memory
      }
      give_up_sent(client, &client->sent[i]);
      bl__operation_end(client, operation);
    }
    operation = client->shown[i];
    if (operation != NULL && is_given_up(client, operation, now_ns)) {
      client->shown[i] = NULL;
      bl__operation_end(client, operation);
    }
  }
}

// The session is lost: everything ends with the cause.
static void end_all(bl_client_t *client, const bl_error_t *cause) {
  take_submitted(client);
  for (bl__operation_t *operation = client->queue_first, *next; operation != NULL; operation = next) {
    next = operation->next;
    operation->err = *cause;
    bl__operation_end(client, operation);
  }
  client->queue_first = client->queue_last = client->sending_first = client->sending_last = NULL;
  for (unsigned i = 0; i < BL__WINDOW; i++) {
    bl__operation_t *ended[2] = {client->sent[i].sequence != 0 ? client->sent[i].operation : NULL, client->shown[i]};
    client->sent[i] = (bl__sent_t){0};
    client->shown[i] = NULL;
    for (int j = 0; j < 2; j++) {
      if (ended[j] != NULL) {
        ended[j]->err = *cause;
        bl__operation_end(client, ended[j]);
      }
    }
  }
  client->sent_count = client->release_count = 0;
  client->coming = NULL;
}

// ---- the link ----------------------------------------------------------------------------------------------------------

void bl__link_lost(bl_client_t *client, const char *why) {
  if (!client->linked) {
    return;
  }
  snprintf(client->link_why, sizeof client->link_why, "%s", why);
  bl__disconnect(client);
  client->coming = NULL;
  client->sending_first = client->sending_last = NULL;
  if (client->shm) { // the end of a unix connection is the proof that the store is dead
    bl_error_t err;
    (void)bl_error_set(&err, BL_UNAVAILABLE, "the store at %s is gone (%s): what it held is lost", client->store, why);
    bl__lose(client, &err);
    return;
  }
  client->link_wait_ns = LINK_MIN_NS;
  client->link_at_ns = bl_clock_now_ns();
}

// Everything that has no answer is asked again under its number, in order.
static void send_again(bl_client_t *client) {
  pthread_mutex_lock(&client->mutex);
  uint64_t first = client->sequences.acknowledged + 1, last = client->sequences.last;
  client->counters.reconnects++;
  client->counters.retries += client->sent_count;
  pthread_mutex_unlock(&client->mutex);
  for (uint64_t sequence = first; sequence <= last; sequence++) {
    bl__sent_t *sent = &client->sent[sequence % BL__WINDOW];
    if (sent->sequence != sequence) {
      continue; // an RPC, or answered
    }
    put(client, &sent->frame, -1);
    if (sent->operation != NULL) {
      sent->operation->at = sent->operation->hash = 0;
      sent->operation->corrupt = false;
      if (sent->verb == BL__EVICT && client->by == BL_PATH_TCP) {
        push_sending(client, sent->operation);
      }
    }
  }
}

static void link_again(bl_client_t *client, uint64_t now_ns) {
  if (client->linked || client->shm || now_ns < client->link_at_ns) {
    return;
  }
  bl_error_t err = {0};
  bl_status_t status = bl__connect(client, false, now_ns + LINK_TRY_NS, &err);
  if (status == BL_OK) {
    send_again(client);
    return;
  }
  if (client->refused) { // a store that lives listens
    (void)bl_error_set(&err, BL_UNAVAILABLE, "the store at %s is gone: what it held is lost", client->store);
    bl__lose(client, &err);
    return;
  }
  if (status == BL_FENCED || status == BL_NOT_FOUND || status == BL_DENIED ||
      status == BL_UNAUTHENTICATED) { // another store, or another holder
    bl__lose(client, &err);
    return;
  }
  snprintf(client->link_why, sizeof client->link_why, "%.191s", err.text);
  client->link_at_ns = bl_clock_now_ns() + client->link_wait_ns;
  client->link_wait_ns = client->link_wait_ns * 2 < LINK_MAX_NS ? client->link_wait_ns * 2 : LINK_MAX_NS;
}

// ---- the loop ----------------------------------------------------------------------------------------------------------

// Writes what there is. True: the socket takes no more.
static bool write_out(bl_client_t *client) {
  bl_outlet_result_t result = bl_outlet_flush(&client->outlet);
  bl__operation_t *operation = client->sending_first;
  if (result == BL_OUTLET_DONE && operation != NULL) {
    result = bl_outlet_send(&client->outlet, &operation->sender, CHUNKS);
    if (result == BL_OUTLET_DONE && operation->sender.at == operation->sender.bytes) {
      client->sending_first = operation->next;
      client->sending_last = client->sending_first == NULL ? NULL : client->sending_last;
    }
  }
  if (result == BL_OUTLET_BROKEN) {
    bl__link_lost(client, strerror(errno));
  }
  return result == BL_OUTLET_AGAIN;
}

static void wait_for_events(bl_client_t *client, bool idle, bool blocked) {
  struct pollfd fds[2] = {
      {.fd = client->wake_fd, .events = POLLIN},
      {.fd = client->linked ? client->stream.fd : -1, .events = (short)(POLLIN | (blocked ? POLLOUT : 0))}};
  (void)poll(fds, 2, idle ? 1000 : (int)(TICK_NS / BL_NS_PER_MS));
  uint64_t count;
  if ((fds[0].revents & POLLIN) != 0) {
    (void)!read(client->wake_fd, &count, sizeof count);
  }
}

static bool turn(bl_client_t *client, uint64_t *tick_ns) {
  uint64_t now_ns = bl_clock_now_ns();
  take_submitted(client);
  if (now_ns >= *tick_ns || atomic_exchange_explicit(&client->cancels, false, memory_order_relaxed)) {
    give_up(client, now_ns);
    *tick_ns = now_ns + TICK_NS;
  }
  link_again(client, now_ns);
  bool blocked = true, moved = false;
  if (client->linked) {
    (void)bl__releases_put(client);
    start_operations(client, now_ns);
  }
  if (client->linked) {
    blocked = write_out(client);
  }
  if (client->linked) {
    moved = bl__answers_read(client);
  }
  if (client->linked) {
    moved |= bl__ways_turn(client);
  }
  bool more = client->linked && (moved || (!blocked && client->sending_first != NULL));
  if (!more) {
    wait_for_events(client, client->linked && client->queue_first == NULL && client->sent_count == 0,
                    blocked && client->linked);
  }
  pthread_mutex_lock(&client->mutex);
  bool ending = client->ending;
  pthread_mutex_unlock(&client->mutex);
  return !ending;
}

void *bl__transfer(void *argument) {
  bl_client_t *client = argument;
  bl_thread_set_name("store-transfer");
  uint64_t tick_ns = 0;
  bl_error_t lost = {0};
  bool runs = true;
  while (runs) {
    if (bl__is_lost(client, &lost)) {
      bl__disconnect(client);
      end_all(client, &lost);
      wait_for_events(client, true, false);
      pthread_mutex_lock(&client->mutex);
      runs = !client->ending;
      pthread_mutex_unlock(&client->mutex);
    } else {
      runs = turn(client, &tick_ns);
    }
  }
  bl__disconnect(client);
  (void)bl_error_set(&lost, BL_CANCELLED, "the client is closed");
  end_all(client, &lost);
  return NULL;
}
