// SPDX-License-Identifier: Apache-2.0
#include "parking/store_parking.h"

#include "base/bytes.h"
#include "client/arena_region.h"
#include "datapath/block.h"
#include "lease/granule.h"
#include "parking/store_session.h"
#include "sys/clock.h"
#include "sys/condition.h"
#include "sys/thread.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOOK_NS    (UINT64_C(20) * 1000) // between two checks of the device's progress
#define TIMEOUT_NS (BL_NS_PER_MS * 4 * BL_STORE_SESSION_CALL_MS)

struct bl_store_parking {
  bl_parking_t seam; // first
  bl_store_sessions_t shared;
  bl_store_session_t **sessions; // [stores], NULL where the plan uses none
  uint32_t stages, stores;       // of the plan
  bl_client_region_t *regions;   // [own_slots], with duplicated descriptors
  uint32_t own_slots, region_count;
  bl_transfer_t *transfers; // [virtual_stages * micro_batches]
  uint32_t virtual_stages, micro_batches;
  uint64_t attempt;  // [m]
  bool interrupted;  // [m]
  pthread_t watcher; // of transfers that the device has not reached; only if it computes asynchronously
  pthread_cond_t told;
  bool watches, ending;         // ending: [m]
  const bl_transfer_t *hashing; // [m] whose memory the watcher reads without the mutex; NULL: none
  const bl_transfer_t *waiting; // [m] the transfer that the compute thread waits for; NULL: none
  uint64_t waiting_since_ns;    // [m]
};

static bl_store_parking_t *self_of(bl_parking_t *parking) {
  return (bl_store_parking_t *)(void *)parking;
}

static bl_transfer_t *transfer_of(const bl_store_parking_t *self, bl_parking_key_t key) {
  return &self->transfers[(size_t)key.virtual_stage * self->micro_batches + key.micro_batch];
}

static bl_status_t cancelled(bl_error_t *err) {
  return bl_error_set(err, BL_CANCELLED, "the attempt was aborted");
}

// ---- waiting for the device -----------------------------------------------------------------------------------------

// [m] Computes the checksum of a block that its device has copied to memory of the host. The mutex is free meanwhile: a
// block takes milliseconds. A transfer that is ended then is not over before this returns. False: there is none.
static bool hash_one(bl_store_parking_t *self) {
  bl_transfer_t *transfer = NULL;
  for (uint32_t d = 0; d < self->stores && transfer == NULL; d++) {
    transfer = self->sessions[d] != NULL ? bl__store_session_unhashed(self->sessions[d]) : NULL;
  }
  if (transfer == NULL) {
    return false;
  }
  self->hashing = transfer;
  pthread_mutex_unlock(&self->shared.mutex);
  const uint64_t checksum = bl_block_checksum(transfer->memory, transfer->block.bytes);
  pthread_mutex_lock(&self->shared.mutex);
  self->hashing = NULL;
  transfer->block.checksum = checksum;
  bl__transfer_ready(transfer);
  pthread_cond_broadcast(&self->shared.over);
  return true;
}

// Waits for the device, so that the compute thread need not.
static void *watch(void *argument) {
  bl_store_parking_t *self = argument;
  bl_thread_set_name("parking");
  bl_thread_unpin();
  pthread_mutex_lock(&self->shared.mutex);
  while (!self->ending) {
    bool waits = false;
    for (uint32_t d = 0; d < self->stores; d++) {
      waits |= self->sessions[d] != NULL && bl__store_session_look(self->sessions[d]);
    }
    if (!hash_one(self)) {
      (void)bl_condition_wait(&self->told, &self->shared.mutex, waits ? bl_clock_now_ns() + LOOK_NS : UINT64_MAX);
    }
  }
  pthread_mutex_unlock(&self->shared.mutex);
  return NULL;
}

static bl_status_t begin_watching(bl_store_parking_t *self, bl_error_t *err) {
  bl_condition_init(&self->told);
  self->watches = pthread_create(&self->watcher, NULL, watch, self) == 0;
  return self->watches ? BL_OK : bl_error_set(err, BL_EXHAUSTED, "the system gives no thread for parking");
}

static void end_watching(bl_store_parking_t *self) {
  if (!self->watches) {
    return;
  }
  pthread_mutex_lock(&self->shared.mutex);
  self->ending = true;
  pthread_cond_signal(&self->told);
  pthread_mutex_unlock(&self->shared.mutex);
  pthread_join(self->watcher, NULL);
  pthread_cond_destroy(&self->told);
  self->watches = false;
}

