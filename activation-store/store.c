// SPDX-License-Identifier: Apache-2.0
#include "store_core.h"

#include "datapath/block.h"
#include "datapath/block_memory.h"
#include "datapath/machine.h"
#include "datapath/nccl/start.h"
#include "device/device.h"
#include "sys/clock.h"
#include "sys/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define SELF_TEST_BYTES (UINT64_C(128) << 10)

uint64_t bl_store_now_ns(void) {
  return bl_clock_now_ns();
}

bl_lease_table_t *bl_store_table(bl_store_t *store) {
  return store->table;
}

const char *bl_store_machine(const bl_store_t *store) {
  return store->machine;
}

const char *bl_store_device(const bl_store_t *store) {
  return bl_device_describe(store->device);
}

const char *bl_store_data_address(const bl_store_t *store) {
  return bl_connections_unix_address(store->connections);
}

const char *bl_store_tcp_address(const bl_store_t *store) {
  return bl_connections_tcp_address(store->connections);
}

const char *bl_store_path_of(const bl_store_t *store, uint64_t session) {
  return bl_connections_path(store->connections, session);
}

const bl_connections_counters_t *bl_store_data_counters(const bl_store_t *store) {
  return bl_connections_counters(store->connections);
}

// ---- arenas ---------------------------------------------------------------------------------------------------------

// Commits the memory of arenas that were created next to one of an older plan, once that is gone.
static void fill_arenas(bl_store_t *store) {
  for (uint32_t i = 0; i < bl_lease_table_config(store->table)->max_jobs; i++) {
    if ((bl_arenas_get(store->arenas, i, 0) != NULL || bl_arenas_get(store->arenas, i, 1) != NULL) &&
        !bl_lease_table_arena_follows(store->table, i)) {
      bl_arenas_fill(store->arenas, i);
    }
  }
}

static void arena_made(void *context, uint32_t job, const bl_error_t *err) {
  bl_store_t *store = context;
  bl_lease_table_arena_made(store->table, job, err->status == BL_OK);
  store->observer.on_arena(store->observer.context, job, err);
  fill_arenas(store);
  bl_store_carry_out(store);
}

const bl_block_memory_t *bl_store_block_memory(const bl_store_t *store) {
  return &store->block_memory;
}

// Returns whether the holder's blocks reach the memory of the store's device without passing through the host.
static bool reaches_device(const bl_store_t *store, const bl_block_memory_t *holder, const char *machine,
                           bl_path_t asked) {
  bl_path_choice_t choice;
  bl_error_t err;
  bl_path_end_t there = bl_block_memory_end(holder, "the holder", machine, true, true);
  bl_path_end_t here = bl_block_memory_end(&store->block_memory, "the store", store->machine, true, true);
  return bl_path_choose(&there, &here, asked, 0, NULL, &choice, &err) == BL_OK && !choice.staged;
}

bl_lease_decision_t bl_store_open(bl_store_t *store, bl_lease_open_t *open, const bl_block_memory_t *holder,
                                  const char *machine, bl_path_t asked, bl_lease_opened_t *opened, bool *arena_waits,
                                  bl_lease_answer_t *answer) {
  static const bl_block_memory_t host = {0};
  open->second_tier =
      !store->device->host_memory && !reaches_device(store, holder != NULL ? holder : &host, machine, asked);
  if (getrandom(&open->key, sizeof open->key, 0) != (ssize_t)sizeof open->key) {
    abort(); // does not happen for 16 bytes of an initialised pool; a guessable key would be worse
  }
  bl_lease_decision_t decision = bl_lease_table_open(store->table, open, bl_clock_now_ns(), opened, answer);
  *arena_waits = false;
  if (answer->reason == BL_LEASE_GRANTED) {
    if (opened->arena_needed &&
        !bl_arenas_make(store->arenas, opened->job, opened->tier_bytes, opened->arena_follows)) {
      bl_lease_table_arena_made(store->table, opened->job, false);
      answer->reason = BL_LEASE_NO_ARENA;
    }
    *arena_waits = bl_arenas_is_making(store->arenas, opened->job);
  }
  bl_store_carry_out(store);
  return decision;
}

// ---- actions of the table -------------------------------------------------------------------------------------------

