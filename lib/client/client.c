// SPDX-License-Identifier: Apache-2.0
#include "client/client.h"

#include "client/client_core.h"
#include "datapath/machine.h"
#include "sys/clock.h"
#include "sys/condition.h"
#include "tls/flags.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define CLOSE_MS UINT64_C(1000)
#define SLOW_MS  20 // period of retries and renewals, and of the check for a dead store
#define FAST_MS  10 // the same for deadlines, while something waits

// ---- callers' remote calls ------------------------------------------------------------------------------------------

// Returns an unused control call; waits for one if all are in use.
static bl__control_call_t *new_question(bl_client_t *client, bl__control_call_kind_t kind) {
  pthread_mutex_lock(&client->mutex);
  for (;;) {
    for (size_t i = 0; i < sizeof client->calls / sizeof client->calls[0]; i++) {
      if (!client->calls[i].used) {
        bl__control_call_t *call = &client->calls[i];
        *call = (bl__control_call_t){.client = client,
                                     .kind = kind,
                                     .used = true,
                                     .deadline_ns = bl_clock_now_ns() + client->deadline_ms * BL_NS_PER_MS,
                                     .message = {.handle = bl__on_control_call}};
        pthread_mutex_unlock(&client->mutex);
        return call;
      }
    }
    pthread_cond_wait(&client->changed, &client->mutex);
  }
}

// Sends the control call, waits for its end, and frees it. Every control call ends by its deadline, so the wait has
// none.
static bl_status_t ask(bl__control_call_t *call, bl_error_t *err) {
  bl_client_t *client = call->client;
  bl_loop_post(client->loop, &call->message);
  pthread_mutex_lock(&client->mutex);
  while (!call->over) {
    pthread_cond_wait(&client->ended[call - client->calls], &client->mutex);
  }
  const bl_status_t status = call->err.status;
  if (err != NULL) {
    *err = call->err;
  }
  call->used = false;
  pthread_cond_signal(&client->changed);
  pthread_mutex_unlock(&client->mutex);
  return status;
}

bl_status_t bl_client_reserve(bl_client_t *client, uint64_t plan, const bl_client_demand_t *demands,
                              size_t demand_count, bl_error_t *err) {
  if (bl__is_forked(client, err)) {
    return BL_PRECONDITION;
  }
  const bl_status_t status = bl__demands_check(plan, demands, demand_count, err);
  if (status != BL_OK) {
    return status;
  }
  bl__control_call_t *call = new_question(client, BL__CALL_RESERVE);
  call->plan = plan;
  call->demands = demands;
  call->demand_count = demand_count;
  return ask(call, err);
}

bl_status_t bl_client_unreserve(bl_client_t *client, uint64_t plan, bl_error_t *err) {
  if (bl__is_forked(client, err)) {
    return BL_PRECONDITION;
  }
  bl__control_call_t *call = new_question(client, BL__CALL_UNRESERVE);
  call->plan = plan;
  return ask(call, err);
}

// ---- queries --------------------------------------------------------------------------------------------------------

size_t bl_client_slots(bl_client_t *client, uint64_t *slots, size_t capacity) {
  if (bl__is_forked(client, NULL)) {
    return 0;
  }
  pthread_mutex_lock(&client->mutex);
  const bl__slots_t *known = &client->requests.slots;
  size_t count = known->count;
  for (size_t i = 0; i < count && i < capacity; i++) {
    slots[i] = known->slots[i].id;
  }
  pthread_mutex_unlock(&client->mutex);
  return count;
}

bl_client_slot_state_t bl_client_slot_state(bl_client_t *client, uint64_t slot) {
  static const bl_client_slot_state_t states[] = {[BL__SLOT_EMPTY] = BL_CLIENT_SLOT_EMPTY,
                                                  [BL__SLOT_EVICTING] = BL_CLIENT_SLOT_EVICTING,
                                                  [BL__SLOT_FULL] = BL_CLIENT_SLOT_FULL,
                                                  [BL__SLOT_LOADING] = BL_CLIENT_SLOT_LOADING,
                                                  [BL__SLOT_UNKNOWN] = BL_CLIENT_SLOT_UNKNOWN};
  if (bl__is_forked(client, NULL)) {
    return BL_CLIENT_SLOT_NONE;
  }
  pthread_mutex_lock(&client->mutex);
  const bl__slot_t *found = bl__slot_find(&client->requests.slots, slot);
  bl_client_slot_state_t state = found != NULL ? states[found->state] : BL_CLIENT_SLOT_NONE;
  pthread_mutex_unlock(&client->mutex);
  return state;
}

