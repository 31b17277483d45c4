// SPDX-License-Identifier: Apache-2.0
#include "client/client.h"

#include "client/client_core.h"
#include "datapath/machine.h"
#include "sys/clock.h"
#include "sys/condition.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#define CLOSE_MS UINT64_C(1000)

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

// ---- sources -----------------------------------------------------------------------------------------------------------

// A free number. [mutex] False: there is none.
static bool take_number(bl_client_t *client, const bl_client_source_t *source, uint32_t *number) {
  uint32_t free = 0;
  while (free < client->source_capacity && client->sources[free].used) {
    free++;
  }
  if (free == client->source_capacity) {
    uint32_t capacity = free == 0 ? 16 : 2 * free;
    bl__client_source_t *sources =
        capacity <= BL_CLIENT_SOURCES ? realloc(client->sources, capacity * sizeof *sources) : NULL;
    if (sources == NULL) {
      return false;
    }
    memset(sources + free, 0, (capacity - free) * sizeof *sources);
    client->sources = sources;
    client->source_capacity = capacity;
  }
  client->sources[free] =
      (bl__client_source_t){.used = true, .base = source->base, .bytes = source->bytes, .fd = source->fd};
  *number = free;
  return true;
}

// Shows or hides: on shm the store maps or unmaps, on tcp it need not know. On nccl what is hidden must be at rest.
static bl_status_t tell_store(bl_client_t *client, bl__operation_verb_t verb, uint32_t number, bl_error_t *err) {
  bl_status_t status = bl_client_state(client, err);
  bool rests = client->by == BL_PATH_NCCL && verb == BL__HIDE;
  if ((!client->shm && !rests) || status != BL_OK) {
    return status;
  }
  bl__operation_t *operation = bl__operation_new(client, verb);
  pthread_mutex_lock(&client->mutex);
  operation->source = number;
  operation->bytes = client->sources[number].bytes;
  operation->fd = verb == BL__SHOW ? client->sources[number].fd : -1;
  pthread_mutex_unlock(&client->mutex);
  bl_client_ticket_t ticket;
  bl__operation_submit(operation, client, &ticket);
  return bl_client_wait(client, ticket, UINT64_MAX, err);
}

static void set_shown(bl_client_t *client, uint32_t number, bool used, bool shown) {
  pthread_mutex_lock(&client->mutex);
  client->sources[number].used = used;
  client->sources[number].shown = shown;
  pthread_mutex_unlock(&client->mutex);
}

bl_status_t bl_client_add_source(bl_client_t *client, const bl_client_source_t *source, uint32_t *number,
                                 bl_error_t *err) {
  if (source->base == NULL || source->bytes == 0 || (client->shm && source->fd < 0)) {
    return bl_error_set(err, BL_INVALID, "a source needs memory and, on shm, its descriptor (BL_ARENA_SHAREABLE)");
  }
  uint32_t taken;
  pthread_mutex_lock(&client->mutex);
  bool free = take_number(client, source, &taken);
  pthread_mutex_unlock(&client->mutex);
  if (!free) {
    return bl_error_set(err, BL_EXHAUSTED, "no more sources: %d are possible", BL_CLIENT_SOURCES);
  }
  bl_status_t status = tell_store(client, BL__SHOW, taken, err);
  set_shown(client, taken, status == BL_OK, status == BL_OK);
  if (status == BL_OK) {
    *number = taken;
  }
  return status;
}

bl_status_t bl_client_withdraw_source(bl_client_t *client, uint32_t number, bl_error_t *err) {
  pthread_mutex_lock(&client->mutex);
  bool known = number < client->source_capacity && client->sources[number].used;
  pthread_mutex_unlock(&client->mutex);
  if (!known) {
    return bl_error_set(err, BL_NOT_FOUND, "the client has no source %" PRIu32, number);
  }
  set_shown(client, number, true, false);
  bl_status_t status = tell_store(client, BL__HIDE, number, err);
  bool gone = status == BL_OK || bl_client_state(client, NULL) != BL_OK; // a store that is lost reads nothing of ours
  set_shown(client, number, !gone, !gone);
  if (gone) {
    bl_error_clear(err);
  }
  return gone ? BL_OK : status;
}