// [m] A transfer was queued that the device has not reached.
static void tell_watcher(bl_store_parking_t *self, const bl_transfer_t *transfer) {
  if (self->watches && !transfer->ready) {
    pthread_cond_signal(&self->told);
  }
}

// ---- the executor's interface ---------------------------------------------------------------------------------------

// [m] Cancels a transfer. Afterwards nothing touches its memory any more. Does not depend on the store.
static void give_up(bl_store_parking_t *self, bl_transfer_t *transfer) {
  if (transfer->state != BL_TRANSFER_IDLE) {
    bl__store_session_cancel(self->sessions[transfer->block.store], transfer);
  }
  while (transfer->state == BL_TRANSFER_MOVING || self->hashing == transfer) {
    pthread_cond_wait(&self->shared.over, &self->shared.mutex);
  }
}

// [m] The same for all transfers.
static void give_up_all(bl_store_parking_t *self) {
  for (uint32_t d = 0; d < self->stores; d++) {
    if (self->sessions[d] != NULL) {
      bl__store_session_flush(self->sessions[d]);
    }
  }
  for (uint32_t d = 0; d < self->stores; d++) {
    while (self->sessions[d] != NULL && self->sessions[d]->moving_count > 0) {
      pthread_cond_wait(&self->shared.over, &self->shared.mutex);
    }
  }
  while (self->hashing != NULL) {
    pthread_cond_wait(&self->shared.over, &self->shared.mutex);
  }
}

// [m] Begins to open sessions where necessary. Blocks that arrive meanwhile are queued.
static void make_ready(bl_store_session_t *session, uint64_t now_ns) {
  bl__store_session_check(session);
  const bool rests = session->state == BL_STORE_SESSION_RESTING;
  const bool has_older =
      session->state == BL_STORE_SESSION_READY && session->held > 0; // blocks of the previous attempt
  const bool tries_again = session->state == BL_STORE_SESSION_FAILED &&
                           now_ns >= session->opened_ns + BL_STORE_SESSION_AGAIN_MS * BL_NS_PER_MS;
  if (rests || has_older || tries_again) {
    bl__store_session_reopen(session);
  }
}

// [m] An opening session is worth waiting for only if the previous one had not failed.
static bool takes_blocks(const bl_store_session_t *session) {
  return session->state == BL_STORE_SESSION_READY || (session->state == BL_STORE_SESSION_OPENING && session->hurried);
}

static bl_status_t begin(bl_parking_t *parking, uint64_t attempt, bl_error_t *err) {
  bl_store_parking_t *self = self_of(parking);
  (void)err;
  pthread_mutex_lock(&self->shared.mutex);
  give_up_all(self); // transfers of an older attempt
  for (uint32_t d = 0; d < self->stores; d++) {
    if (self->sessions[d] != NULL) {
      make_ready(self->sessions[d], bl_clock_now_ns());
      self->sessions[d]->held_peak = self->sessions[d]->held;
      self->sessions[d]->moved_bytes = self->sessions[d]->moved_ns = self->sessions[d]->cross_machine_bytes = 0;
      self->sessions[d]->quickest = 0;
    }
  }
  for (size_t i = 0; i < (size_t)self->virtual_stages * self->micro_batches; i++) {
    self->transfers[i] = (bl_transfer_t){.state = BL_TRANSFER_IDLE};
  }
  self->attempt = attempt;
  self->interrupted = false;
  pthread_mutex_unlock(&self->shared.mutex);
  return BL_OK;
}

// [m]
static bl_status_t check(const bl_store_parking_t *self, const bl_parked_block_t *block, bl_error_t *err) {
  if (self->interrupted) {
    return cancelled(err);
  }
  if (block->key.attempt != self->attempt || block->key.virtual_stage >= self->virtual_stages ||
      block->key.micro_batch >= self->micro_batches || block->store >= self->stores ||
      self->sessions[block->store] == NULL) {
    return bl_error_set(err, BL_INTERNAL, "a transfer that the plan reserved no slot for");
  }
  return BL_OK;
}

