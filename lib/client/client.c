// SPDX-License-Identifier: Apache-2.0
#include "client/client.h"

#include "client/client_core.h"
#include "datapath/block.h"
#include "datapath/door.h"
#include "sys/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define CLOSE_MS        UINT64_C(1000)
#define GIVE_UP_POLL_US 20

// ---- callers ------------------------------------------------------------------------------------------------------------

// An unused question; waits for one when all are in use.
static bl__question_t *new_question(bl_client_t *client, bl__verb_t verb) {
  pthread_mutex_lock(&client->mutex);
  for (;;) {
    for (size_t i = 0; i < sizeof client->questions / sizeof client->questions[0]; i++) {
      if (!client->questions[i].used) {
        bl__question_t *question = &client->questions[i];
        *question = (bl__question_t){.client = client,
                                     .verb = verb,
                                     .used = true,
                                     .deadline_ns = bl_clock_now_ns() + client->deadline_ms * BL_NS_PER_MS,
                                     .message = {.handle = bl__on_question}};
        pthread_mutex_unlock(&client->mutex);
        return question;
      }
    }
    pthread_cond_wait(&client->changed, &client->mutex);
  }
}

static void free_question(bl__question_t *question) {
  bl_client_t *client = question->client;
  pthread_mutex_lock(&client->mutex);
  question->used = false;
  pthread_cond_signal(&client->changed);
  pthread_mutex_unlock(&client->mutex);
}

// Every question ends by its deadline at the latest: waiting needs none of its own.
static void wait_over(bl__question_t *question) {
  bl_client_t *client = question->client;
  pthread_mutex_lock(&client->mutex);
  while (!question->over) {
    pthread_cond_wait(&client->ended[question - client->questions], &client->mutex);
  }
  pthread_mutex_unlock(&client->mutex);
}

static bl_status_t ask(bl__question_t *question) {
  bl_loop_post(question->client->loop, &question->message);
  wait_over(question);
  return question->err.status;
}

static bl_status_t report(const bl__question_t *question, bl_error_t *err) {
  if (err != NULL) {
    *err = question->err;
  }
  return question->err.status;
}

// Begins a use of a room: from one state to another.
static bl_status_t claim(bl_client_t *client, uint64_t id, bl__room_state_t from, bl__room_state_t to, const char *what,
                         uint64_t *generation, uint64_t *room_bytes, bl_error_t *err) {
  static const char *const names[] = {"empty", "being filled", "full", "being emptied", "of unknown content"};
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
  } else {
    room->state = to;
    *generation = room->generation;
    *room_bytes = room->bytes;
  }
  pthread_mutex_unlock(&client->mutex);
  return status;
}

// Ends it. A generation of 0 means that the room is gone.
static void settle_room(bl_client_t *client, uint64_t id, bl__room_state_t state, uint64_t generation) {
  pthread_mutex_lock(&client->mutex);
  bl__room_t *room = bl__room_find(client, id);
  if (room != NULL && generation == 0) {
    size_t index = (size_t)(room - client->rooms);
    memmove(room, room + 1, (client->room_count - index - 1) * sizeof *room);
    client->room_count--;
  } else if (room != NULL) {
    room->state = state;
    room->generation = generation;
  }
  pthread_mutex_unlock(&client->mutex);
}

static bool find_source(const bl_client_t *client, const void *source, uint64_t bytes, bl__question_t *question) {
  const uint8_t *at = source;
  for (size_t i = 0; i < client->source_count; i++) {
    const bl_arena_t *arena = &client->sources[i];
    if (at >= arena->base && at < arena->base + arena->bytes && bytes <= (uint64_t)(arena->base + arena->bytes - at)) {
      question->source_arena = (uint32_t)i;
      question->source_offset = (uint64_t)(at - arena->base);
      return true;
    }
  }
  return false;
}

