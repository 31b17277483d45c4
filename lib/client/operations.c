// SPDX-License-Identifier: Apache-2.0
// What callers ask of the transfer thread: tickets, their starts and ends.
#include "client/client_core.h"
#include "sys/clock.h"
#include "sys/condition.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

// ---- tickets -----------------------------------------------------------------------------------------------------------

bl__operation_t *bl__operation_new(bl_client_t *client, bl__operation_verb_t verb) {
  pthread_mutex_lock(&client->mutex);
  for (;;) {
    for (uint32_t i = 0; i < BL_CLIENT_TICKETS; i++) {
      uint32_t slot = (client->operation_hint + i) % BL_CLIENT_TICKETS;
      bl__operation_t *operation = &client->operations[slot];
      if (!operation->used) {
        client->operation_hint = slot + 1;
        *operation = (bl__operation_t){.verb = verb,
                                       .used = true,
                                       .serial = operation->serial + 1,
                                       .fd = -1,
                                       .deadline_ns = bl_clock_now_ns() + client->deadline_ms * BL_NS_PER_MS};
        pthread_mutex_unlock(&client->mutex);
        return operation;
      }
    }
    pthread_cond_wait(&client->changed, &client->mutex);
  }
}

static void free_operation(bl_client_t *client, bl__operation_t *operation) {
  operation->used = false;
  pthread_cond_signal(&client->changed);
}

void bl__operation_submit(bl__operation_t *operation, bl_client_t *client, bl_client_ticket_t *ticket) {
  if (ticket != NULL) {
    *ticket = (bl_client_ticket_t){.slot = (uint32_t)(operation - client->operations), .serial = operation->serial};
  }
  pthread_mutex_lock(&client->mutex);
  operation->next = NULL;
  bool first = client->submitted_first == NULL;
  if (first) {
    client->submitted_first = operation;
  } else {
    client->submitted_last->next = operation;
  }
  client->submitted_last = operation;
  pthread_mutex_unlock(&client->mutex);
  if (first) {
    bl__transfer_wake(client);
  }
}

void bl__operation_end(bl_client_t *client, bl__operation_t *operation) {
  pthread_mutex_lock(&client->mutex);
  operation->over = true;
  pthread_cond_signal(&client->done[operation - client->operations]);
  pthread_mutex_unlock(&client->mutex);
}

// [mutex] NULL: the ticket has ended, or never was.
static bl__operation_t *find(bl_client_t *client, bl_client_ticket_t ticket) {
  bl__operation_t *operation = ticket.slot < BL_CLIENT_TICKETS ? &client->operations[ticket.slot] : NULL;
  return operation != NULL && operation->used && operation->serial == ticket.serial ? operation : NULL;
}

// [mutex] False: the deadline came first.
static bool wait_over(bl_client_t *client, bl__operation_t *operation, uint64_t deadline_ns) {
  pthread_cond_t *done = &client->done[operation - client->operations];
  while (!operation->over && (deadline_ns == UINT64_MAX || bl_clock_now_ns() < deadline_ns)) {
    (void)bl_condition_wait(done, &client->mutex, deadline_ns); // without one: the operation has a deadline of its own
  }
  return operation->over;
}

bl_status_t bl_client_wait(bl_client_t *client, bl_client_ticket_t ticket, uint64_t deadline_ns, bl_error_t *err) {
  bl_status_t status;
  pthread_mutex_lock(&client->mutex);
  bl__operation_t *operation = find(client, ticket);
  if (operation == NULL) {
    status = bl_error_set(err, BL_INVALID, "the ticket has ended already");
  } else if (!wait_over(client, operation, deadline_ns)) {
    status = bl_error_set(err, BL_DEADLINE, "the transfer of room %" PRIu64 " is still under way", operation->room);
  } else {
    status = operation->err.status;
    if (err != NULL) {
      *err = operation->err;
    }
    free_operation(client, operation);
  }
  pthread_mutex_unlock(&client->mutex);
  return status;
}

bool bl_client_poll(bl_client_t *client, bl_client_ticket_t ticket) {
  pthread_mutex_lock(&client->mutex);
  const bl__operation_t *operation = find(client, ticket);
  bool over = operation == NULL || operation->over;
  pthread_mutex_unlock(&client->mutex);
  return over;
}

void bl_client_cancel(bl_client_t *client, bl_client_ticket_t ticket) {
  pthread_mutex_lock(&client->mutex);
  bl__operation_t *operation = find(client, ticket);
  if (operation != NULL) {
    atomic_store_explicit(&operation->cancelled, true, memory_order_relaxed);
    atomic_store_explicit(&client->cancels, true, memory_order_relaxed);
  }
  pthread_mutex_unlock(&client->mutex);
  bl__transfer_wake(client);
}