// ---- looking -----------------------------------------------------------------------------------------------------------

bl_client_path_t bl_client_path(bl_client_t *client, char text[BL_CLIENT_PATH_BYTES]) {
  snprintf(text, BL_CLIENT_PATH_BYTES, "%s", client->path);
  return (bl_client_path_t)client->by;
}

// ---- open and close ----------------------------------------------------------------------------------------------------

uint64_t bl__process(void) {
  static _Atomic uint64_t process;
  uint64_t known = atomic_load(&process), drawn = 0;
  if (known == 0 && getrandom(&drawn, sizeof drawn, 0) == (ssize_t)sizeof drawn) {
    drawn |= 1; // not 0
    known = atomic_compare_exchange_strong(&process, &known, drawn) ? drawn : known;
  }
  return known;
}

static bl_status_t check_options(const bl_client_options_t *options, bl_error_t *err) {
  size_t length = options->job == NULL ? 0 : strnlen(options->job, BL_CLIENT_JOB_LENGTH + 1);
  if (length == 0 || length > BL_CLIENT_JOB_LENGTH) {
    return bl_error_set(err, BL_INVALID, "the name of a job has 1 to %d bytes", BL_CLIENT_JOB_LENGTH);
  }
  if (options->store == NULL || strlen(options->store) >= BL_RPC_ADDRESS_BYTES) {
    return bl_error_set(err, BL_INVALID, "a client needs the address of its store");
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

// Opens a session and its data connection; the transfer thread runs after it.
static bl_status_t begin_session(bl_client_t *client, bl_error_t *err) {
  if (getrandom(client->holder, sizeof client->holder, 0) != (ssize_t)sizeof client->holder) {
    return bl_error_set(err, BL_IO, "the system gives no random numbers");
  }
  uint64_t before_ns = bl_clock_now_ns(); // the TTL counts from before the request left
  bl__question_t *question = new_question(client, BL__ASK_OPEN);
  question->deadline_ns = before_ns + client->open_ms * BL_NS_PER_MS;
  (void)ask(question);
  bl_status_t status = report(question, err);
  free_question(question);
  client->renewed_ns = before_ns;
  if (status == BL_OK) {
    status = bl__connect_first(client, err);
  }
  if (status != BL_OK) {
    return status;
  }
  pthread_mutex_lock(&client->mutex);
  client->ending = false;
  pthread_mutex_unlock(&client->mutex);
  if (pthread_create(&client->transfer_thread, NULL, bl__transfer, client) != 0) {
    return bl_error_set(err, BL_EXHAUSTED, "the system gives no thread for a store client");
  }
  client->transfer_started = true;
  atomic_store(&client->connected, true);
  return BL_OK;
}

static void end_transfer(bl_client_t *client) {
  if (client->transfer_started) {
    pthread_mutex_lock(&client->mutex);
    client->ending = true;
    pthread_mutex_unlock(&client->mutex);
    bl__transfer_wake(client);
    pthread_join(client->transfer_thread, NULL);
    client->transfer_started = false;
  }
  bl__disconnect(client);
}

static bl_status_t create(const bl_client_options_t *options, bl_client_t **out, bl_error_t *err) {
  bl_client_t *client = calloc(1, sizeof *client);
  if (client == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for a store client");
  }
  pthread_mutex_init(&client->mutex, NULL);
  pthread_cond_init(&client->changed, NULL);
  for (size_t i = 0; i < BL__QUESTIONS; i++) {
    pthread_cond_init(&client->ended[i], NULL);
  }
  for (size_t i = 0; i < BL_CLIENT_TICKETS; i++) {
    bl_condition_init(&client->done[i]);
  }
  client->stop.handle = bl__on_stop;
  snprintf(client->job, sizeof client->job, "%s", options->job);
  snprintf(client->store, sizeof client->store, "%s", options->store);
  client->plan = options->plan;
  client->stage = options->stage;
  client->arena_bytes = options->arena_bytes;
  client->asked_ttl_ms = options->ttl_ms;
  client->deadline_ms = options->deadline_ms != 0 ? options->deadline_ms : BL_CLIENT_DEADLINE;
  client->open_ms = options->open_ms != 0 ? options->open_ms : client->deadline_ms;
  client->wanted_path = options->path;
  client->unverified = options->unverified;
  client->unit_bytes = options->unit_bytes;
  bl_machine_text(client->own_machine, sizeof client->own_machine);
  client->nccl = options->nccl;
  bl_endpoint_describe(options->device, client->nccl != NULL ? bl_nccl_engine_api(client->nccl) : NULL,
                       options->nccl_shared_gpu, &client->endpoint);
  client->stream.fd = -1;
  client->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  *out = client;
  if (client->wake_fd < 0) {
    return bl_error_set(err, BL_EXHAUSTED, "the system gives no eventfd");
  }
  if (options->device == NULL || options->device->host_memory) {
    return BL_OK;
  }
  client->device = options->device;
  return bl_mover_create(client->device, &client->mover, err);
}

bl_status_t bl_client_open(const bl_client_options_t *options, bl_client_t **out, bl_error_t *err) {
  bl_client_t *client = NULL;
  bl_status_t status = check_options(options, err);
  if (status == BL_OK) {
    status = create(options, &client, err);
  }
  if (status == BL_OK) {
    status = start(client, err);
  }
  if (status == BL_OK) {
    status = begin_session(client, err);
  }
  for (size_t i = 0; i < options->source_count && status == BL_OK; i++) {
    uint32_t number;
    const bl_arena_t *arena = &options->sources[i];
    status = bl_client_add_source(
        client, &(bl_client_source_t){.base = arena->base, .bytes = arena->bytes, .fd = arena->fd}, &number, err);
  }
  if (status != BL_OK) {
    bl_client_close(client);
    return status;
  }
  *out = client;
  return BL_OK;
}

// Tells the store that the session is over.
static void end_session(bl_client_t *client) {
  if (client->session != 0 && bl_client_state(client, NULL) == BL_OK) {
    bl__question_t *question = new_question(client, BL__ASK_CLOSE);
    question->deadline_ns = bl_clock_now_ns() + CLOSE_MS * BL_NS_PER_MS;
    (void)ask(question); // what fails ends by the store's own rules
    free_question(question);
  }
}

static bl_status_t show_again(bl_client_t *client, bl_error_t *err) {
  bl_status_t status = BL_OK;
  for (uint32_t i = 0; i < client->source_capacity && status == BL_OK; i++) {
    if (client->sources[i].used) {
      status = tell_store(client, BL__SHOW, i, err);
      set_shown(client, i, true, status == BL_OK);
    }
  }
  return status;
}

bl_status_t bl_client_reopen(bl_client_t *client, bl_error_t *err) {
  atomic_store(&client->connected, false);
  end_session(client);
  end_transfer(client);
  pthread_mutex_lock(&client->mutex);
  client->lost = (bl_error_t){0};
  client->sequences = (bl__sequences_t){0};
  client->room_count = 0;
  client->draining = false;
  pthread_mutex_unlock(&client->mutex);
  client->flow = client->pause_until_ns = client->next_renewal_ns = 0;
  bl_error_t cause = {0};
  bl_status_t status = begin_session(client, &cause);
  if (status == BL_OK) {
    status = show_again(client, &cause);
  }
  if (status != BL_OK) {
    bl__lose(client, &cause);
  }
  if (err != NULL) {
    *err = cause;
  }
  return status;
}

void bl_client_close(bl_client_t *client) {
  if (client == NULL) {
    return;
  }
  if (client->runs) {
    atomic_store(&client->connected, false);
    end_session(client);
  }
  end_transfer(client);
  if (client->runs) {
    bl_loop_post(client->loop, &client->stop);
  }
  if (client->thread_started) {
    pthread_join(client->thread, NULL);
  }
  if (client->wake_fd >= 0) {
    close(client->wake_fd);
  }
  pthread_cond_destroy(&client->changed);
  for (size_t i = 0; i < BL__QUESTIONS; i++) {
    pthread_cond_destroy(&client->ended[i]);
  }
  for (size_t i = 0; i < BL_CLIENT_TICKETS; i++) {
    pthread_cond_destroy(&client->done[i]);
  }
  pthread_mutex_destroy(&client->mutex);
  bl_mover_destroy(client->mover);
  free(client->rooms);
  free(client->sources);
  free(client);
}