static bl_status_t begin_evict(bl_parking_t *parking, const bl_parked_block_t *block, const void *source,
                               bl_error_t *err) {
  bl_store_parking_t *self = self_of(parking);
  char name[BL_STORE_TEXT];
  pthread_mutex_lock(&self->shared.mutex);
  bl_status_t status = check(self, block, err);
  bl_store_session_t *session = status == BL_OK ? self->sessions[block->store] : NULL;
  if (status == BL_OK && !takes_blocks(session)) {
    status = bl_error_set(err, BL_UNAVAILABLE, "the %s takes no blocks now",
                          bl_store_format(self->stages, block->store, name));
  }
  if (status == BL_OK) {
    bl_transfer_t *transfer = transfer_of(self, block->key);
    *transfer = (bl_transfer_t){.block = *block, .memory = (uint8_t *)(uintptr_t)source};
    bl__store_session_queue(session, transfer);
    tell_watcher(self, transfer);
  }
  pthread_mutex_unlock(&self->shared.mutex);
  return status;
}

static bl_status_t begin_load(bl_parking_t *parking, const bl_parked_block_t *block, void *slot, bl_error_t *err) {
  bl_store_parking_t *self = self_of(parking);
  pthread_mutex_lock(&self->shared.mutex);
  bl_status_t status = check(self, block, err);
  if (status == BL_OK) {
    bl_store_session_t *session = self->sessions[block->store];
    bl_transfer_t *transfer = transfer_of(self, block->key);
    if (session->state != BL_STORE_SESSION_READY || transfer->epoch != session->epoch) {
      char name[BL_STORE_TEXT];
      status = bl_error_set(err, BL_UNAVAILABLE, "the block went with the %s",
                            bl_store_format(self->stages, block->store, name));
    } else {
      *transfer = (bl_transfer_t){.block = *block, .memory = slot, .load = true, .store_slot = transfer->store_slot};
      bl__store_session_queue(session, transfer);
      tell_watcher(self, transfer);
    }
  }
  pthread_mutex_unlock(&self->shared.mutex);
  return status;
}

static bool is_over(const bl_store_parking_t *self, const bl_transfer_t *transfer) {
  return transfer->state == BL_TRANSFER_OVER && self->hashing != transfer &&
         (transfer->over_ns == 0 || bl_clock_now_ns() >= transfer->over_ns);
}

// [m] Waits until it is over or the attempt is interrupted. False: the deadline passed first.
static bool wait_over(bl_store_parking_t *self, const bl_transfer_t *transfer, uint64_t deadline_ns) {
  while (!is_over(self, transfer) && !self->interrupted) {
    const bool slowed =
        transfer->state == BL_TRANSFER_OVER && self->hashing != transfer && transfer->over_ns < deadline_ns;
    const uint64_t until_ns = slowed ? transfer->over_ns : deadline_ns;
    if (!bl_condition_wait(&self->shared.over, &self->shared.mutex, until_ns) && !slowed) {
      return is_over(self, transfer);
    }
  }
  return true;
}

static bl_status_t wait(bl_parking_t *parking, bl_parking_key_t key, uint64_t deadline_ns,
                        bl_parking_outcome_t *outcome, bl_error_t *err) {
  bl_store_parking_t *self = self_of(parking);
  bl_transfer_t *transfer = transfer_of(self, key);
  bl_status_t status = BL_OK;
  pthread_mutex_lock(&self->shared.mutex);
  self->waiting = transfer;
  self->waiting_since_ns = bl_clock_now_ns();
  const bool in_time = wait_over(self, transfer, deadline_ns);
  self->waiting = NULL;
  if (self->interrupted) {
    status = cancelled(err);
  } else if (in_time) {
    *outcome = transfer->outcome;
  } else {
    give_up(self, transfer);
    *outcome = BL_PARKING_LOST;
  }
  pthread_mutex_unlock(&self->shared.mutex);
  return status;
}

static bool poll(bl_parking_t *parking, bl_parking_key_t key) {
  bl_store_parking_t *self = self_of(parking);
  pthread_mutex_lock(&self->shared.mutex);
  const bool over = is_over(self, transfer_of(self, key)) || self->interrupted;
  pthread_mutex_unlock(&self->shared.mutex);
  return over;
}

