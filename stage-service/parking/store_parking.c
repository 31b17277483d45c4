// SPDX-License-Identifier: Apache-2.0
#include "parking/store_parking.h"

#include "base/bytes.h"
#include "parking/acceptor.h"
#include "sys/clock.h"
#include "sys/condition.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GRANULE_BYTES (64u << 10) // of a store's arena
#define PATIENCE_NS   (BL_NS_PER_MS * 4 * BL_ACCEPTOR_CALL_MS)

struct bl_store_parking {
  bl_parking_t seam; // first
  pthread_mutex_t mutex;
  pthread_cond_t over;
  bl_acceptor_t **acceptors; // [devices], NULL where the plan uses none
  uint32_t devices;
  bl_arena_t *sources; // [own_slots], with descriptors of our own
  uint32_t own_slots, source_count;
  bl_transfer_t *transfers; // [virtual_stages * micro_batches]
  uint32_t virtual_stages, micro_batches;
  uint64_t attempt;             // [m]
  bool interrupted;             // [m]
  const bl_transfer_t *waiting; // [m] for its end; NULL: for nothing
  uint64_t waiting_since_ns;    // [m]
};

static bl_store_parking_t *self_of(bl_parking_t *parking) {
  return (bl_store_parking_t *)(void *)parking;
}

static bl_transfer_t *transfer_of(const bl_store_parking_t *self, bl_parking_key_t key) {
  return &self->transfers[(size_t)key.virtual_stage * self->micro_batches + key.micro_batch];
}

static bl_status_t cancelled(bl_error_t *err) {
  return bl_error_set(err, BL_CANCELLED, "the attempt was given up");
}

// ---- the seam --------------------------------------------------------------------------------------------------------

// [m] Until the thread of the acceptor is done with what an older attempt left it, which takes no store; and begins to
// open what is to be opened. What comes meanwhile is queued behind that.
static void make_ready(bl_store_parking_t *self, bl_acceptor_t *acceptor, uint64_t now_ns) {
  const uint64_t deadline_ns = now_ns + PATIENCE_NS;
  bl__acceptor_flush(acceptor);
  while (acceptor->moving != NULL && bl_condition_wait(&self->over, &self->mutex, deadline_ns)) {
  }
  bl__acceptor_check(acceptor);
  const bool rests = acceptor->state == BL_ACCEPTOR_RESTING;
  const bool has_older = acceptor->state == BL_ACCEPTOR_READY && acceptor->held > 0; // blocks of the older attempt
  const bool tries_again = acceptor->state == BL_ACCEPTOR_FAILED && !acceptor->reopen &&
                           now_ns >= acceptor->opened_ns + BL_ACCEPTOR_AGAIN_MS * BL_NS_PER_MS;
  if (rests || has_older || tries_again) {
    bl__acceptor_reopen(acceptor);
  }
}

// [m] Only one that was well a moment ago is worth waiting for.
static bool takes_blocks(const bl_acceptor_t *acceptor) {
  return acceptor->state == BL_ACCEPTOR_READY || (acceptor->state == BL_ACCEPTOR_OPENING && acceptor->hurried);
}

static bl_status_t begin(bl_parking_t *parking, uint64_t attempt, bl_error_t *err) {
  bl_store_parking_t *self = self_of(parking);
  (void)err;
  pthread_mutex_lock(&self->mutex);
  for (uint32_t d = 0; d < self->devices; d++) {
    if (self->acceptors[d] != NULL) {
      make_ready(self, self->acceptors[d], bl_clock_now_ns());
      self->acceptors[d]->held_peak = self->acceptors[d]->held;
      self->acceptors[d]->moved_bytes = self->acceptors[d]->moved_ns = 0;
    }
  }
  for (size_t i = 0; i < (size_t)self->virtual_stages * self->micro_batches; i++) {
    self->transfers[i] = (bl_transfer_t){.state = BL_TRANSFER_IDLE};
  }
  self->attempt = attempt;
  self->interrupted = false;
  pthread_mutex_unlock(&self->mutex);
  return BL_OK;
}

