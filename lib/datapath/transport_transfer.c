// SPDX-License-Identifier: Apache-2.0
// The compute thread's side of the transport: begin, post, wait; and functions for any thread.
#include "datapath/transport.h"
#include "sys/clock.h"
#include "sys/condition.h"
#include "sys/thread.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#define TEXT_BYTES 96

static const char *describe(const bl_transport_t *transport, bl_tensor_role_t role, int32_t peer, bl_tensor_key_t key,
                            char text[TEXT_BYTES]) {
  static const char *const names[BL_DIRECTIONS] = {"activation", "gradient", "tied gradient",
                                                   "gradients",  "weights",  "rows"};
  const char *name = (unsigned)key.direction < BL_DIRECTIONS ? names[key.direction] : "tensor";
  const char *way = role == BL_TENSOR_RECEIVE ? "from" : "to";
  if (key.direction == BL_REDUCE || key.direction == BL_GATHER) {
    snprintf(text, TEXT_BYTES, "%s of chunk %u, message %u, %s %s", name, key.boundary, key.micro_batch, way,
             BL__NAME(transport, peer)); // the piece follows from the peer, or from this end
    return text;
  }
  if (key.direction == BL_SHARE) {
    snprintf(text, TEXT_BYTES, "%s of collective %u %s %s", name, key.boundary, way, BL__NAME(transport, peer));
    return text;
  }
  int length = snprintf(text, TEXT_BYTES, "%s %u of boundary %u %s %s", name, key.micro_batch, key.boundary, way,
                        BL__NAME(transport, peer));
  if (key.piece != 0) {
    snprintf(text + length, TEXT_BYTES - (size_t)length, " (piece %u)", key.piece);
  }
  return text;
}

// Returns whether NCCL moves the peer's tensors.
static bool has_channels(const bl__peer_t *peer) {
  return peer->link != NULL && peer->link->nccl_link != NULL;
}

bool bl_transport_is_direct(bl_transport_t *transport, int32_t stage) {
  pthread_mutex_lock(&transport->mutex);
  const bl__peer_t *peer = bl__transport_find(transport, stage);
  bool nccl_link = peer != NULL && peer->link != NULL && bl__link_is_direct(peer->link);
  pthread_mutex_unlock(&transport->mutex);
  return nccl_link;
}

bool bl_transport_is_whole(bl_transport_t *transport) {
  bool whole = true;
  pthread_mutex_lock(&transport->mutex);
  for (size_t i = 0; i < transport->peer_count; i++) {
    whole = whole && (!has_channels(transport->peers[i]) || bl__nccl_link_is_quiet(transport->peers[i]->nccl_link));
  }
  pthread_mutex_unlock(&transport->mutex);
  return whole;
}

bl_status_t bl_transport_begin(bl_transport_t *transport, uint64_t attempt, bl_error_t *err) {
  bl_status_t status = BL_OK;
  pthread_mutex_lock(&transport->mutex);
  if (attempt <= transport->attempt) {
    status = bl_error_set(err, BL_PRECONDITION, "data path: attempt %" PRIu64 " is not above attempt %" PRIu64, attempt,
                          transport->attempt);
    goto unlock;
  }
  transport->attempt = attempt;
  transport->aborted = false;
  if (transport->keeps_lost) {
    transport->keeps_lost = false;
    bl__transport_wake(transport); // the next iteration frees them
  }
  for (size_t i = 0; i < transport->peer_count; i++) {
    bl_exchange_begin(transport->peers[i]->exchange, attempt);
    bl__notes_begin(&transport->peers[i]->said, attempt);
    bl__notes_begin(&transport->peers[i]->heard, attempt);
    transport->peers[i]->links_at_begin = transport->peers[i]->links;
  }
  for (size_t i = 0; i < transport->peer_count; i++) {
    bl__peer_t *peer = transport->peers[i];
    // The wait is bounded: one copy, checksum or non-blocking call. On nccl both ends have queued the transfer, or the
    // watchdog ends it. On cuda-ipc this device's copy engine has it. All conditions are checked together, because
    // while one is waited for, another may become true.
    while ((peer->link != NULL && peer->link->touching) || !bl__nccl_link_is_still(peer->nccl_link) ||
           transport->pulling > 0) {
      pthread_cond_wait(&transport->untouched, &transport->mutex);
    }
    if (peer->link != NULL) {
      bl__link_let_go(peer->link);
    }
    if (has_channels(peer)) {
      bl__nccl_link_begin(peer->nccl_link);
    }
  }
unlock:
  pthread_mutex_unlock(&transport->mutex);
  return status;
}