bool bl_client_is_draining(bl_client_t *client) {
  if (bl__is_forked(client, NULL)) {
    return false;
  }
  pthread_mutex_lock(&client->mutex);
  bool draining = client->draining;
  pthread_mutex_unlock(&client->mutex);
  return draining;
}

void bl_client_counters_fill(bl_client_t *client, bl_client_counters_t *counters, size_t size) {
  memset(counters, 0, size);
  if (bl__is_forked(client, NULL)) {
    return;
  }
  pthread_mutex_lock(&client->mutex);
  const bl_client_counters_t *known = &client->requests.counters;
  memcpy(counters, known, size < sizeof *known ? size : sizeof *known);
  pthread_mutex_unlock(&client->mutex);
}

bl_client_path_t bl_client_path(bl_client_t *client, char text[BL_CLIENT_PATH_BYTES]) {
  snprintf(text, BL_CLIENT_PATH_BYTES, "%s", client->path);
  return (bl_client_path_t)client->by;
}

bool bl_client_crosses(const bl_client_t *client) {
  return !bl_machine_same(client->own_machine, client->machine);
}

// ---- an iteration ---------------------------------------------------------------------------------------------------

static void free_client(bl_client_t *client);

// Deadlines are checked more often while something waits.
static void set_pace(bl_client_t *client) {
  pthread_mutex_lock(&client->mutex);
  const bool fast = bl__requests_waits(&client->requests);
  pthread_mutex_unlock(&client->mutex);
  if (fast != client->ticks_fast) {
    client->ticks_fast = fast;
    bl_timer_start(client->timer, fast ? FAST_MS : SLOW_MS, fast ? FAST_MS : SLOW_MS);
  }
}

static void opening_failed(bl_client_t *client, const bl_error_t *err);
static void go_on_opening(bl_client_t *client);

// No frame is handled any more.
static void quiet_connection(bl_client_t *client) {
  if (client->watch != NULL) {
    bl_watch_set(client->watch, 0);
  }
}

static void iterate(bl_client_t *client, bool tick) {
  const uint64_t now_ns = bl_clock_now_ns();
  bl_error_t lost = {0};
  bool more = false;
  if (client->phase == BL__PHASE_CLOSING || client->timer == NULL) {
    return;
  }
  if (bl__is_lost(client, &lost)) {
    if (client->says_goodbye && client->by != BL_PATH_NCCL) {
      quiet_connection(client); // it ends after its session, or the store takes it for lost
    } else {
      bl__connection_close(client);
    }
    pthread_mutex_lock(&client->mutex);
    bl__requests_lose(&client->requests, &lost);
    pthread_mutex_unlock(&client->mutex);
    bl__transfer_finish_ended(client);
    bl__control_calls_end(client, &lost);
    if (client->phase < BL__PHASE_OPEN) {
      opening_failed(client, &lost);
    }
    return;
  }
  if (tick && now_ns - client->control_ns >= (SLOW_MS - 1) * BL_NS_PER_MS) {
    client->control_ns = now_ns;
    bl__control_iterate(client, now_ns);
  }
  bl__connection_iterate(client, now_ns);
  bl__transfer_iterate(client, now_ns, &more);
  go_on_opening(client);
  bl__connection_arm(client);
  set_pace(client);
  if (more) {
    bl__wake(client); // other clients on this loop run in between
  }
}

static void on_ready(bl_watch_t *watch, unsigned events, void *context) {
  (void)watch;
  bl_client_t *client = context;
  if ((events & BL_WATCH_WRITE) != 0) {
    client->blocked = false;
  }
  iterate(client, false);
}