void bl_client_abandon(bl_client_t *client, bl_client_ticket_t ticket) {
  bl_client_cancel(client, ticket);
  pthread_mutex_lock(&client->mutex);
  bl__operation_t *operation = find(client, ticket);
  // The transfer thread ends what is cancelled between two pieces of memory, whatever the store does.
  if (operation != NULL && wait_over(client, operation, UINT64_MAX)) {
    free_operation(client, operation);
  }
  pthread_mutex_unlock(&client->mutex);
}

// ---- starts ------------------------------------------------------------------------------------------------------------

// Begins a use of a room: from one state to another.
static bl_status_t claim(bl_client_t *client, bl__operation_verb_t verb, uint64_t id, uint64_t bytes,
                         uint64_t *generation, bl_error_t *err) {
  static const char *const verbs[] = {"evict", "load", "release"};
  static const char *const names[] = {"empty", "being filled", "full", "being emptied", "of unknown content"};
  const char *what = verbs[verb];
  bl__room_state_t from = verb == BL__EVICT ? BL__ROOM_EMPTY : BL__ROOM_FULL;
  bl_status_t status = BL_OK;
  pthread_mutex_lock(&client->mutex);
  bl__room_t *room = bl__room_find(client, id);
  if (client->lost.status != BL_OK) {
    status = client->lost.status;
    if (err != NULL) {
      *err = client->lost;
    }
  } else if (room == NULL) {
    status = bl_error_set(err, BL_NOT_FOUND, "cannot %s: the session has no room %" PRIu64, what, id);
  } else if (room->state != from) {
    status = bl_error_set(err, BL_PRECONDITION, "cannot %s: room %" PRIu64 " is %s", what, id, names[room->state]);
  } else if (verb == BL__EVICT && bytes > room->bytes) {
    status = bl_error_set(err, BL_INVALID,
                          "cannot evict: a block of %" PRIu64 " bytes does not fit room %" PRIu64 " of %" PRIu64, bytes,
                          id, room->bytes);
  } else if (verb == BL__LOAD && bytes != room->block_bytes) {
    status =
        bl_error_set(err, BL_INVALID, "cannot load: the block in room %" PRIu64 " has %" PRIu64 " bytes, not %" PRIu64,
                     id, room->block_bytes, bytes);
  } else {
    room->state = verb == BL__EVICT ? BL__ROOM_EVICTING : BL__ROOM_LOADING;
    *generation = room->generation;
    if (verb == BL__EVICT) {
      room->block_bytes = bytes;
    }
  }
  pthread_mutex_unlock(&client->mutex);
  return status;
}

// The source that the bytes lie in; on tcp they may lie anywhere.
static bool find_source(bl_client_t *client, const uint8_t *at, uint64_t bytes, uint32_t *number, uint64_t *offset) {
  bool found = client->by == BL_PATH_TCP;
  pthread_mutex_lock(&client->mutex);
  for (uint32_t i = 0; i < client->source_capacity && !found; i++) {
    const bl__client_source_t *source = &client->sources[i];
    if (source->used && source->shown && at >= source->base && at < source->base + source->bytes &&
        bytes <= (uint64_t)(source->base + source->bytes - at)) {
      *number = i;
      *offset = (uint64_t)(at - source->base);
      found = true;
    }
  }
  pthread_mutex_unlock(&client->mutex);
  return found;
}

static bl_status_t start_evict(bl_client_t *client, uint64_t id, const void *from, uint64_t bytes,
                               const uint64_t *checksum, const bl_client_label_t *label, bl_client_ticket_t *ticket,
                               bl_error_t *err) {
  uint32_t source = 0;
  uint64_t offset = 0, generation = 0;
  if (bytes == 0 || from == NULL || !find_source(client, from, bytes, &source, &offset)) {
    return bl_error_set(err, BL_INVALID, "cannot evict %" PRIu64 " %s: %s", bytes, bytes == 1 ? "byte" : "bytes",
                        bytes == 0 ? "a block has at least one" : "they lie in no source of the client");
  }
  bl_status_t status = claim(client, BL__EVICT, id, bytes, &generation, err);
  if (status != BL_OK) {
    return status;
  }
  bl__operation_t *operation = bl__operation_new(client, BL__EVICT);
  operation->room = id;
  operation->generation = generation;
  operation->bytes = bytes;
  operation->from = from;
  operation->source = source;
  operation->source_offset = offset;
  operation->known = checksum != NULL;
  operation->checksum = checksum != NULL ? *checksum : 0;
  operation->label = label != NULL ? *label : (bl_client_label_t){0};
  bl__operation_submit(operation, client, ticket);
  return BL_OK;
}