// `known`: the checksum, or NULL to compute it.
static bl_status_t start_evict(bl_client_t *client, uint64_t id, const void *source, uint64_t bytes,
                               const uint64_t *known, const bl_client_label_t *label, bl_client_ticket_t *ticket,
                               bl_error_t *err) {
  bl__question_t where = {0};
  if (bytes == 0 || !find_source(client, source, bytes, &where)) {
    return bl_error_set(err, BL_INVALID, "cannot evict %" PRIu64 " bytes: they lie in no source arena of the client",
                        bytes);
  }
  uint64_t generation = 0, room_bytes = 0;
  bl_status_t status = claim(client, id, BL__ROOM_EMPTY, BL__ROOM_EVICTING, "evict", &generation, &room_bytes, err);
  if (status != BL_OK) {
    return status;
  }
  if (bytes > room_bytes) {
    settle_room(client, id, BL__ROOM_EMPTY, generation);
    return bl_error_set(err, BL_INVALID,
                        "cannot evict: a block of %" PRIu64 " bytes does not fit room %" PRIu64 " of %" PRIu64, bytes,
                        id, room_bytes);
  }
  uint64_t checksum = known != NULL ? *known : bl_block_checksum(source, bytes);
  bl__question_t *question = new_question(client, BL__ASK_EVICT);
  question->id = id;
  question->generation = generation;
  question->bytes = bytes;
  question->checksum = checksum;
  question->source_arena = where.source_arena;
  question->source_offset = where.source_offset;
  question->label = label != NULL ? *label : (bl_client_label_t){0};
  bl_loop_post(client->loop, &question->message);
  ticket->slot = (uint32_t)(question - client->questions);
  return BL_OK;
}

bl_status_t bl_client_evict_start(bl_client_t *client, uint64_t id, const void *source, uint64_t bytes,
                                  const bl_client_label_t *label, bl_client_ticket_t *ticket, bl_error_t *err) {
  return start_evict(client, id, source, bytes, NULL, label, ticket, err);
}

// After a request about a room that was not granted: whether it was carried out is unknown unless the store said so.
static bl__room_state_t state_after(const bl_error_t *err, bl__room_state_t before) {
  return err->status == BL_DEADLINE || err->status == BL_UNAVAILABLE ? BL__ROOM_UNKNOWN : before;
}

bl_status_t bl_client_evict_wait(bl_client_t *client, bl_client_ticket_t ticket, bl_error_t *err) {
  bl__question_t *question = &client->questions[ticket.slot];
  wait_over(question);
  bl_status_t status = report(question, err);
  if (status == BL_OK) {
    settle_room(client, question->id, BL__ROOM_FULL, question->generation);
    pthread_mutex_lock(&client->mutex);
    client->counters.evicted++;
    client->counters.evicted_bytes += question->bytes;
    pthread_mutex_unlock(&client->mutex);
  } else if (status == BL_DATA_LOSS || status == BL_IO) { // not whole, says the store: this use of the room is over
    settle_room(client, question->id, BL__ROOM_EMPTY, question->generation + 1);
  } else {
    settle_room(client, question->id, state_after(&question->err, BL__ROOM_EMPTY), question->generation);
  }
  free_question(question);
  return status;
}

bl_status_t bl_client_evict(bl_client_t *client, uint64_t room, const void *source, uint64_t bytes,
                            const bl_client_label_t *label, bl_error_t *err) {
  bl_client_ticket_t ticket = {0};
  bl_status_t status = bl_client_evict_start(client, room, source, bytes, label, &ticket, err);
  return status == BL_OK ? bl_client_evict_wait(client, ticket, err) : status;
}

bl_status_t bl_client_evict_known(bl_client_t *client, uint64_t room, const void *source, uint64_t bytes,
                                  uint64_t checksum, const bl_client_label_t *label, bl_error_t *err) {
  bl_client_ticket_t ticket = {0};
  bl_status_t status = start_evict(client, room, source, bytes, &checksum, label, &ticket, err);
  return status == BL_OK ? bl_client_evict_wait(client, ticket, err) : status;
}