static void on_wake(bl_message_t *message) {
  bl_client_t *client = BL_MESSAGE_OWNER(message, bl_client_t, wake);
  atomic_store(&client->woken, false);
  if (client->gone) {
    free_client(client);
  } else {
    iterate(client, false);
  }
}

static void on_tick(bl_timer_t *timer, void *context) {
  (void)timer;
  iterate(context, true);
}

// ---- opening, step by step ------------------------------------------------------------------------------------------

static void end_opening(bl_client_t *client, bl__phase_t phase, const bl_error_t *err) {
  const bl_client_opened_fn opened = client->opened;
  client->phase = phase;
  client->opened = NULL;
  pthread_mutex_lock(&client->mutex);
  client->opening_ended = true;
  client->outcome = *err;
  pthread_cond_broadcast(&client->changed);
  pthread_mutex_unlock(&client->mutex);
  if (opened != NULL) {
    opened(client->context, client, err);
  }
}

static void opening_failed(bl_client_t *client, const bl_error_t *err) {
  const bl_error_t cause = *err; // which may point into what is freed
  if (client->phase >= BL__PHASE_OPEN) {
    return;
  }
  client->phase = BL__PHASE_FAILED;
  client->says_goodbye = client->session != 0 && bl_client_state(client, NULL) == BL_OK;
  bl__lose(client, &cause);
  end_opening(client, BL__PHASE_FAILED, &cause);
}

static void be_open(bl_client_t *client) {
  const bl_error_t well = {0};
  end_opening(client, BL__PHASE_OPEN, &well);
}

static void reserved(bl__control_call_t *call) {
  bl_client_t *client = call->client;
  if (client->phase == BL__PHASE_RESERVING && call->err.status != BL_OK) {
    opening_failed(client, &call->err);
  } else if (client->phase == BL__PHASE_RESERVING) {
    be_open(client);
  }
}

static void prepare(bl__control_call_t *call, bl_client_t *client, bl__control_call_kind_t kind, uint64_t deadline_ms,
                    void (*done)(bl__control_call_t *call)) {
  *call = (bl__control_call_t){
      .client = client, .kind = kind, .done = done, .deadline_ns = bl_clock_now_ns() + deadline_ms * BL_NS_PER_MS};
}

// Registers the next region, or finishes with this phase.
static void register_next(bl_client_t *client) {
  pthread_mutex_lock(&client->mutex);
  while (client->registering < client->region_capacity && !client->regions[client->registering].used) {
    client->registering++;
  }
  bl__operation_t *operation = NULL;
  client->registered = false;
  if (client->registering < client->region_capacity) {
    const bl__client_region_t *region = &client->regions[client->registering];
    operation =
        bl__requests_claim(&client->requests, BL__REGISTER, bl_clock_now_ns() + client->deadline_ms * BL_NS_PER_MS);
    if (operation != NULL) { // all are free: no caller has this client yet
      operation->internal = true;
      operation->region = client->registering;
      operation->from = region->base;
      operation->bytes = region->bytes;
      operation->fd = region->fd;
      bl__requests_submit(&client->requests, operation);
    }
  }
  pthread_mutex_unlock(&client->mutex);
  if (operation != NULL) {
    bl__wake(client);
  } else if (client->demand_count > 0) {
    client->phase = BL__PHASE_RESERVING;
    prepare(&client->step, client, BL__CALL_RESERVE, client->deadline_ms, reserved);
    client->step.plan = client->plan;
    client->step.demands = client->demands;
    client->step.demand_count = client->demand_count;
    bl__control_call_start(&client->step);
  } else {
    be_open(client);
  }
}

// Continues to open the client, according to the state of the connection.
static void go_on_opening(bl_client_t *client) {
  if (client->phase < BL__PHASE_OPEN && client->opening_err.status != BL_OK) {
    opening_failed(client, &client->opening_err);
  } else if (client->phase == BL__PHASE_CONNECTING && client->link == BL__CONNECTION_UP) {
    client->phase = BL__PHASE_REGISTERING;
    client->registering = 0;
    register_next(client);
  } else if (client->phase == BL__PHASE_REGISTERING && client->registered) {
    client->registering++;
    register_next(client);
  }
}