void bl_store_carry_out(bl_store_t *store) {
  bl_lease_action_t action;
  while (bl_lease_table_next_action(store->table, &action)) {
    switch (action.kind) {
    case BL_LEASE_ANSWER:
      bl__on_later_answer(store, action.session, action.sequence, &action.answer);
      break;
    case BL_LEASE_CANCEL_TRANSFER:
      bl_connections_cancel(store->connections, action.id, action.generation);
      break;
    case BL_LEASE_END_SESSION:
      bl_log(action.end == BL_SESSION_CLOSED ? BL_LOG_INFO : BL_LOG_WARNING, "session %" PRIx64 " is over: %s",
             action.session, bl_session_end_text(action.end));
      bl_connections_end(store->connections, action.session, bl_session_end_text(action.end));
      bl_holders_end(store->holders, action.session, action.end == BL_SESSION_CLOSED);
      if (store->queue != NULL) {
        bl_transfer_queue_forget(store->queue, action.session);
      }
      store->observer.on_session_over(store->observer.context, action.session, action.end);
      break;
    case BL_LEASE_CLOSE_ARENA:
      bl_arenas_close(store->arenas, action.job);
      fill_arenas(store);
      break;
    }
  }
  uint64_t revision = bl_lease_table_journal(store->table)->revision;
  if (revision != store->seen_revision) {
    store->seen_revision = revision;
    store->observer.on_change(store->observer.context);
  }
  uint64_t deadline_ns = bl_lease_table_next_deadline_ns(store->table), now_ns = bl_clock_now_ns();
  if (deadline_ns == UINT64_MAX) {
    bl_timer_stop(store->timer);
  } else {
    bl_timer_start(store->timer, deadline_ns > now_ns ? (deadline_ns - now_ns) / BL_NS_PER_MS + 1 : 0, 0);
  }
}

static void on_timer(bl_timer_t *timer, void *context) {
  (void)timer;
  bl_store_t *store = context;
  bl_lease_table_advance(store->table, bl_clock_now_ns());
  bl_store_carry_out(store);
}

// ---- sessions on the data path --------------------------------------------------------------------------------------

// Checks the identity of a peer, and returns the arena that it may use.
static bl_status_t admit(void *context, const bl_greeting_t *greeting, int fd, bl_connection_arenas_t *arenas,
                         bl_error_t *err) {
  bl_store_t *store = context;
  bl_lease_answer_t answer = {.reason = BL_LEASE_INCARNATION};
  bl_id128_t key, incarnation;
  memcpy(key.bytes, greeting->own_token, sizeof key.bytes);
  memcpy(incarnation.bytes, greeting->token, sizeof incarnation.bytes);
  if (bl_id128_equal(&incarnation, &bl_lease_table_config(store->table)->incarnation)) {
    (void)bl_lease_table_keep_alive(store->table, greeting->session, &key, bl_clock_now_ns(), &answer);
  }
  bl_status_t status = bl_lease_answer_to_error(&answer, "connect", err);
  if (status != BL_OK) {
    return status;
  }
  bl_lease_opened_t opened;
  const bl_arena_t *tiers[BL_LEASE_TIERS] = {NULL, NULL};
  if (bl_lease_table_opened(store->table, greeting->session, &opened)) {
    for (uint32_t i = 0; i < BL_LEASE_TIERS; i++) {
      tiers[i] = bl_arenas_get(store->arenas, opened.job, i);
    }
  }
  if (tiers[0] == NULL && tiers[1] == NULL) {
    return bl_error_set(err, BL_UNAVAILABLE, "the memory of the job is not there yet");
  }
  const bool ipc = greeting->path == BL_PATH_CUDA_IPC, nccl = greeting->path == BL_PATH_NCCL, nccl_link = ipc || nccl;
  if ((nccl && store->nccl == NULL) || (ipc && store->device->host_memory)) {
    return bl_error_set(err, BL_UNIMPLEMENTED, "this store has no path %s", bl_path_name(greeting->path));
  }
  if (!nccl_link && !store->device->host_memory && tiers[0] != NULL) {
    return bl_error_set(err, BL_PRECONDITION,
                        "the memory of the job is on %s, which is not reached by %s; all holders of a job must reach "
                        "it, or none",
                        bl_device_describe(store->device), bl_path_name(greeting->path));
  }
  if (ipc) { // its engine may continue to read after it has stopped
    status = bl_holders_add(store->holders, greeting->session, fd, err);
    if (status != BL_OK) {
      return status;
    }
    bl_lease_table_set_mapped(store->table, greeting->session);
  }
  *arenas = (bl_connection_arenas_t){.tiers = {tiers[0], tiers[1]}};
  return BL_OK;
}

static void holder_gone(void *context, uint64_t session) {
  bl_store_t *store = context;
  bl_log(BL_LOG_INFO, "session %" PRIx64 ": its process is gone; its slots are free", session);
  bl_lease_table_holder_gone(store->table, session, bl_clock_now_ns());
  bl_store_carry_out(store);
}

// ---- creation -------------------------------------------------------------------------------------------------------

// Describes the store's memory for holders; with NCCL, if that is available.
static void describe(bl_store_t *store, bool shared_gpu) {
  const bl_nccl_api_t *api = NULL;
  bl_error_t err = {0};
  if (!store->device->host_memory) {
    if (bl_nccl_start(store->device, shared_gpu, &store->nccl, &err) == BL_OK) {
      api = bl_nccl_engine_api(store->nccl);
    } else {
      bl_log(BL_LOG_INFO, "no data path nccl: %s", err.text);
    }
  }
  bl_block_memory_describe(store->device, api, shared_gpu, &store->block_memory);
}