// Tells the store that a use of a room is over.
static bl_status_t release(bl_client_t *client, uint64_t id, uint64_t generation, const uint64_t *checksum,
                           bl_error_t *err) {
  bl__question_t *question = new_question(client, BL__ASK_RELEASE);
  question->id = id;
  question->generation = generation;
  question->loaded = checksum != NULL;
  question->checksum = checksum != NULL ? *checksum : 0;
  bl_status_t status = ask(question);
  if (status == BL_OK) {
    settle_room(client, id, BL__ROOM_EMPTY, question->answer_generation);
  } else if (status == BL_DATA_LOSS) {
    settle_room(client, id, BL__ROOM_EMPTY, generation + 1);
  } else {
    settle_room(client, id, state_after(&question->err, BL__ROOM_FULL), generation);
  }
  (void)report(question, err);
  free_question(question);
  return status;
}

// Whoever sets its flag first is seen by the other: either nothing is written, or giving up waits until it was.
static bool landing_begin(bl_client_landing_t *landing) {
  atomic_store(&landing->writing, true);
  if (atomic_load(&landing->given_up)) {
    atomic_store(&landing->writing, false);
    return false;
  }
  return true;
}

void bl_client_landing_give_up(bl_client_landing_t *landing) {
  atomic_store(&landing->given_up, true);
  while (atomic_load(&landing->writing)) {
    usleep(GIVE_UP_POLL_US); // the copy ends between two pieces
  }
}

bl_status_t bl_client_load(bl_client_t *client, uint64_t id, void *destination, uint64_t bytes, bl_error_t *err) {
  bl_client_landing_t landing = {0};
  return bl_client_load_unless(client, id, destination, bytes, &landing, err);
}

bl_status_t bl_client_load_unless(bl_client_t *client, uint64_t id, void *destination, uint64_t bytes,
                                  bl_client_landing_t *landing, bl_error_t *err) {
  uint64_t generation = 0, room_bytes = 0;
  bl_status_t status = claim(client, id, BL__ROOM_FULL, BL__ROOM_LOADING, "load", &generation, &room_bytes, err);
  if (status != BL_OK) {
    return status;
  }
  bl__question_t *question = new_question(client, BL__ASK_LOAD);
  question->id = id;
  question->generation = generation;
  status = ask(question);
  (void)report(question, err);
  uint64_t offset = question->answer_offset, block_bytes = question->answer_bytes, wanted = question->answer_checksum;
  bool inside = status == BL_OK && offset <= client->map.bytes && block_bytes <= client->map.bytes - offset;
  free_question(question);
  if (status == BL_OK && !inside) {
    status = bl_error_set(err, BL_INTERNAL, "%s answers with a room outside of its memory", client->store);
  } else if (status == BL_OK && block_bytes != bytes) {
    status =
        bl_error_set(err, BL_INVALID, "cannot load: the block in room %" PRIu64 " has %" PRIu64 " bytes, not %" PRIu64,
                     id, block_bytes, bytes);
  }
  if (status != BL_OK) {
    settle_room(client, id, BL__ROOM_FULL, generation);
    return status;
  }
  uint64_t checksum = 0;
  bool lands = landing_begin(landing);
  if (lands) {
    status = bl_block_copy(destination, client->map.base + offset, bytes, &landing->given_up, &checksum);
    if (status == BL_OK && checksum != wanted) {
      memset(destination, 0, bytes);
    }
    atomic_store(&landing->writing, false);
  }
  if (!lands || status != BL_OK) {
    settle_room(client, id, BL__ROOM_FULL, generation);
    return bl_error_set(err, BL_CANCELLED, "the load of room %" PRIu64 " was given up", id);
  }
  // What becomes of the release is the room's affair: a load that is verified counts.
  (void)release(client, id, generation, &checksum, NULL);
  if (checksum != wanted) {
    return bl_error_set(err, BL_DATA_LOSS,
                        "the block in room %" PRIu64 " came back changed: checksum %016" PRIx64 ", not %016" PRIx64, id,
                        checksum, wanted);
  }
  pthread_mutex_lock(&client->mutex);
  client->counters.loaded++;
  client->counters.loaded_bytes += bytes;
  client->counters.bytes_copied += bytes;
  pthread_mutex_unlock(&client->mutex);
  return BL_OK;
}