static void asked_to_open(bl__control_call_t *call) {
  bl_client_t *client = call->client;
  if (client->phase != BL__PHASE_OPENING) {
    return;
  }
  if (call->err.status != BL_OK) {
    opening_failed(client, &call->err);
    return;
  }
  // The TTL counts from before the request was sent.
  client->renewed_ns = call->deadline_ns - client->open_ms * BL_NS_PER_MS;
  client->phase = BL__PHASE_CONNECTING;
  bl__connection_begin(client);
  bl__wake(client);
}

static void begin_session(bl_client_t *client) {
  bl_error_t err = {0};
  client->phase = BL__PHASE_OPENING;
  client->session = 0;
  bl_error_clear(&client->opening_err);
  client->says_goodbye = false;
  if (getrandom(client->holder, sizeof client->holder, 0) != (ssize_t)sizeof client->holder) {
    (void)bl_error_set(&err, BL_IO, "the system gives no random numbers");
    opening_failed(client, &err);
    return;
  }
  prepare(&client->step, client, BL__CALL_OPEN, client->open_ms, asked_to_open);
  bl__control_call_start(&client->step);
}

static bl_status_t create_channel(bl_client_t *client, bl_error_t *err) {
  const bl_rpc_channel_options_t options = {.server_roles = BL_STORES, .security = &client->security};
  return bl_rpc_channel_create(client->runtime->rpc, client->store, &options, &client->channel, err);
}

static void on_begin(bl_message_t *message) {
  bl_client_t *client = BL_MESSAGE_OWNER(message, bl_client_t, begin);
  bl_error_t err = {0};
  bl_status_t status = create_channel(client, &err);
  if (status == BL_OK) {
    status = bl_timer_create(client->loop, on_tick, client, &client->timer, &err);
  }
  if (status != BL_OK) {
    opening_failed(client, &err);
    return;
  }
  bl_timer_start(client->timer, SLOW_MS, SLOW_MS);
  begin_session(client);
}

// ---- closing, step by step ------------------------------------------------------------------------------------------

// Ends everything in flight, and returns its memory to its owner. Only on nccl this requires closing the connection.
static void end_operations(bl_client_t *client) {
  bl_error_t cause;
  (void)bl_error_set(&cause, BL_CANCELLED, "the client is closed");
  if (client->by == BL_PATH_NCCL) {
    bl__connection_close(client);
  }
  quiet_connection(client);
  pthread_mutex_lock(&client->mutex);
  bl__requests_lose(&client->requests, &cause);
  pthread_mutex_unlock(&client->mutex);
  bl__transfer_finish_ended(client);
  bl__control_calls_end(client, &cause);
}

static void be_gone(bl_client_t *client) {
  bl__connection_close(client);
  bl_rpc_channel_destroy(client->channel);
  client->channel = NULL;
  bl_timer_destroy(client->timer);
  client->timer = NULL;
  bl__transfer_finish_ended(client);
  client->gone = true;
  if (!atomic_load(&client->woken)) {
    free_client(client);
  } // else on_wake does
}

// The next session keeps nothing but the regions.
static void begin_again(bl_client_t *client) {
  bl_error_t err = {0};
  bl__connection_close(client);
  bl_rpc_channel_destroy(client->channel); // ends calls in flight, whose answers are of the session before
  client->channel = NULL;
  pthread_mutex_lock(&client->mutex);
  client->lost = (bl_error_t){0};
  client->draining = false;
  for (uint32_t i = 0; i < client->region_capacity; i++) {
    client->regions[i].registered = client->regions[i].unanswered = false;
  }
  pthread_mutex_unlock(&client->mutex);
  client->next_renewal_ns = client->session = 0;
  client->reopens = false;
  if (create_channel(client, &err) == BL_OK) {
    begin_session(client);
  } else {
    client->phase = BL__PHASE_OPENING;
    opening_failed(client, &err);
  }
}

static void told(bl__control_call_t *call) {
  bl_loop_post(call->client->loop, &call->client->end); // not from inside the call that ends here
}