static bl_status_t find_arena(bl_transport_t *transport, int32_t stage, size_t arena, const uint8_t **base,
                              uint64_t *bytes, bl_error_t *err) {
  const bl__peer_t *peer = bl__transport_find(transport, stage);
  bl__link_t *link = peer != NULL ? peer->link : NULL;
  if (transport->aborted) {
    return bl_error_set(err, BL_CANCELLED, "the attempt was aborted");
  }
  if (peer == NULL) {
    return bl_error_set(err, BL_INVALID, "no such peer is connected");
  }
  if (link == NULL) {
    return bl_error_set(err, peer->lost, "%s", peer->reason);
  }
  if (transport->attempt == 0) {
    return bl_error_set(err, BL_PRECONDITION, "no attempt has begun");
  }
  if (link->path != BL_PATH_SHM || link->nccl_link != NULL) {
    return bl_error_set(err, BL_PRECONDITION, "the path to it is not shm");
  }
  if (arena >= link->map_count) {
    return bl_error_set(err, BL_INVALID, "it shares %zu", link->map_count);
  }
  link->pinned_attempt = transport->attempt;
  *base = link->maps[arena].base;
  *bytes = link->maps[arena].bytes;
  return BL_OK;
}

bl_status_t bl_transport_peer_arena(bl_transport_t *transport, int32_t peer, size_t arena, const uint8_t **base,
                                    uint64_t *bytes, bl_error_t *err) {
  pthread_mutex_lock(&transport->mutex);
  bl_status_t status = find_arena(transport, peer, arena, base, bytes, err);
  pthread_mutex_unlock(&transport->mutex);
  if (status != BL_OK) {
    (void)bl_error_prefix(err, "arena %zu of %s", arena, BL__NAME(transport, peer));
  }
  return status;
}

bool bl_transport_peer_arenas_live(bl_transport_t *transport, int32_t stage) {
  pthread_mutex_lock(&transport->mutex);
  const bl__peer_t *peer = bl__transport_find(transport, stage);
  const bool live = peer != NULL && peer->link != NULL && bl__link_is_pinned(peer->link);
  pthread_mutex_unlock(&transport->mutex);
  return live;
}

void bl_transport_abort(bl_transport_t *transport) {
  pthread_mutex_lock(&transport->mutex);
  transport->aborted = true;
  bl__transport_changed(transport);
  pthread_mutex_unlock(&transport->mutex);
}

// Returns the arena that holds [source, source + bytes), -1 if none does.
static int arena_of(const bl__arenas_t *arenas, const uint8_t *source, uint64_t bytes, uint64_t *offset) {
  for (size_t i = 0; i < arenas->count; i++) {
    const bl_arena_t *arena = &arenas->at[i];
    if (source >= arena->base && source < arena->base + arena->bytes &&
        bytes <= arena->bytes - (uint64_t)(source - arena->base)) {
      *offset = (uint64_t)(source - arena->base);
      return (int)i;
    }
  }
  return -1;
}

static bl_status_t explain_post(const bl_transport_t *transport, bl_status_t status, bl_tensor_role_t role,
                                int32_t peer, bl_tensor_key_t key, uint64_t bytes, uint64_t peer_bytes,
                                bl_error_t *err) {
  char text[TEXT_BYTES];
  if (status == BL_OK || err == NULL) {
    return status;
  }
  describe(transport, role, peer, key, text);
  switch (status) {
  case BL_PRECONDITION:
    return bl_error_set(err, status, "%s: posted already, or no attempt has begun", text);
  case BL_EXHAUSTED:
    return bl_error_set(err, status, "%s: %u tensors are in flight already; plan more", text, transport->max_in_flight);
  default:
    return bl_error_set(err, status, "%s: %" PRIu64 " bytes here, %" PRIu64 " bytes at the peer", text, bytes,
                        peer_bytes);
  }
}