// [m]
static bl_status_t check(const bl_store_parking_t *self, const bl_parked_block_t *block, bl_error_t *err) {
  if (self->interrupted) {
    return cancelled(err);
  }
  if (block->key.attempt != self->attempt || block->key.virtual_stage >= self->virtual_stages ||
      block->key.micro_batch >= self->micro_batches || block->store >= self->devices ||
      self->acceptors[block->store] == NULL) {
    return bl_error_set(err, BL_INTERNAL, "a transfer that the plan did not reserve room for");
  }
  return BL_OK;
}

static bl_status_t begin_evict(bl_parking_t *parking, const bl_parked_block_t *block, const void *source,
                               bl_error_t *err) {
  bl_store_parking_t *self = self_of(parking);
  pthread_mutex_lock(&self->mutex);
  bl_status_t status = check(self, block, err);
  bl_acceptor_t *acceptor = status == BL_OK ? self->acceptors[block->store] : NULL;
  if (status == BL_OK && !takes_blocks(acceptor)) {
    status = bl_error_set(err, BL_UNAVAILABLE, "the store of device %u takes no blocks now", block->store);
  }
  if (status == BL_OK) {
    bl_transfer_t *transfer = transfer_of(self, block->key);
    *transfer = (bl_transfer_t){.block = *block, .memory = (uint8_t *)(uintptr_t)source};
    bl__acceptor_queue(acceptor, transfer);
  }
  pthread_mutex_unlock(&self->mutex);
  return status;
}

static bl_status_t begin_load(bl_parking_t *parking, const bl_parked_block_t *block, void *slot, bl_error_t *err) {
  bl_store_parking_t *self = self_of(parking);
  pthread_mutex_lock(&self->mutex);
  bl_status_t status = check(self, block, err);
  if (status == BL_OK) {
    bl_acceptor_t *acceptor = self->acceptors[block->store];
    bl_transfer_t *transfer = transfer_of(self, block->key);
    if (acceptor->state != BL_ACCEPTOR_READY || transfer->session != acceptor->session) {
      status = bl_error_set(err, BL_UNAVAILABLE, "the block went with the store of device %u", block->store);
    } else {
      *transfer = (bl_transfer_t){.block = *block, .memory = slot, .load = true, .room = transfer->room};
      bl__acceptor_queue(acceptor, transfer);
    }
  }
  pthread_mutex_unlock(&self->mutex);
  return status;
}

static bl_status_t wait(bl_parking_t *parking, bl_parking_key_t key, uint64_t deadline_ns,
                        bl_parking_outcome_t *outcome, bl_error_t *err) {
  bl_store_parking_t *self = self_of(parking);
  bl_transfer_t *transfer = transfer_of(self, key);
  bl_status_t status = BL_OK;
  bl_parking_outcome_t found = BL_PARKING_LOST;
  pthread_mutex_lock(&self->mutex);
  self->waiting = transfer;
  self->waiting_since_ns = bl_clock_now_ns();
  while (transfer->state != BL_TRANSFER_OVER && !self->interrupted &&
         bl_condition_wait(&self->over, &self->mutex, deadline_ns)) {
  }
  self->waiting = NULL;
  if (self->interrupted) {
    status = cancelled(err);
  } else if (transfer->state == BL_TRANSFER_OVER) {
    found = transfer->outcome;
  } else if (transfer->load) {
    bl_client_landing_give_up(&transfer->landing);
  }
  pthread_mutex_unlock(&self->mutex);
  if (status == BL_OK) {
    *outcome = found;
  }
  return status;
}

static bool poll(bl_parking_t *parking, bl_parking_key_t key) {
  bl_store_parking_t *self = self_of(parking);
  pthread_mutex_lock(&self->mutex);
  bool over = transfer_of(self, key)->state == BL_TRANSFER_OVER || self->interrupted;
  pthread_mutex_unlock(&self->mutex);
  return over;
}