static void on_end(bl_message_t *message) {
  bl_client_t *client = BL_MESSAGE_OWNER(message, bl_client_t, end);
  if (client->phase != BL__PHASE_CLOSING) {
    const bool lives = client->says_goodbye || bl_client_state(client, NULL) == BL_OK;
    client->phase = BL__PHASE_CLOSING;
    client->opened = NULL;
    end_operations(client); // before the store is notified
    if (client->session != 0 && lives && client->channel != NULL) {
      prepare(&client->goodbye, client, BL__CALL_CLOSE, CLOSE_MS, told);
      bl__control_call_start(&client->goodbye); // if it fails, the session ends by the store's own rules
      return;
    }
  }
  if (client->reopens) {
    begin_again(client);
  } else {
    be_gone(client);
  }
}

// ---- open and close -------------------------------------------------------------------------------------------------

#define FIRST_SIZE (offsetof(bl_client_options_t, context) + sizeof(void *)) // of options, in version 0.1

// Reads the options as this library knows them. Those of older callers end earlier; fields that newer callers add must
// be unused.
static bl_status_t read_options(const bl_client_options_t *given, bl_client_options_t *options, bl_error_t *err) {
  if (given == NULL) {
    return bl_error_set(err, BL_INVALID, "the options of the client are NULL");
  }
  if (given->size < FIRST_SIZE) {
    return bl_error_set(err, BL_INVALID,
                        "the size of the options is %zu, and they have at least %zu bytes: set it to "
                        "sizeof(bl_client_options_t)",
                        given->size, FIRST_SIZE);
  }
  for (size_t i = sizeof *options; i < given->size; i++) {
    if (((const uint8_t *)given)[i] != 0) {
      return bl_error_set(err, BL_INVALID,
                          "the options have %zu bytes, and one beyond the %zu that this libballast-client "
                          "knows is used: it is older than what its caller was built with",
                          given->size, sizeof *options);
    }
  }
  *options = (bl_client_options_t){0};
  memcpy(options, given, given->size < sizeof *options ? given->size : sizeof *options);
  return BL_OK;
}

// [m] Assigns a free number. False: there is none.
static bool take_number(bl_client_t *client, const bl_client_region_t *region, uint32_t *number) {
  uint32_t free = 0;
  while (free < client->region_capacity && (client->regions[free].used || client->regions[free].unanswered)) {
    free++;
  }
  if (free == client->region_capacity) {
    uint32_t capacity = free == 0 ? 16 : 2 * free;
    bl__client_region_t *regions =
        capacity <= BL_CLIENT_REGIONS ? realloc(client->regions, capacity * sizeof *regions) : NULL;
    if (regions == NULL) {
      return false;
    }
    memset(regions + free, 0, (capacity - free) * sizeof *regions);
    client->regions = regions;
    client->region_capacity = capacity;
  }
  client->regions[free] =
      (bl__client_region_t){.used = true, .base = region->base, .bytes = region->bytes, .fd = region->fd};
  *number = free;
  return true;
}

static bl_status_t no_more_regions(bl_error_t *err) {
  return bl_error_set(err, BL_EXHAUSTED, "no more regions: %d are possible", BL_CLIENT_REGIONS);
}

static bl_status_t copy_lists(bl_client_t *client, const bl_client_options_t *options,
                              const bl_client_demand_t *demands, size_t demand_count, bl_error_t *err) {
  for (size_t i = 0; i < options->region_count; i++) {
    uint32_t number;
    if (!take_number(client, &options->regions[i], &number)) {
      return no_more_regions(err);
    }
  }
  if (demand_count > 0) {
    client->demands = malloc(demand_count * sizeof *demands);
    if (client->demands == NULL) {
      return bl_error_set(err, BL_EXHAUSTED, "no memory for a store client");
    }
    memcpy(client->demands, demands, demand_count * sizeof *demands);
    client->demand_count = demand_count;
  }
  return BL_OK;
}