static bl_status_t post(bl_transport_t *transport, bl_tensor_role_t role, int32_t stage, bl_tensor_key_t key,
                        void *destination, const void *source, uint64_t bytes, bl_error_t *err) {
  char text[TEXT_BYTES];
  if (bytes == 0 || bytes > BL_FRAME_MAX_BYTES || (unsigned)key.direction >= BL_DIRECTIONS) {
    return bl_error_set(err, BL_INVALID, "%s: %" PRIu64 " bytes or its direction are out of range",
                        describe(transport, role, stage, key, text), bytes);
  }
  uint64_t peer_bytes = 0, offset = 0;
  bl_status_t status;
  bl_error_t why = {0};
  pthread_mutex_lock(&transport->mutex);
  bl__peer_t *peer = bl__transport_find(transport, stage);
  if (transport->aborted) {
    status =
        bl_error_set(err, BL_CANCELLED, "%s: the attempt was aborted", describe(transport, role, stage, key, text));
  } else if (peer == NULL) {
    status =
        bl_error_set(err, BL_INVALID, "%s: no such peer is connected", describe(transport, role, stage, key, text));
  } else if (peer->link == NULL) {
    status = bl_error_set(err, peer->lost, "%s: %s", describe(transport, role, stage, key, text), peer->reason);
  } else if (has_channels(peer) && bl__nccl_link_is_broken(peer->nccl_link, transport->attempt, &why)) {
    status = bl_error_set(err, why.status, "%s: %s", describe(transport, role, stage, key, text), why.text);
  } else if (role == BL_TENSOR_RECEIVE) {
    status = bl_exchange_post_receive(peer->exchange, key, destination, bytes, &peer_bytes);
    explain_post(transport, status, role, stage, key, bytes, peer_bytes, err);
  } else {
    const bl__link_t *link = peer->link;
    const int arena =
        arena_of(bl__link_is_direct(link) ? &transport->of_device : &transport->of_host, source, bytes, &offset);
    if (arena < 0 && link->nccl_link == NULL && bl_path_is_unix(link->path)) {
      status = bl_error_set(err, BL_INVALID, "%s: its source lies in no arena that was given to the transport",
                            describe(transport, role, stage, key, text));
    } else {
      status = bl_exchange_post_send(peer->exchange, key, source, bytes, arena < 0 ? 0 : (uint32_t)arena, offset,
                                     &peer_bytes);
      explain_post(transport, status, role, stage, key, bytes, peer_bytes, err);
    }
  }
  pthread_mutex_unlock(&transport->mutex);
  if (status == BL_OK) {
    bl__transport_wake(transport);
  }
  return status;
}

bl_status_t bl_transport_post_receive(bl_transport_t *transport, int32_t peer, bl_tensor_key_t key, void *destination,
                                      uint64_t bytes, bl_error_t *err) {
  return post(transport, BL_TENSOR_RECEIVE, peer, key, destination, NULL, bytes, err);
}

// The yield: the post may have woken the transfer thread on the processor of this thread. Without it a kernel that does
// not preempt lets this thread compute until its next tick while the peer waits: 1 to 3 ms instead of 50 us. The
// transfer thread needs about 30 us, and then this thread continues.
bl_status_t bl_transport_post_send(bl_transport_t *transport, int32_t peer, bl_tensor_key_t key, const void *source,
                                   uint64_t bytes, bl_error_t *err) {
  bl_status_t status = post(transport, BL_TENSOR_SEND, peer, key, NULL, source, bytes, err);
  sched_yield();
  return status;
}