static bl_parking_span_t span(bl_parking_t *parking, bl_parking_key_t key) {
  bl_store_parking_t *self = self_of(parking);
  pthread_mutex_lock(&self->shared.mutex);
  const bl_transfer_t *transfer = transfer_of(self, key);
  const bl_parking_span_t found = {.asked_ns = transfer->asked_ns, .ended_ns = transfer->ended_ns};
  pthread_mutex_unlock(&self->shared.mutex);
  return found;
}

static void abort_attempt(bl_parking_t *parking, uint64_t attempt) {
  bl_store_parking_t *self = self_of(parking);
  (void)attempt;
  pthread_mutex_lock(&self->shared.mutex);
  give_up_all(self);
  pthread_mutex_unlock(&self->shared.mutex);
}

static void interrupt(bl_parking_t *parking) {
  bl_store_parking_t *self = self_of(parking);
  pthread_mutex_lock(&self->shared.mutex);
  self->interrupted = true;
  pthread_cond_broadcast(&self->shared.over);
  pthread_mutex_unlock(&self->shared.mutex);
}

bl_parking_t *bl_store_parking_seam(bl_store_parking_t *parking) {
  return &parking->seam;
}

void bl_store_parking_rest(bl_store_parking_t *parking) {
  pthread_mutex_lock(&parking->shared.mutex);
  for (uint32_t d = 0; d < parking->stores; d++) {
    if (parking->sessions[d] != NULL) {
      bl__store_session_rest(parking->sessions[d]);
    }
  }
  pthread_mutex_unlock(&parking->shared.mutex);
}

// ---- queries --------------------------------------------------------------------------------------------------------

void bl_store_parking_set_step(bl_store_parking_t *parking, uint64_t step) {
  pthread_mutex_lock(&parking->shared.mutex);
  for (uint32_t d = 0; d < parking->stores; d++) {
    if (parking->sessions[d] != NULL) {
      parking->sessions[d]->step = step;
    }
  }
  pthread_mutex_unlock(&parking->shared.mutex);
}

uint32_t bl_store_parking_peak(bl_store_parking_t *parking, uint32_t store) {
  pthread_mutex_lock(&parking->shared.mutex);
  bool used = store < parking->stores && parking->sessions[store] != NULL;
  uint32_t peak = used ? parking->sessions[store]->held_peak : 0;
  pthread_mutex_unlock(&parking->shared.mutex);
  return peak;
}

bl_store_parking_moved_t bl_store_parking_moved(bl_store_parking_t *parking) {
  bl_store_parking_moved_t moved = {0};
  pthread_mutex_lock(&parking->shared.mutex);
  for (uint32_t d = 0; d < parking->stores; d++) {
    const bl_store_session_t *session = parking->sessions[d];
    if (session == NULL) {
      continue;
    }
    const bool of_host = d >= parking->stages;
    const uint64_t ns = of_host ? (uint64_t)((double)session->moved_bytes * session->quickest) : session->moved_ns;
    moved.bytes += session->moved_bytes;
    moved.ns += ns;
    moved.host_bytes += of_host ? session->moved_bytes : 0;
    moved.host_ns += of_host ? ns : 0;
  }
  pthread_mutex_unlock(&parking->shared.mutex);
  return moved;
}

uint64_t bl_store_parking_cross_machine_bytes(bl_store_parking_t *parking) {
  uint64_t bytes = 0;
  pthread_mutex_lock(&parking->shared.mutex);
  for (uint32_t d = 0; d < parking->stores; d++) {
    bytes += parking->sessions[d] != NULL ? parking->sessions[d]->cross_machine_bytes : 0;
  }
  pthread_mutex_unlock(&parking->shared.mutex);
  return bytes;
}

void bl_store_parking_paths(bl_store_parking_t *parking, uint32_t counts[BL_PATHS]) {
  memset(counts, 0, BL_PATHS * sizeof counts[0]);
  pthread_mutex_lock(&parking->shared.mutex);
  for (uint32_t d = 0; d < parking->stores; d++) {
    const bl_store_session_t *session = parking->sessions[d];
    if (session != NULL && session->state == BL_STORE_SESSION_READY) {
      counts[session->path]++;
    }
  }
  pthread_mutex_unlock(&parking->shared.mutex);
}