static bl_status_t find_runtime(bl_client_t *client, const bl_client_options_t *options, bl_error_t *err) {
  bl_status_t status = BL_OK;
  client->runtime = options->runtime;
  client->owns_runtime = options->runtime == NULL;
  if (client->owns_runtime) {
    status = bl_client_runtime_create(NULL, &client->runtime, err);
  } else if (client->runtime->forks != bl__forks()) {
    status = bl_error_set(err, BL_PRECONDITION, "this process was forked from the one that made the runtime");
  }
  if (status == BL_OK) {
    client->loop = bl_loop_thread_loop(client->runtime->thread);
  }
  return status;
}

static void cleanup(bl_client_t *client) {
  bl__requests_cleanup(&client->requests);
  pthread_cond_destroy(&client->changed);
  for (size_t i = 0; i < BL__CONTROL_CALLS; i++) {
    pthread_cond_destroy(&client->ended[i]);
  }
  for (size_t i = 0; i < BL_CLIENT_TICKETS; i++) {
    pthread_cond_destroy(&client->done[i]);
  }
  pthread_mutex_destroy(&client->mutex);
  bl_mover_destroy(client->mover);
  bl_tls_release(client->security.tls);
  free(client->demands);
  free(client->regions);
  free(client);
}

// Called by the loop, as the last step.
static void free_client(bl_client_t *client) {
  bl_client_runtime_t *runtime = client->runtime;
  void (*closed)(void *context) = client->closed;
  void *context = client->closed_context;
  cleanup(client);
  if (closed != NULL) {
    closed(context);
  }
  pthread_mutex_lock(&runtime->mutex);
  runtime->closing--;
  pthread_cond_broadcast(&runtime->changed);
  pthread_mutex_unlock(&runtime->mutex);
}

// Sets the security of the options, or else that of the process.
static bl_status_t find_security(bl_client_t *client, const bl_client_options_t *options, bl_error_t *err) {
  const bool own =
      options->plaintext || options->tls_ca != NULL || options->tls_certificate != NULL || options->tls_key != NULL;
  if (!own) {
    client->security.plaintext_ok = bl_rpc_process_plaintext_ok();
    client->security.tls = bl_rpc_process_tls() != NULL ? bl_tls_acquire(bl_rpc_process_tls()) : NULL;
    return BL_OK;
  }
  const bl_tls_flags_t files = {.ca = (char *)(uintptr_t)options->tls_ca,
                                .certificate = (char *)(uintptr_t)options->tls_certificate,
                                .key = (char *)(uintptr_t)options->tls_key};
  client->security.plaintext_ok = options->plaintext;
  return bl_tls_create_from_flags(&files, BL_STAGES, &client->security.tls, err);
}

static bl_status_t create(const bl_client_options_t *options, bl_client_t **out, bl_error_t *err) {
  bl_client_t *client = calloc(1, sizeof *client);
  if (client == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for a store client");
  }
  pthread_mutex_init(&client->mutex, NULL);
  pthread_cond_init(&client->changed, NULL);
  for (size_t i = 0; i < BL__CONTROL_CALLS; i++) {
    pthread_cond_init(&client->ended[i], NULL);
  }
  for (size_t i = 0; i < BL_CLIENT_TICKETS; i++) {
    bl_condition_init(&client->done[i]);
  }
  client->begin.handle = on_begin;
  client->end.handle = on_end;
  client->wake.handle = on_wake;
  client->on_ready = on_ready;
  snprintf(client->job, sizeof client->job, "%s", options->job);
  snprintf(client->store, sizeof client->store, "%s", options->store);
  client->requests.store = client->store;
  client->forks = bl__forks();
  client->plan = options->plan;
  client->stage = options->stage;
  client->arena_bytes = options->arena_bytes;
  client->asked_ttl_ms = options->ttl_ms;
  client->deadline_ms = options->deadline_ms != 0 ? options->deadline_ms : BL_CLIENT_DEADLINE;
  client->open_ms = options->open_ms != 0 ? options->open_ms : client->deadline_ms;
  client->wanted_path = options->path;
  client->unverified = options->unverified;
  client->unit_bytes = options->unit_bytes;
  client->on_end = options->on_end;
  client->context = client->closed_context = options->context;
  bl_machine_text(client->own_machine, sizeof client->own_machine);
  client->nccl = options->nccl;
  bl_block_memory_describe(options->device, client->nccl != NULL ? bl_nccl_engine_api(client->nccl) : NULL,
                           options->nccl_shared_gpu, &client->block_memory);
  client->stream.fd = -1;
  bl_status_t status = find_security(client, options, err);
  if (status == BL_OK && options->device != NULL && !options->device->host_memory) {
    client->device = options->device;
    status = bl_mover_create(client->device, &client->mover, err);
  }
  if (status != BL_OK) {
    cleanup(client);
    return status;
  }
  *out = client;
  return BL_OK;
}