// Mutex held. Returns true if the wait is over with *status.
static bool is_over(bl_transport_t *transport, bl_tensor_role_t role, int32_t stage, bl_tensor_key_t key,
                    bl_status_t *status, bl_error_t *err) {
  char text[TEXT_BYTES];
  bl__peer_t *peer = bl__transport_find(transport, stage);
  if (transport->aborted) {
    *status =
        bl_error_set(err, BL_CANCELLED, "%s: the attempt was aborted", describe(transport, role, stage, key, text));
    return true;
  }
  if (peer == NULL) {
    *status =
        bl_error_set(err, BL_INVALID, "%s: no such peer is connected", describe(transport, role, stage, key, text));
    return true;
  }
  bl_tensor_t *tensor = bl_exchange_find(peer->exchange, role, key);
  if (tensor != NULL && tensor->complete) {
    bl_exchange_consume(peer->exchange, tensor);
    *status = BL_OK;
    return true;
  }
  if (peer->link == NULL) {
    *status = bl_error_set(err, peer->lost, "%s: %s", describe(transport, role, stage, key, text), peer->reason);
    return true;
  }
  bl_error_t why = {0};
  if (has_channels(peer) && bl__nccl_link_is_broken(peer->nccl_link, transport->attempt, &why)) {
    *status = bl_error_set(err, why.status, "%s: %s", describe(transport, role, stage, key, text), why.text);
    return true;
  }
  if (tensor == NULL && role == BL_TENSOR_RECEIVE) {
    *status = bl_error_set(err, BL_PRECONDITION, "%s: its receive was not posted",
                           describe(transport, role, stage, key, text));
    return true;
  }
  *status = BL_OK;
  return tensor == NULL;
}

// Called without the mutex. Returns once something has changed or the spin is over.
static void spin(bl_transport_t *transport, uint32_t changes) {
  uint64_t end_ns = bl_clock_now_ns() + BL__TRANSPORT_SPIN_NS;
  do {
    for (int i = 0; i < 32; i++) {
      if (atomic_load_explicit(&transport->changes, memory_order_relaxed) != changes) {
        return;
      }
      bl_thread_relax();
    }
  } while (bl_clock_now_ns() < end_ns);
}

// Mutex held. Makes the wait visible to bl_transport_waits. NULL if all entries are in use; the wait is then not shown.
static bl_transport_wait_t *show_wait(bl_transport_t *transport, int32_t stage, int32_t micro_batch,
                                      const char what[TEXT_BYTES]) {
  for (size_t i = 0; i < BL__TRANSPORT_MAX_WAITS; i++) {
    bl_transport_wait_t *wait = &transport->waits[i];
    if (wait->since_ns == 0) {
      memcpy(wait->what, what, TEXT_BYTES);
      wait->peer = stage;
      wait->micro_batch = micro_batch;
      wait->since_ns = bl_clock_now_ns();
      return wait;
    }
  }
  return NULL;
}

static bl_status_t wait_for(bl_transport_t *transport, bl_tensor_role_t role, int32_t stage, bl_tensor_key_t key,
                            uint64_t deadline_ns, bl_error_t *err) {
  bl_status_t status = BL_OK;
  pthread_mutex_lock(&transport->mutex);
  if (is_over(transport, role, stage, key, &status, err)) {
    pthread_mutex_unlock(&transport->mutex);
    return status;
  }
  char what[TEXT_BYTES];
  bl_transport_wait_t *shown =
      show_wait(transport, stage, (int32_t)key.micro_batch, describe(transport, role, stage, key, what));
  uint32_t changes = atomic_load(&transport->changes);
  pthread_mutex_unlock(&transport->mutex);
  spin(transport, changes);
  pthread_mutex_lock(&transport->mutex);
  while (!is_over(transport, role, stage, key, &status, err)) {
    uint64_t now = bl_clock_now_ns();
    if (now >= deadline_ns) {
      char text[TEXT_BYTES];
      status = bl_error_set(err, BL_DEADLINE, "%s: nothing came before the deadline",
                            describe(transport, role, stage, key, text));
      break;
    }
    (void)bl_condition_wait(&transport->changed, &transport->mutex, deadline_ns);
  }
  if (shown != NULL) {
    shown->since_ns = 0;
  }
  pthread_mutex_unlock(&transport->mutex);
  return status;
}