bool bl_store_parking_look(bl_store_parking_t *parking, bl_store_parking_wait_t *wait_seen) {
  pthread_mutex_lock(&parking->shared.mutex);
  const bl_transfer_t *transfer = parking->waiting;
  if (transfer != NULL) {
    *wait_seen = (bl_store_parking_wait_t){.load = transfer->load,
                                           .store = transfer->block.store,
                                           .lease = transfer->store_slot,
                                           .chunk = transfer->block.key.virtual_stage,
                                           .micro_batch = transfer->block.micro_batch,
                                           .since_ns = parking->waiting_since_ns};
  }
  pthread_mutex_unlock(&parking->shared.mutex);
  return transfer != NULL;
}

// ---- life cycle -----------------------------------------------------------------------------------------------------

// Returns the memory that all stages together reserve at a store: the first one that opens a session creates it.
static uint64_t arena_bytes(const bl_store_parking_options_t *options, uint32_t store) {
  uint64_t bytes = 0;
  for (uint32_t s = 0; s < options->device_slots->devices; s++) {
    bytes += bl_device_slots_reserved(options->device_slots, s, store) *
             bl_align_up(options->evict_bytes[s], BL_LEASE_GRANULE_BYTES);
  }
  return store < options->device_slots->devices ? bytes : bytes * options->host_planes;
}

// Returns the size of the largest block that any stage parks.
static uint64_t unit_bytes(const bl_store_parking_options_t *options) {
  uint64_t most = 0;
  for (uint32_t s = 0; s < options->device_slots->devices; s++) {
    most = options->evict_bytes[s] > most ? options->evict_bytes[s] : most;
  }
  return most;
}

static bl_status_t open_all(bl_store_parking_t *self, const bl_store_parking_options_t *options, bl_error_t *err) {
  bl_status_t status = BL_OK;
  for (uint32_t d = 0; d < self->stores && status == BL_OK; d++) {
    bl_store_session_options_t session = {
        .of_host = d >= options->device_slots->devices,
        .plan = options->plan,
        .stage = d < options->device_slots->devices ? options->stage : options->rank,
        .regions = self->regions,
        .region_count = self->region_count,
        .store_slots = bl_device_slots_reserved(options->device_slots, options->stage, d),
        .slot_bytes = options->evict_bytes[options->stage],
        .arena_bytes = arena_bytes(options, d),
        .bytes_per_second = d < options->device_slots->devices ? options->bytes_per_second : 0,
        .path = options->path,
        .device = options->device,
        .device_memory = options->device_memory,
        .nccl = options->nccl,
        .nccl_shared_gpu = options->nccl_shared_gpu,
        .unit_bytes = unit_bytes(options),
        .runtime = options->runtime};
    if (session.store_slots == 0) {
      continue;
    }
    bl_store_format(self->stages, d, session.name);
    if (options->stores[d] == NULL) {
      return bl_error_set(err, BL_UNAVAILABLE, "the %s has no address in the job", session.name);
    }
    snprintf(session.address, sizeof session.address, "%s", options->stores[d]);
    snprintf(session.job, sizeof session.job, "%s", options->job);
    pthread_mutex_lock(&self->shared.mutex);
    status = bl__store_session_create(&session, &self->shared, &self->sessions[d], err);
    pthread_mutex_unlock(&self->shared.mutex);
  }
  return status;
}

bl_status_t bl_store_parking_await(bl_store_parking_t *self, uint64_t deadline_ns, bl_error_t *err) {
  bl_status_t status = BL_OK;
  pthread_mutex_lock(&self->shared.mutex);
  for (uint32_t d = 0; d < self->stores && status == BL_OK; d++) {
    const bl_store_session_t *session = self->sessions[d];
    while (session != NULL && session->state == BL_STORE_SESSION_OPENING &&
           bl_condition_wait(&self->shared.over, &self->shared.mutex, deadline_ns)) { // opening ends on its own
    }
    if (session != NULL && session->state == BL_STORE_SESSION_OPENING) {
      status = bl_error_set(err, BL_DEADLINE, "the %s (%s) has not answered yet", session->options.name,
                            session->options.address);
    } else if (session != NULL && session->state == BL_STORE_SESSION_FAILED) {
      *err = session->err;
      status = bl_error_prefix(err, "%s (%s)", session->options.name, session->options.address);
    }
  }
  pthread_mutex_unlock(&self->shared.mutex);
  return status;
}