static bl_status_t open_start(const bl_client_options_t *given, const bl_client_demand_t *demands, size_t demand_count,
                              bl_client_opened_fn opened, bl_client_t **out, bl_error_t *err) {
  bl_client_t *client = NULL;
  bl_client_options_t options;
  bl_status_t status = read_options(given, &options, err);
  if (status == BL_OK) {
    status = bl__options_check(&options, err);
  }
  if (status == BL_OK && demand_count > 0) {
    status = bl__demands_check(options.plan, demands, demand_count, err);
  }
  if (status == BL_OK && opened != NULL && options.runtime == NULL) {
    status = bl_error_set(err, BL_INVALID, "a client that is opened without a wait needs a runtime");
  }
  if (status == BL_OK) {
    status = create(&options, &client, err);
  }
  if (status != BL_OK) {
    return status;
  }
  status = copy_lists(client, &options, demands, demand_count, err);
  if (status == BL_OK) {
    status = find_runtime(client, &options, err);
  }
  if (status != BL_OK) {
    cleanup(client);
    return status;
  }
  client->opened = opened;
  *out = client; // before `opened` can be called
  bl_loop_post(client->loop, &client->begin);
  return BL_OK;
}

bl_status_t bl_client_open_start(const bl_client_options_t *options, const bl_client_demand_t *demands,
                                 size_t demand_count, bl_client_opened_fn opened, bl_client_t **client,
                                 bl_error_t *err) {
  if (opened == NULL) {
    return bl_error_set(err, BL_INVALID, "nobody would be told that the client is open");
  }
  return open_start(options, demands, demand_count, opened, client, err);
}

static void wait_opened(bl_client_t *client, bl_error_t *err) {
  pthread_mutex_lock(&client->mutex);
  while (!client->opening_ended) {
    pthread_cond_wait(&client->changed, &client->mutex);
  }
  *err = client->outcome;
  pthread_mutex_unlock(&client->mutex);
}

bl_status_t bl_client_open(const bl_client_options_t *options, bl_client_t **out, bl_error_t *err) {
  bl_client_t *client = NULL;
  bl_error_t outcome = {0};
  bl_status_t status = open_start(options, NULL, 0, NULL, &client, err);
  if (status != BL_OK) {
    return status;
  }
  wait_opened(client, &outcome);
  if (outcome.status != BL_OK) {
    bl_client_close(client);
  } else {
    *out = client;
  }
  if (err != NULL) {
    *err = outcome;
  }
  return outcome.status;
}

bl_status_t bl_client_reopen(bl_client_t *client, bl_error_t *err) {
  bl_error_t outcome = {0};
  if (bl__is_forked(client, err)) {
    return BL_PRECONDITION;
  }
  pthread_mutex_lock(&client->mutex);
  client->opening_ended = false;
  pthread_mutex_unlock(&client->mutex);
  client->reopens = true;
  bl_loop_post(client->loop, &client->end);
  wait_opened(client, &outcome);
  if (err != NULL) {
    *err = outcome;
  }
  return outcome.status;
}

void bl_client_close_start(bl_client_t *client, void (*closed)(void *context)) {
  if (bl__is_forked(client, NULL)) {
    return;
  }
  bl_client_runtime_t *runtime = client->runtime;
  pthread_mutex_lock(&runtime->mutex);
  runtime->closing++;
  pthread_mutex_unlock(&runtime->mutex);
  client->closed = closed;
  bl_loop_post(client->loop, &client->end);
}

typedef struct closing {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  bool over;
} closing_t;