bl_status_t bl_client_release(bl_client_t *client, uint64_t id, bl_error_t *err) {
  uint64_t generation = 0, room_bytes = 0;
  bl_status_t status = claim(client, id, BL__ROOM_FULL, BL__ROOM_LOADING, "release", &generation, &room_bytes, err);
  if (status == BL_OK) {
    status = release(client, id, generation, NULL, err);
  }
  if (status == BL_OK) {
    pthread_mutex_lock(&client->mutex);
    client->counters.released++;
    pthread_mutex_unlock(&client->mutex);
  }
  return status;
}

bl_status_t bl_client_reserve(bl_client_t *client, uint64_t plan, const bl_client_demand_t *demands,
                              size_t demand_count, bl_error_t *err) {
  bl__question_t *question = new_question(client, BL__ASK_RESERVE);
  question->plan = plan;
  question->demands = demands;
  question->demand_count = demand_count;
  (void)ask(question);
  bl_status_t status = report(question, err);
  free_question(question);
  return status;
}

bl_status_t bl_client_unreserve(bl_client_t *client, uint64_t plan, bl_error_t *err) {
  bl__question_t *question = new_question(client, BL__ASK_UNRESERVE);
  question->plan = plan;
  (void)ask(question);
  bl_status_t status = report(question, err);
  free_question(question);
  return status;
}

size_t bl_client_rooms(bl_client_t *client, uint64_t *rooms, size_t capacity) {
  pthread_mutex_lock(&client->mutex);
  size_t count = client->room_count;
  for (size_t i = 0; i < count && i < capacity; i++) {
    rooms[i] = client->rooms[i].id;
  }
  pthread_mutex_unlock(&client->mutex);
  return count;
}

bl_status_t bl_client_state(bl_client_t *client, bl_error_t *err) {
  pthread_mutex_lock(&client->mutex);
  bl_status_t status = client->lost.status;
  if (err != NULL) {
    *err = client->lost;
  }
  pthread_mutex_unlock(&client->mutex);
  return status;
}

bool bl_client_is_draining(bl_client_t *client) {
  pthread_mutex_lock(&client->mutex);
  bool draining = client->draining;
  pthread_mutex_unlock(&client->mutex);
  return draining;
}

bl_client_counters_t bl_client_counters(bl_client_t *client) {
  pthread_mutex_lock(&client->mutex);
  bl_client_counters_t counters = client->counters;
  pthread_mutex_unlock(&client->mutex);
  return counters;
}

// ---- open and close -----------------------------------------------------------------------------------------------------

static bl_status_t check_options(const bl_client_options_t *options, bl_error_t *err) {
  size_t length = options->job == NULL ? 0 : strnlen(options->job, BL_CLIENT_JOB_LENGTH + 1);
  if (length == 0 || length > BL_CLIENT_JOB_LENGTH) {
    return bl_error_set(err, BL_INVALID, "the name of a job has 1 to %d bytes", BL_CLIENT_JOB_LENGTH);
  }
  if (options->store == NULL || strlen(options->store) >= BL_RPC_ADDRESS_BYTES) {
    return bl_error_set(err, BL_INVALID, "a client needs the address of its store");
  }
  if (options->source_count < 1 || options->source_count > BL_DOOR_ARENAS) {
    return bl_error_set(err, BL_INVALID, "%zu source arenas: 1 to %d are possible", options->source_count,
                        BL_DOOR_ARENAS);
  }
  for (size_t i = 0; i < options->source_count; i++) {
    if (options->sources[i].fd < 0 || options->sources[i].bytes == 0) {
      return bl_error_set(err, BL_INVALID, "source arena %zu is not shareable: create it as BL_ARENA_SHAREABLE", i);
    }
  }
  return BL_OK;
}

static bl_status_t start(bl_client_t *client, bl_error_t *err) {
  if (pthread_create(&client->thread, NULL, bl__run, client) != 0) {
    return bl_error_set(err, BL_EXHAUSTED, "the system gives no thread for a store client");
  }
  client->thread_started = true;
  pthread_mutex_lock(&client->mutex);
  while (!client->started) {
    pthread_cond_wait(&client->changed, &client->mutex);
  }
  client->runs = client->lost.status == BL_OK;
  pthread_mutex_unlock(&client->mutex);
  return bl_client_state(client, err);
}