// Writes, reads and checks a block as evictions do, and checks that a flipped bit is detected.
static bl_status_t self_test(bl_error_t *err) {
  bl_arena_t arena;
  bl_status_t status =
      bl_arena_create(bl_device_host(), NULL, BL_MEMORY_SLOTS, BL_ARENA_SHAREABLE, 2 * SELF_TEST_BYTES, &arena, err);
  if (status != BL_OK) {
    return status;
  }
  uint8_t *from = arena.base, *to = arena.base + SELF_TEST_BYTES;
  for (uint64_t i = 0; i < SELF_TEST_BYTES; i++) {
    from[i] = (uint8_t)(i * 2654435761u >> 13);
  }
  uint64_t wanted = bl_block_checksum(from, SELF_TEST_BYTES), copied = 0;
  status = bl_block_copy(to, from, SELF_TEST_BYTES, NULL, &copied);
  bool good = status == BL_OK && copied == wanted && memcmp(to, from, SELF_TEST_BYTES) == 0;
  to[SELF_TEST_BYTES / 3] ^= 4;
  good = good && bl_block_checksum(to, SELF_TEST_BYTES) != wanted;
  bl_arena_destroy(&arena);
  return good ? BL_OK
              : bl_error_set(err, BL_DATA_LOSS, "the self test failed: memory or checksum of this machine lies");
}

bl_status_t bl_store_create(bl_loop_t *loop, const bl_store_options_t *options, bl_store_t **out, bl_error_t *err) {
  bl_status_t status = self_test(err);
  if (status != BL_OK) {
    return status;
  }
  bl_lease_config_t leases = options->leases;
  bl_store_t *store = calloc(1, sizeof *store);
  if (store == NULL ||
      getrandom(&leases.incarnation, sizeof leases.incarnation, 0) != (ssize_t)sizeof leases.incarnation) {
    free(store);
    return bl_error_set(err, BL_EXHAUSTED, "no memory or random numbers for a store");
  }
  *store = (bl_store_t){.loop = loop,
                        .observer = options->observer,
                        .device = options->device != NULL ? options->device : bl_device_host()};
  leases.plans_add = !store->device->host_memory; // arenas.h
  describe(store, options->nccl_shared_gpu);
  bl_machine_text(store->machine, sizeof store->machine);
  status = bl_lease_table_create(&leases, bl_clock_now_ns(), &store->table, err);
  if (status == BL_OK) {
    status = bl_timer_create(loop, on_timer, store, &store->timer, err);
  }
  if (status == BL_OK) {
    status = bl_holders_create(loop, holder_gone, store, &store->holders, err);
  }
  if (status == BL_OK && (options->turns || options->bytes_per_second > 0)) {
    status = bl_transfer_queue_create(loop, options->bytes_per_second, bl__on_turn, store, &store->queue, err);
  }
  if (status == BL_OK) {
    unsigned threads = options->transfer_threads != 0 ? options->transfer_threads : 1;
    status = bl_pool_create(loop, threads, &store->pool, err);
  }
  if (status == BL_OK) {
    status = bl_arenas_create(store->pool, store->device, leases.max_jobs, arena_made, store, &store->arenas, err);
  }
  if (status == BL_OK) {
    static const bl_connections_callbacks_t callbacks = {
        .admit = admit, .on_request = bl__on_request, .on_answered = bl__on_answered, .on_moved = bl__on_moved};
    bl_connections_options_t connections = {.unix_address = options->data_address,
                                            .tcp = options->data_tcp,
                                            .tls = options->tls,
                                            .device = store->device,
                                            .nccl = store->nccl};
    status = bl_connections_create(loop, store->pool, &connections, &callbacks, store, &store->connections, err);
  }
  if (status != BL_OK) {
    bl_store_destroy(store);
    return status;
  }
  *out = store;
  return BL_OK;
}

void bl_store_destroy(bl_store_t *store) {
  if (store == NULL) {
    return;
  }
  bl_connections_stop(store->connections);
  bl_arenas_stop(store->arenas);
  bl_pool_destroy(store->pool);
  bl_loop_drain(store->loop); // messages of the pool: afterwards all transfers have ended
  bl_connections_destroy(store->connections);
  bl_transfer_queue_destroy(store->queue);
  bl_arenas_destroy(store->arenas);
  bl_holders_destroy(store->holders);
  bl_timer_destroy(store->timer);
  bl_lease_table_destroy(store->table);
  bl_nccl_engine_destroy(store->nccl);
  free(store);
}