bl_status_t bl_transport_wait_received(bl_transport_t *transport, int32_t peer, bl_tensor_key_t key,
                                       uint64_t deadline_ns, bl_error_t *err) {
  return wait_for(transport, BL_TENSOR_RECEIVE, peer, key, deadline_ns, err);
}

bl_status_t bl_transport_wait_sent(bl_transport_t *transport, int32_t peer, bl_tensor_key_t key, uint64_t deadline_ns,
                                   bl_error_t *err) {
  return wait_for(transport, BL_TENSOR_SEND, peer, key, deadline_ns, err);
}

// Returns whether a wait for the tensor would return at once.
static bool would_return(bl_transport_t *transport, bl_tensor_role_t role, int32_t stage, bl_tensor_key_t key) {
  pthread_mutex_lock(&transport->mutex);
  bl__peer_t *peer = bl__transport_find(transport, stage);
  bl_tensor_t *tensor = peer != NULL ? bl_exchange_find(peer->exchange, role, key) : NULL;
  bl_error_t why;
  bool over = transport->aborted || peer == NULL || peer->link == NULL || tensor == NULL || tensor->complete ||
              (has_channels(peer) && bl__nccl_link_is_broken(peer->nccl_link, transport->attempt, &why));
  pthread_mutex_unlock(&transport->mutex);
  return over;
}

bool bl_transport_received(bl_transport_t *transport, int32_t stage, bl_tensor_key_t key) {
  return would_return(transport, BL_TENSOR_RECEIVE, stage, key);
}

bool bl_transport_sent(bl_transport_t *transport, int32_t stage, bl_tensor_key_t key) {
  return would_return(transport, BL_TENSOR_SEND, stage, key);
}

// ---- notes

// Mutex held. Returns why nothing comes from this peer any more, or BL_OK.
static bl_status_t check_note_peer(bl_transport_t *transport, const bl__peer_t *peer, const char *what,
                                   bl_error_t *err) {
  if (transport->aborted) {
    return bl_error_set(err, BL_CANCELLED, "%s: the attempt was aborted", what);
  }
  if (peer == NULL) {
    return bl_error_set(err, BL_INVALID, "%s: no such peer is connected", what);
  }
  if (peer->link == NULL) {
    return bl_error_set(err, peer->lost, "%s: %s", what, peer->reason);
  }
  return peer->links != peer->links_at_begin
             ? bl_error_set(err, BL_UNAVAILABLE, "%s: its link was replaced during the attempt", what)
             : BL_OK;
}

bl_status_t bl_transport_post_note(bl_transport_t *transport, int32_t stage, uint32_t number,
                                   const uint8_t body[BL_NOTE_BYTES], bl_error_t *err) {
  char what[TEXT_BYTES];
  snprintf(what, sizeof what, "note %u to %s", number, BL__NAME(transport, stage));
  pthread_mutex_lock(&transport->mutex);
  bl__peer_t *peer = bl__transport_find(transport, stage);
  bl_status_t status = check_note_peer(transport, peer, what, err);
  bl__note_t note = {.attempt = transport->attempt, .number = number};
  memcpy(note.body, body, sizeof note.body);
  if (status == BL_OK && !bl__notes_put(&peer->said, &note)) {
    status = bl_error_set(err, BL_EXHAUSTED, "%s: %u wait already", what, BL__NOTES);
  }
  pthread_mutex_unlock(&transport->mutex);
  if (status == BL_OK) {
    bl__transport_wake(transport);
  }
  return status;
}

// Mutex held. Returns true if the wait is over with *status.
static bool note_is_over(bl_transport_t *transport, int32_t stage, uint32_t number, const char *what, bl__note_t *note,
                         bl_status_t *status, bl_error_t *err) {
  bl__peer_t *peer = bl__transport_find(transport, stage);
  *status = BL_OK;
  if (peer != NULL && !transport->aborted && bl__notes_take(&peer->heard, transport->attempt, number, note)) {
    return true;
  }
  *status = check_note_peer(transport, peer, what, err);
  return *status != BL_OK;
}