// Shows our memory to the store and maps its.
static bl_status_t connect_door(bl_client_t *client, bl_error_t *err) {
  bl_door_greeting_t greeting = {.session = client->session, .arena_count = (uint32_t)client->source_count};
  memcpy(greeting.key, client->key, sizeof greeting.key);
  int fds[BL_DOOR_ARENAS], fd = -1, arena_fd = -1;
  for (size_t i = 0; i < client->source_count; i++) {
    greeting.arena_bytes[i] = client->sources[i].bytes;
    fds[i] = client->sources[i].fd;
  }
  bl_door_welcome_t welcome = {0};
  uint64_t deadline_ns = bl_clock_now_ns() + client->deadline_ms * BL_NS_PER_MS;
  bl_status_t status = bl_door_knock(client->data_address, &greeting, fds, deadline_ns, &fd, &welcome, &arena_fd, err);
  if (status != BL_OK) {
    return status;
  }
  status = bl_shared_map_open(&client->map, arena_fd, welcome.arena_bytes, err);
  close(arena_fd);
  if (status != BL_OK) {
    close(fd);
    return status;
  }
  atomic_store(&client->door_fd, fd); // from here on the loop renews and watches
  return BL_OK;
}

bl_status_t bl_client_open(const bl_client_options_t *options, bl_client_t **out, bl_error_t *err) {
  bl_status_t status = check_options(options, err);
  if (status != BL_OK) {
    return status;
  }
  bl_client_t *client = calloc(1, sizeof *client);
  if (client == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for a store client");
  }
  atomic_init(&client->door_fd, -1);
  pthread_mutex_init(&client->mutex, NULL);
  pthread_cond_init(&client->changed, NULL);
  for (size_t i = 0; i < sizeof client->ended / sizeof client->ended[0]; i++) {
    pthread_cond_init(&client->ended[i], NULL);
  }
  client->stop.handle = bl__on_stop;
  snprintf(client->job, sizeof client->job, "%s", options->job);
  snprintf(client->store, sizeof client->store, "%s", options->store);
  client->stage = options->stage;
  client->arena_bytes = options->arena_bytes;
  client->ttl_ms = options->ttl_ms;
  client->deadline_ms = options->deadline_ms != 0 ? options->deadline_ms : BL_CLIENT_DEADLINE;
  client->source_count = options->source_count;
  memcpy(client->sources, options->sources, options->source_count * sizeof *options->sources);
  if (getrandom(client->holder, sizeof client->holder, 0) != (ssize_t)sizeof client->holder) {
    status = bl_error_set(err, BL_IO, "the system gives no random numbers");
  }
  if (status == BL_OK) {
    status = start(client, err);
  }
  if (status == BL_OK) {
    uint64_t before_ns = bl_clock_now_ns(); // the TTL counts from before the request left
    bl__question_t *question = new_question(client, BL__ASK_OPEN);
    (void)ask(question);
    status = report(question, err);
    free_question(question);
    client->renewed_ns = before_ns;
  }
  if (status == BL_OK) {
    status = connect_door(client, err);
  }
  if (status != BL_OK) {
    bl_client_close(client);
    return status;
  }
  *out = client;
  return BL_OK;
}

void bl_client_close(bl_client_t *client) {
  if (client == NULL) {
    return;
  }
  if (client->runs) {
    if (client->session != 0 && bl_client_state(client, NULL) == BL_OK) {
      bl__question_t *question = new_question(client, BL__ASK_CLOSE);
      question->deadline_ns = bl_clock_now_ns() + CLOSE_MS * BL_NS_PER_MS;
      (void)ask(question); // what fails ends by the store's own rules
      free_question(question);
    }
    bl_loop_post(client->loop, &client->stop);
  }
  if (client->thread_started) {
    pthread_join(client->thread, NULL);
  }
  bl_shared_map_close(&client->map);
  if (atomic_load(&client->door_fd) >= 0) {
    close(atomic_load(&client->door_fd));
  }
  pthread_cond_destroy(&client->changed);
  for (size_t i = 0; i < sizeof client->ended / sizeof client->ended[0]; i++) {
    pthread_cond_destroy(&client->ended[i]);
  }
  pthread_mutex_destroy(&client->mutex);
  free(client->rooms);
  free(client);
}