static void abort_attempt(bl_parking_t *parking, uint64_t attempt) {
  bl_store_parking_t *self = self_of(parking);
  (void)attempt;
  pthread_mutex_lock(&self->mutex);
  for (uint32_t d = 0; d < self->devices; d++) {
    if (self->acceptors[d] != NULL) {
      bl__acceptor_flush(self->acceptors[d]);
    }
  }
  pthread_mutex_unlock(&self->mutex);
}

static void interrupt(bl_parking_t *parking) {
  bl_store_parking_t *self = self_of(parking);
  pthread_mutex_lock(&self->mutex);
  self->interrupted = true;
  pthread_cond_broadcast(&self->over);
  pthread_mutex_unlock(&self->mutex);
}

bl_parking_t *bl_store_parking_seam(bl_store_parking_t *parking) {
  return &parking->seam;
}

void bl_store_parking_rest(bl_store_parking_t *parking) {
  pthread_mutex_lock(&parking->mutex);
  for (uint32_t d = 0; d < parking->devices; d++) {
    if (parking->acceptors[d] != NULL) {
      bl__acceptor_rest(parking->acceptors[d]);
    }
  }
  pthread_mutex_unlock(&parking->mutex);
}

// ---- looking at it ---------------------------------------------------------------------------------------------------

void bl_store_parking_set_step(bl_store_parking_t *parking, uint64_t step) {
  pthread_mutex_lock(&parking->mutex);
  for (uint32_t d = 0; d < parking->devices; d++) {
    if (parking->acceptors[d] != NULL) {
      parking->acceptors[d]->step = step;
    }
  }
  pthread_mutex_unlock(&parking->mutex);
}

uint32_t bl_store_parking_peak(bl_store_parking_t *parking, uint32_t device) {
  pthread_mutex_lock(&parking->mutex);
  bool used = device < parking->devices && parking->acceptors[device] != NULL;
  uint32_t peak = used ? parking->acceptors[device]->held_peak : 0;
  pthread_mutex_unlock(&parking->mutex);
  return peak;
}

void bl_store_parking_moved(bl_store_parking_t *parking, uint64_t *bytes, uint64_t *ns) {
  *bytes = *ns = 0;
  pthread_mutex_lock(&parking->mutex);
  for (uint32_t d = 0; d < parking->devices; d++) {
    const bl_acceptor_t *acceptor = parking->acceptors[d];
    *bytes += acceptor != NULL ? acceptor->moved_bytes : 0;
    *ns += acceptor != NULL ? acceptor->moved_ns : 0;
  }
  pthread_mutex_unlock(&parking->mutex);
}

void bl_store_parking_paths(bl_store_parking_t *parking, uint32_t counts[BL_PATHS]) {
  memset(counts, 0, BL_PATHS * sizeof counts[0]);
  pthread_mutex_lock(&parking->mutex);
  for (uint32_t d = 0; d < parking->devices; d++) {
    const bl_acceptor_t *acceptor = parking->acceptors[d];
    if (acceptor != NULL && acceptor->state == BL_ACCEPTOR_READY) {
      counts[acceptor->path]++;
    }
  }
  pthread_mutex_unlock(&parking->mutex);
}

bool bl_store_parking_look(bl_store_parking_t *parking, bl_store_parking_wait_t *wait_seen) {
  pthread_mutex_lock(&parking->mutex);
  const bl_transfer_t *transfer = parking->waiting;
  if (transfer != NULL) {
    *wait_seen = (bl_store_parking_wait_t){.load = transfer->load,
                                           .device = transfer->block.store,
                                           .lease = transfer->room,
                                           .chunk = transfer->block.key.virtual_stage,
                                           .micro_batch = transfer->block.key.micro_batch,
                                           .since_ns = parking->waiting_since_ns};
  }
  pthread_mutex_unlock(&parking->mutex);
  return transfer != NULL;
}

// ---- life ------------------------------------------------------------------------------------------------------------