bl_status_t bl_client_evict_start(bl_client_t *client, uint64_t id, const void *from, uint64_t bytes,
                                  const bl_client_label_t *label, bl_client_ticket_t *ticket, bl_error_t *err) {
  return start_evict(client, id, from, bytes, NULL, label, ticket, err);
}

bl_status_t bl_client_evict_start_known(bl_client_t *client, uint64_t id, const void *from, uint64_t bytes,
                                        uint64_t checksum, const bl_client_label_t *label, bl_client_ticket_t *ticket,
                                        bl_error_t *err) {
  return start_evict(client, id, from, bytes, &checksum, label, ticket, err);
}

bl_status_t bl_client_load_start(bl_client_t *client, uint64_t id, void *to, uint64_t bytes, bl_client_ticket_t *ticket,
                                 bl_error_t *err) {
  uint64_t generation = 0;
  bl_status_t status = claim(client, BL__LOAD, id, bytes, &generation, err);
  if (status != BL_OK) {
    return status;
  }
  bl__operation_t *operation = bl__operation_new(client, BL__LOAD);
  operation->room = id;
  operation->generation = generation;
  operation->bytes = bytes;
  operation->to = to;
  bl__operation_submit(operation, client, ticket);
  return BL_OK;
}

bl_status_t bl_client_release_start(bl_client_t *client, uint64_t id, bl_client_ticket_t *ticket, bl_error_t *err) {
  uint64_t generation = 0;
  bl_status_t status = claim(client, BL__RELEASE, id, 0, &generation, err);
  if (status != BL_OK) {
    return status;
  }
  bl__operation_t *operation = bl__operation_new(client, BL__RELEASE);
  operation->room = id;
  operation->generation = generation;
  bl__operation_submit(operation, client, ticket);
  return BL_OK;
}

bl_status_t bl_client_evict(bl_client_t *client, uint64_t room, const void *source, uint64_t bytes,
                            const bl_client_label_t *label, bl_error_t *err) {
  bl_client_ticket_t ticket = {0};
  bl_status_t status = bl_client_evict_start(client, room, source, bytes, label, &ticket, err);
  return status == BL_OK ? bl_client_wait(client, ticket, UINT64_MAX, err) : status;
}

bl_status_t bl_client_load(bl_client_t *client, uint64_t room, void *destination, uint64_t bytes, bl_error_t *err) {
  bl_client_ticket_t ticket = {0};
  bl_status_t status = bl_client_load_start(client, room, destination, bytes, &ticket, err);
  return status == BL_OK ? bl_client_wait(client, ticket, UINT64_MAX, err) : status;
}

bl_status_t bl_client_release(bl_client_t *client, uint64_t room, bl_error_t *err) {
  bl_client_ticket_t ticket = {0};
  bl_status_t status = bl_client_release_start(client, room, &ticket, err);
  return status == BL_OK ? bl_client_wait(client, ticket, UINT64_MAX, err) : status;
}

bl_status_t bl_client_evict_known(bl_client_t *client, uint64_t room, const void *source, uint64_t bytes,
                                  uint64_t checksum, const bl_client_label_t *label, bl_error_t *err) {
  bl_client_ticket_t ticket = {0};
  bl_status_t status = start_evict(client, room, source, bytes, &checksum, label, &ticket, err);
  return status == BL_OK ? bl_client_wait(client, ticket, UINT64_MAX, err) : status;
}

// ---- loads that another thread may give up -----------------------------------------------------------------------------

bl_status_t bl_client_load_unless(bl_client_t *client, uint64_t room, void *destination, uint64_t bytes,
                                  bl_client_landing_t *landing, bl_error_t *err) {
  atomic_store(&landing->writing, true);
  bl_status_t status = BL_CANCELLED;
  if (atomic_load(&landing->given_up)) {
    (void)bl_error_set(err, BL_CANCELLED, "given up by its caller");
  } else {
    status = bl_client_load_start(client, room, destination, bytes, &landing->ticket, err);
  }
  if (status == BL_OK) {
    atomic_store(&landing->client, client);
    if (atomic_load(&landing->given_up)) { // before it could see the ticket
      bl_client_cancel(client, landing->ticket);
    }
    status = bl_client_wait(client, landing->ticket, UINT64_MAX, err);
  }
  atomic_store(&landing->client, NULL);
  atomic_store(&landing->writing, false);
  return status;
}

void bl_client_landing_give_up(bl_client_landing_t *landing) {
  atomic_store(&landing->given_up, true);
  bl_client_t *client = atomic_load(&landing->client);
  if (client != NULL) {
    bl_client_cancel(client, landing->ticket);
  }
  while (atomic_load(&landing->writing)) { // until a piece of memory is copied
    struct timespec pause = {.tv_nsec = 50000};
    nanosleep(&pause, NULL);
  }
}