// Registers slots up to `count` as regions.
static bl_status_t add_regions(bl_store_parking_t *self, const bl_segments_t *slots, uint32_t count, bl_error_t *err) {
  for (; self->region_count < count; self->region_count++) {
    bl_client_region_t *region = &self->regions[self->region_count];
    *region = bl_client_region_of(bl_segments_arena(slots, self->region_count));
    // A session may end after the slots are freed.
    region->fd = region->fd >= 0 ? fcntl(region->fd, F_DUPFD_CLOEXEC, 0) : -1;
    if (region->fd < 0 && bl_segments_arena(slots, self->region_count)->fd >= 0) {
      return bl_error_set(err, BL_EXHAUSTED, "no descriptors for the %u slots that blocks leave from", count);
    }
  }
  return BL_OK;
}

bl_status_t bl_store_parking_extend(bl_store_parking_t *self, const bl_segments_t *slots, bl_error_t *err) {
  const bool more = self->region_count < self->own_slots;
  bl_status_t status = add_regions(self, slots, self->own_slots, err);
  pthread_mutex_lock(&self->shared.mutex);
  for (uint32_t d = 0; d < self->stores && more && status == BL_OK; d++) {
    if (self->sessions[d] != NULL) {
      bl__store_session_extend(self->sessions[d], self->region_count);
    }
  }
  pthread_mutex_unlock(&self->shared.mutex);
  return status;
}

// Called when the last reference is released.
static void destroy(void *context) {
  bl_store_parking_t *self = context;
  for (uint32_t d = 0; self->sessions != NULL && d < self->stores; d++) {
    bl__store_session_destroy(self->sessions[d]);
  }
  for (uint32_t i = 0; i < self->region_count; i++) {
    if (self->regions[i].fd >= 0) {
      close(self->regions[i].fd);
    }
  }
  bl__store_sessions_cleanup(&self->shared);
  free(self->sessions);
  free(self->regions);
  free(self->transfers);
  free(self);
}

bl_status_t bl_store_parking_create(const bl_store_parking_options_t *options, bl_store_parking_t **parking,
                                    bl_error_t *err) {
  if (options->own_slots > BL_CLIENT_REGIONS) {
    return bl_error_set(err, BL_UNIMPLEMENTED, "a stage that evicts can have %d slots of its own, not %u",
                        BL_CLIENT_REGIONS, options->own_slots);
  }
  static const bl_parking_ops_t ops = {.begin = begin,
                                       .begin_evict = begin_evict,
                                       .begin_load = begin_load,
                                       .wait = wait,
                                       .poll = poll,
                                       .span = span,
                                       .abort = abort_attempt,
                                       .interrupt = interrupt};
  bl_store_parking_t *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for parking");
  }
  bl__store_sessions_init(&made->shared, destroy, made);
  made->seam = (bl_parking_t){.ops = &ops, .timeout_ns = TIMEOUT_NS, .device_memory = options->device_memory};
  made->stages = options->device_slots->devices;
  made->stores = options->device_slots->stores;
  made->virtual_stages = options->virtual_stages;
  made->micro_batches = options->micro_batches;
  made->own_slots = options->own_slots;
  made->regions = calloc(made->own_slots, sizeof *made->regions);
  made->sessions = calloc(made->stores, sizeof(bl_store_session_t *));
  made->transfers = calloc((size_t)made->virtual_stages * made->micro_batches, sizeof *made->transfers);
  bl_status_t status = BL_OK;
  if (made->regions == NULL || made->sessions == NULL || made->transfers == NULL) {
    status = bl_error_set(err, BL_EXHAUSTED, "no memory for parking");
  } else {
    status = add_regions(made, options->slots, options->slots_there, err);
    status = status == BL_OK ? open_all(made, options, err) : status;
    status = status == BL_OK && options->device != NULL ? begin_watching(made, err) : status;
  }
  if (status != BL_OK) {
    bl_store_parking_destroy(made);
    return status;
  }
  *parking = made;
  return BL_OK;
}

void bl_store_parking_destroy(bl_store_parking_t *parking) {
  if (parking == NULL) {
    return;
  }
  pthread_mutex_lock(&parking->shared.mutex);
  if (parking->sessions != NULL) {
    give_up_all(parking);
    for (uint32_t d = 0; d < parking->stores; d++) {
      if (parking->sessions[d] != NULL) {
        bl__store_session_end(parking->sessions[d]);
      }
    }
  }
  pthread_mutex_unlock(&parking->shared.mutex);
  end_watching(parking);
  bl__store_sessions_release(&parking->shared);
}