// Memory that all stages together reserve at a store: whoever comes first makes it.
static uint64_t arena_bytes(const bl_store_parking_options_t *options, uint32_t device) {
  uint64_t bytes = 0;
  for (uint32_t s = 0; s < options->holdings->devices; s++) {
    bytes += bl_holdings_reserved(options->holdings, s, device) * bl_align_up(options->evict_bytes[s], GRANULE_BYTES);
  }
  return bytes;
}

// The largest block that anybody parks.
static uint64_t unit_bytes(const bl_store_parking_options_t *options) {
  uint64_t most = 0;
  for (uint32_t s = 0; s < options->holdings->devices; s++) {
    most = options->evict_bytes[s] > most ? options->evict_bytes[s] : most;
  }
  return most;
}

static bl_status_t open_all(bl_store_parking_t *self, const bl_store_parking_options_t *options, bl_error_t *err) {
  bl_status_t status = BL_OK;
  for (uint32_t d = 0; d < self->devices && status == BL_OK; d++) {
    bl_acceptor_options_t acceptor = {.device = (uint16_t)d,
                                      .plan = options->plan,
                                      .stage = options->stage,
                                      .sources = self->sources,
                                      .source_count = self->source_count,
                                      .rooms = bl_holdings_reserved(options->holdings, options->stage, d),
                                      .room_bytes = options->evict_bytes[options->stage],
                                      .arena_bytes = arena_bytes(options, d),
                                      .bytes_per_second = options->bytes_per_second,
                                      .path = options->path,
                                      .source_device = options->device,
                                      .nccl = options->nccl,
                                      .nccl_shared_gpu = options->nccl_shared_gpu,
                                      .unit_bytes = unit_bytes(options)};
    if (acceptor.rooms == 0) {
      continue;
    }
    snprintf(acceptor.address, sizeof acceptor.address, "%s", options->stores[d]);
    snprintf(acceptor.job, sizeof acceptor.job, "%s", options->job);
    status = bl__acceptor_create(&acceptor, &self->mutex, &self->over, &self->acceptors[d], err);
  }
  return status;
}

bl_status_t bl_store_parking_await(bl_store_parking_t *self, uint64_t deadline_ns, bl_error_t *err) {
  bl_status_t status = BL_OK;
  pthread_mutex_lock(&self->mutex);
  for (uint32_t d = 0; d < self->devices && status == BL_OK; d++) {
    const bl_acceptor_t *acceptor = self->acceptors[d];
    while (acceptor != NULL && acceptor->state == BL_ACCEPTOR_OPENING &&
           bl_condition_wait(&self->over, &self->mutex, deadline_ns)) { // which ends by itself
    }
    if (acceptor != NULL && acceptor->state == BL_ACCEPTOR_OPENING) {
      status = bl_error_set(err, BL_DEADLINE, "the store of device %u (%s) has not answered yet", d,
                            acceptor->options.address);
    } else if (acceptor != NULL && acceptor->state == BL_ACCEPTOR_FAILED) {
      *err = acceptor->err;
      status = bl_error_prefix(err, "store of device %u (%s)", d, acceptor->options.address);
    }
  }
  pthread_mutex_unlock(&self->mutex);
  return status;
}

// Slots up to `count` become sources.
static bl_status_t add_sources(bl_store_parking_t *self, const bl_segments_t *slots, uint32_t count, bl_error_t *err) {
  for (; self->source_count < count; self->source_count++) {
    bl_arena_t *source = &self->sources[self->source_count];
    *source = *bl_segments_arena(slots, self->source_count);
    // Sessions may still end when the slots have gone.
    source->fd = source->fd >= 0 ? fcntl(source->fd, F_DUPFD_CLOEXEC, 0) : -1;
    if (source->fd < 0 && bl_segments_arena(slots, self->source_count)->fd >= 0) {
      return bl_error_set(err, BL_EXHAUSTED, "no descriptors for the %u slots that blocks leave from", count);
    }
  }
  return BL_OK;
}