static void on_closed(void *context) {
  closing_t *closing = context;
  pthread_mutex_lock(&closing->mutex);
  closing->over = true;
  pthread_cond_signal(&closing->changed);
  pthread_mutex_unlock(&closing->mutex);
}

void bl_client_close(bl_client_t *client) {
  if (client == NULL || bl__is_forked(client, NULL)) {
    return; // the child's copy is freed when it exits
  }
  closing_t closing = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
  bl_client_runtime_t *owned = client->owns_runtime ? client->runtime : NULL;
  client->closed_context = &closing;
  bl_client_close_start(client, on_closed);
  pthread_mutex_lock(&closing.mutex);
  while (!closing.over) {
    pthread_cond_wait(&closing.changed, &closing.mutex);
  }
  pthread_mutex_unlock(&closing.mutex);
  bl_client_runtime_destroy(owned);
}

// ---- regions --------------------------------------------------------------------------------------------------------

// Registers or unregisters a region. If memory is shared, the store maps or unmaps it. Otherwise it need not be
// notified, but no evict may still read a region that is unregistered.
static void tell_store(bl_client_t *client, bl__operation_type_t type, uint32_t number, bl_client_ticket_t *ticket) {
  bl__operation_t *operation = bl__operation_new(client, type);
  pthread_mutex_lock(&client->mutex);
  const bl__client_region_t *region = &client->regions[number];
  operation->region = number;
  operation->from = region->base;
  operation->bytes = region->bytes;
  operation->fd = type == BL__REGISTER ? region->fd : -1;
  pthread_mutex_unlock(&client->mutex);
  bl__operation_submit(client, operation, ticket);
}

bl_status_t bl_client_register_start(bl_client_t *client, const bl_client_region_t *region, uint32_t *number,
                                     bl_client_ticket_t *ticket, bl_error_t *err) {
  if (bl__is_forked(client, err)) {
    return BL_PRECONDITION;
  }
  if (region == NULL || region->base == NULL || region->bytes == 0 || (client->shm && region->fd < 0)) {
    return bl_error_set(err, BL_INVALID, "a region needs memory and, on shm, its descriptor (bl_client_region_create)");
  }
  pthread_mutex_lock(&client->mutex);
  bool free = take_number(client, region, number);
  pthread_mutex_unlock(&client->mutex);
  if (!free) {
    return no_more_regions(err);
  }
  tell_store(client, BL__REGISTER, *number, ticket);
  return BL_OK;
}

bl_status_t bl_client_register(bl_client_t *client, const bl_client_region_t *region, uint32_t *number,
                               bl_error_t *err) {
  bl_client_ticket_t ticket;
  uint32_t taken;
  bl_status_t status = bl_client_register_start(client, region, &taken, &ticket, err);
  if (status == BL_OK) {
    status = bl_client_wait(client, ticket, UINT64_MAX, err);
  }
  if (status == BL_OK) {
    *number = taken;
  }
  return status;
}

bl_status_t bl_client_unregister(bl_client_t *client, uint32_t number, bl_error_t *err) {
  if (bl__is_forked(client, err)) {
    return BL_PRECONDITION;
  }
  pthread_mutex_lock(&client->mutex);
  bool known = number < client->region_capacity && client->regions[number].used;
  if (known) {
    client->regions[number].registered = false; // nothing is evicted from it any more
  }
  pthread_mutex_unlock(&client->mutex);
  if (!known) {
    return bl_error_set(err, BL_NOT_FOUND, "the client has no region %" PRIu32, number);
  }
  bl_client_ticket_t ticket;
  tell_store(client, BL__UNREGISTER, number, &ticket);
  bl_status_t status = bl_client_wait(client, ticket, UINT64_MAX, err);
  const bool gone = status == BL_OK || bl_client_state(client, NULL) != BL_OK; // a lost store reads nothing of ours
  pthread_mutex_lock(&client->mutex);
  client->regions[number].used = client->regions[number].registered = !gone;
  pthread_mutex_unlock(&client->mutex);
  if (gone) {
    bl_error_clear(err);
  }
  return gone ? BL_OK : status;
}