bl_status_t bl_transport_wait_note(bl_transport_t *transport, int32_t stage, uint32_t number, uint64_t deadline_ns,
                                   uint8_t body[BL_NOTE_BYTES], bl_error_t *err) {
  bl_status_t status;
  bl__note_t note;
  char what[TEXT_BYTES];
  snprintf(what, sizeof what, "note %u from %s", number, BL__NAME(transport, stage));
  pthread_mutex_lock(&transport->mutex);
  bool over = note_is_over(transport, stage, number, what, &note, &status, err);
  bl_transport_wait_t *shown = over ? NULL : show_wait(transport, stage, -1, what);
  const uint32_t changes = atomic_load(&transport->changes);
  if (!over) {
    pthread_mutex_unlock(&transport->mutex);
    spin(transport, changes);
    pthread_mutex_lock(&transport->mutex);
  }
  while (!over && !(over = note_is_over(transport, stage, number, what, &note, &status, err))) {
    if (bl_clock_now_ns() >= deadline_ns) {
      status = bl_error_set(err, BL_DEADLINE, "%s: nothing came before the deadline", what);
      break;
    }
    (void)bl_condition_wait(&transport->changed, &transport->mutex, deadline_ns);
  }
  if (shown != NULL) {
    shown->since_ns = 0;
  }
  pthread_mutex_unlock(&transport->mutex);
  if (status == BL_OK) {
    memcpy(body, note.body, sizeof note.body);
  }
  return status;
}

size_t bl_transport_waits(bl_transport_t *transport, bl_transport_wait_t *waits, size_t capacity) {
  size_t count = 0;
  pthread_mutex_lock(&transport->mutex);
  for (size_t i = 0; i < BL__TRANSPORT_MAX_WAITS; i++) {
    if (transport->waits[i].since_ns != 0 && count++ < capacity) {
      waits[count - 1] = transport->waits[i];
    }
  }
  const bl__connect_t *connect = transport->connect;
  for (size_t i = 0; connect != NULL && i < connect->peer_count; i++) {
    const bl__connect_peer_t *peer = &connect->peers[i];
    if (!peer->up && count++ < capacity) {
      bl_transport_wait_t *wait = &waits[count - 1];
      *wait = (bl_transport_wait_t){.peer = peer->stage, .micro_batch = -1, .since_ns = connect->since_ns};
      const bl__peer_t *known = bl__transport_find(transport, peer->stage);
      const bool meets = known != NULL && has_channels(known);
      snprintf(wait->what, sizeof wait->what, "%s %s",
               meets                            ? "communicators with"
               : peer->stage > transport->stage ? "link to"
                                                : "link from",
               BL__NAME(transport, peer->stage));
    }
  }
  pthread_mutex_unlock(&transport->mutex);
  return count;
}

size_t bl_transport_paths(bl_transport_t *transport, bl_transport_path_t *paths, size_t capacity) {
  pthread_mutex_lock(&transport->mutex);
  size_t count = transport->peer_count;
  for (size_t i = 0; i < count && i < capacity; i++) {
    const bl__peer_t *peer = transport->peers[i];
    paths[i] = (bl_transport_path_t){
        .peer = peer->stage, .connected = peer->link != NULL, .path = peer->path, .mapped_bytes = peer->mapped_bytes};
    snprintf(paths[i].reason, sizeof paths[i].reason, "%s", peer->reason);
  }
  pthread_mutex_unlock(&transport->mutex);
  return count;
}

bl_transport_counters_t bl_transport_counters(bl_transport_t *transport) {
  pthread_mutex_lock(&transport->mutex);
  bl_transport_counters_t counters = transport->counters;
  pthread_mutex_unlock(&transport->mutex);
  return counters;
}

uint64_t bl_transport_take_cross_machine_bytes(bl_transport_t *transport) {
  pthread_mutex_lock(&transport->mutex);
  uint64_t bytes = transport->counters.cross_machine_bytes - transport->taken_cross_machine_bytes;
  transport->taken_cross_machine_bytes = transport->counters.cross_machine_bytes;
  pthread_mutex_unlock(&transport->mutex);
  return bytes;
}