bl_status_t bl_store_parking_extend(bl_store_parking_t *self, const bl_segments_t *slots, bl_error_t *err) {
  const bool more = self->source_count < self->own_slots;
  bl_status_t status = add_sources(self, slots, self->own_slots, err);
  pthread_mutex_lock(&self->mutex);
  for (uint32_t d = 0; d < self->devices && more && status == BL_OK; d++) {
    if (self->acceptors[d] != NULL) {
      bl__acceptor_extend(self->acceptors[d], self->source_count);
    }
  }
  pthread_mutex_unlock(&self->mutex);
  return status;
}

bl_status_t bl_store_parking_create(const bl_store_parking_options_t *options, bl_store_parking_t **parking,
                                    bl_error_t *err) {
  if (options->own_slots > BL_CLIENT_SOURCES) {
    return bl_error_set(err, BL_UNIMPLEMENTED, "a stage that evicts can have %d slots of its own, not %u",
                        BL_CLIENT_SOURCES, options->own_slots);
  }
  static const bl_parking_ops_t ops = {.begin = begin,
                                       .begin_evict = begin_evict,
                                       .begin_load = begin_load,
                                       .wait = wait,
                                       .poll = poll,
                                       .abort = abort_attempt,
                                       .interrupt = interrupt};
  bl_store_parking_t *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for parking");
  }
  pthread_mutex_init(&made->mutex, NULL);
  bl_condition_init(&made->over);
  made->seam = (bl_parking_t){.ops = &ops, .patience_ns = PATIENCE_NS, .device_memory = options->device != NULL};
  made->devices = options->holdings->devices;
  made->virtual_stages = options->virtual_stages;
  made->micro_batches = options->micro_batches;
  made->own_slots = options->own_slots;
  made->sources = calloc(made->own_slots, sizeof *made->sources);
  made->acceptors = calloc(made->devices, sizeof(bl_acceptor_t *));
  made->transfers = calloc((size_t)made->virtual_stages * made->micro_batches, sizeof *made->transfers);
  bl_status_t status = BL_OK;
  if (made->sources == NULL || made->acceptors == NULL || made->transfers == NULL) {
    status = bl_error_set(err, BL_EXHAUSTED, "no memory for parking");
  } else {
    status = add_sources(made, options->slots, options->slots_there, err);
    status = status == BL_OK ? open_all(made, options, err) : status;
  }
  if (status != BL_OK) {
    bl_store_parking_destroy(made);
    return status;
  }
  *parking = made;
  return BL_OK;
}

void bl_store_parking_leave(bl_store_parking_t *parking) {
  const uint64_t deadline_ns = bl_clock_now_ns() + PATIENCE_NS;
  pthread_mutex_lock(&parking->mutex);
  for (uint32_t d = 0; parking->acceptors != NULL && d < parking->devices; d++) {
    if (parking->acceptors[d] != NULL) {
      bl__acceptor_end(parking->acceptors[d]);
    }
  }
  for (uint32_t d = 0; parking->acceptors != NULL && d < parking->devices; d++) {
    while (parking->acceptors[d] != NULL && parking->acceptors[d]->moving != NULL &&
           bl_condition_wait(&parking->over, &parking->mutex, deadline_ns)) {
    }
  }
  pthread_mutex_unlock(&parking->mutex);
}

void bl_store_parking_destroy(bl_store_parking_t *parking) {
  if (parking == NULL) {
    return;
  }
  bl_store_parking_leave(parking);
  for (uint32_t d = 0; parking->acceptors != NULL && d < parking->devices; d++) {
    bl__acceptor_destroy(parking->acceptors[d]);
  }
  for (uint32_t i = 0; parking->sources != NULL && i < parking->source_count; i++) {
    if (parking->sources[i].fd >= 0) {
      close(parking->sources[i].fd);
    }
  }
  pthread_cond_destroy(&parking->over);
  pthread_mutex_destroy(&parking->mutex);
  free(parking->acceptors);
  free(parking->sources);
  free(parking->transfers);
  free(parking);
}
