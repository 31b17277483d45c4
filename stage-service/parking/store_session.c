// SPDX-License-Identifier: Apache-2.0
#include "parking/store_session.h"

#include "base/minmax.h"
#include "sys/clock.h"
#include "sys/condition.h"
#include "sys/log.h"

#include <stdlib.h>

static void advance(bl_store_session_t *self);

// ---- shared state ---------------------------------------------------------------------------------------------------

void bl__store_sessions_init(bl_store_sessions_t *shared, void (*destroy)(void *context), void *context) {
  pthread_mutex_init(&shared->mutex, NULL);
  bl_condition_init(&shared->over);
  shared->references = 1;
  shared->destroy = destroy;
  shared->context = context;
}

void bl__store_sessions_cleanup(bl_store_sessions_t *shared) {
  pthread_cond_destroy(&shared->over);
  pthread_mutex_destroy(&shared->mutex);
}

// [m] Releases a reference, and then the mutex.
static void release_and_unlock(bl_store_sessions_t *shared) {
  const bool last = --shared->references == 0;
  pthread_mutex_unlock(&shared->mutex);
  if (last) {
    shared->destroy(shared->context);
  }
}

void bl__store_sessions_release(bl_store_sessions_t *shared) {
  pthread_mutex_lock(&shared->mutex);
  release_and_unlock(shared);
}

// ---- ends of transfers ----------------------------------------------------------------------------------------------

static void end(bl_store_session_t *self, bl_transfer_t *transfer, bl_parking_outcome_t outcome) {
  transfer->outcome = outcome;
  transfer->state = BL_TRANSFER_OVER;
  transfer->ended_ns = bl_max_u64(bl_clock_now_ns(), transfer->over_ns);
  pthread_cond_broadcast(&self->shared->over);
}

static void lose_queue(bl_store_session_t *self) {
  for (bl_transfer_t *transfer; (transfer = STAILQ_FIRST(&self->queue)) != NULL;) {
    STAILQ_REMOVE_HEAD(&self->queue, queued);
    end(self, transfer, BL_PARKING_LOST);
  }
}

void bl__store_session_cancel(bl_store_session_t *session, bl_transfer_t *transfer) {
  if (transfer->state == BL_TRANSFER_QUEUED) {
    STAILQ_REMOVE(&session->queue, transfer, bl_transfer, queued);
    end(session, transfer, BL_PARKING_LOST);
    advance(session); // it may have blocked transfers after it
  } else if (transfer->state == BL_TRANSFER_MOVING && !session->closing) {
    bl_client_cancel(session->client, transfer->ticket);
  }
}

void bl__store_session_flush(bl_store_session_t *session) {
  lose_queue(session);
  for (uint32_t i = 0; i < session->moving_count; i++) {
    bl__store_session_cancel(session, session->moving[i]);
  }
}

// ---- sessions -------------------------------------------------------------------------------------------------------

static void open_session(bl_store_session_t *self);

// The client has been freed.
static void closed(void *context) {
  bl_store_session_t *self = context;
  pthread_mutex_lock(&self->shared->mutex);
  self->client = NULL;
  self->closing = false;
  if (self->state == BL_STORE_SESSION_OPENING) {
    open_session(self);
  }
  release_and_unlock(self->shared);
}

// Loses all queued transfers and all blocks of the session, and closes it.
static void give_up_session(bl_store_session_t *self) {
  lose_queue(self);
  self->held = self->store_slot_count = 0;
  if (self->client != NULL && !self->closing) {
    self->closing = true;
    bl_client_close_start(self->client, closed);
  }
}

// The session has failed.
static void fail(bl_store_session_t *self, const bl_error_t *err) {
  if (self->epoch > 0 && self->err.status == BL_OK) {
    bl_log(BL_LOG_WARNING, "%s (%s): %s; blocks for it are recomputed until it is back", self->options.name,
           self->options.address, err->text);
  }
  self->state = BL_STORE_SESSION_FAILED;
  self->err = *err;
  give_up_session(self);
}

static void begin_session(bl_store_session_t *self) {
  const bool first = self->epoch == 0;
  char text[BL_CLIENT_PATH_BYTES] = "";
  self->path = bl_client_path(self->client, text);
  self->crosses = bl_client_crosses(self->client);
  if (first) {
    bl_log(BL_LOG_INFO, "blocks to the %s (%s): %s", self->options.name, self->options.address, text);
  } else if (!self->hurried) {
    bl_log(BL_LOG_INFO, "%s (%s) takes blocks again", self->options.name, self->options.address);
  }
  const size_t count = bl_client_slots(self->client, self->store_slots, self->options.store_slots);
  self->store_slot_count = count < self->options.store_slots ? (uint32_t)count : self->options.store_slots;
  self->epoch++;
  self->brisk = false;
  self->state = BL_STORE_SESSION_READY;
  bl_error_clear(&self->err);
}

// Opening the session has ended.
static void end_opening(bl_store_session_t *self, const bl_error_t *err) {
  self->opened_ns = bl_clock_now_ns();
  if (err->status == BL_OK) {
    begin_session(self);
  } else {
    fail(self, err);
  }
  self->hurried = false;
  pthread_cond_broadcast(&self->shared->over);
  advance(self);
}

static void opened(void *context, bl_client_t *client, const bl_error_t *err) {
  bl_store_session_t *self = context;
  (void)client; // there is one at a time
  pthread_mutex_lock(&self->shared->mutex);
  if (!self->closing) {
    end_opening(self, err);
  }
  pthread_mutex_unlock(&self->shared->mutex);
}

static void on_end(void *context, bl_client_t *client, bl_client_ticket_t ticket);

static void open_session(bl_store_session_t *self) {
  const bl_store_session_options_t *options = &self->options;
  const uint64_t pin_ms = options->device_memory && options->of_host ? options->arena_bytes / 1000000 : 0;
  const uint64_t first_ms = options->nccl != NULL
                                ? BL_STORE_SESSION_JOIN_MS
                                : BL_STORE_SESSION_OPEN_MS + bl_min_u64(pin_ms, BL_STORE_SESSION_PIN_MS);
  const bl_client_options_t client = {.size = sizeof client,
                                      .store = options->address,
                                      .job = options->job,
                                      .plan = options->plan,
                                      .stage = options->stage,
                                      .arena_bytes = options->arena_bytes,
                                      .regions = options->regions,
                                      .region_count = options->region_count,
                                      .path = options->path,
                                      .device = options->device_memory ? options->device : NULL,
                                      .nccl = options->nccl,
                                      .nccl_shared_gpu = options->nccl_shared_gpu,
                                      .unit_bytes = options->unit_bytes,
                                      .open_ms = self->hurried ? first_ms : BL_STORE_SESSION_TRY_MS,
                                      .deadline_ms = BL_STORE_SESSION_CALL_MS,
                                      .runtime = options->runtime,
                                      .on_end = on_end,
                                      .context = self};
  const bl_client_demand_t demand = {.bytes = options->slot_bytes, .count = options->store_slots};
  bl_error_t err = {0};
  self->shown = options->region_count;
  self->showing = false;
  if (bl_client_open_start(&client, &demand, 1, opened, &self->client, &err) == BL_OK) {
    self->shared->references++;
  } else {
    end_opening(self, &err);
  }
}

void bl__store_session_check(bl_store_session_t *session) {
  bl_error_t err;
  if (session->state == BL_STORE_SESSION_READY && session->moving_count == 0 &&
      bl_client_state(session->client, &err) != BL_OK) {
    fail(session, &err);
  }
}

void bl__store_session_rest(bl_store_session_t *session) {
  if (session->state == BL_STORE_SESSION_READY) {
    session->state = BL_STORE_SESSION_RESTING;
    give_up_session(session);
  }
}

void bl__store_session_reopen(bl_store_session_t *session) {
  if (session->state == BL_STORE_SESSION_OPENING || session->ending) {
    return;
  }
  session->hurried = session->state != BL_STORE_SESSION_FAILED;
  session->state = BL_STORE_SESSION_OPENING;
  give_up_session(session);
  if (session->client == NULL) {
    open_session(session);
  }
}

// ---- transfers ------------------------------------------------------------------------------------------------------

// Statuses that concern one block only; the session continues.
static bool is_of_the_block(bl_status_t status) {
  return status == BL_OK || status == BL_DATA_LOSS || status == BL_IO || status == BL_CANCELLED;
}

// Time in which several transfers were in flight counts once.
static void count_moved(bl_store_session_t *self, const bl_transfer_t *transfer, uint64_t now_ns) {
  const uint64_t until_ns = transfer->over_ns > now_ns ? transfer->over_ns : now_ns;
  const uint64_t from_ns =
      self->counted_until_ns > self->moving_since_ns ? self->counted_until_ns : self->moving_since_ns;
  const double pace = (double)(until_ns - transfer->begun_ns) / (double)transfer->block.bytes;
  self->quickest = self->quickest == 0 || pace < self->quickest ? pace : self->quickest;
  self->moved_bytes += transfer->block.bytes;
  self->cross_machine_bytes += self->crosses ? transfer->block.bytes : 0;
  self->moved_ns += until_ns > from_ns ? until_ns - from_ns : 0;
  self->counted_until_ns = until_ns > self->counted_until_ns ? until_ns : self->counted_until_ns;
}

// The transfer has ended, or could not begin.
static void end_transfer(bl_store_session_t *self, bl_transfer_t *transfer, bl_status_t status, const bl_error_t *err) {
  const uint64_t now_ns = bl_clock_now_ns();
  const bool well = status == BL_OK;
  if (well) {
    count_moved(self, transfer, now_ns);
    self->brisk = now_ns - transfer->begun_ns < BL_STORE_SESSION_BRISK_MS * BL_NS_PER_MS;
  } else {
    transfer->over_ns = 0;
  }
  const bool freed = transfer->load ? well || status == BL_DATA_LOSS : status == BL_DATA_LOSS || status == BL_IO;
  if (freed && self->state == BL_STORE_SESSION_READY) { // otherwise the slot was lost with the session
    self->store_slots[self->store_slot_count++] = transfer->store_slot;
    self->held--;
  }
  transfer->epoch = !transfer->load && well ? self->epoch : 0;
  end(self, transfer, well ? BL_PARKING_DONE : BL_PARKING_LOST);
  if (self->state != BL_STORE_SESSION_READY) {
    return; // it ended with its session
  }
  if (!is_of_the_block(status)) {
    fail(self, err);
  } else if (!well && status != BL_CANCELLED) {
    bl_log(BL_LOG_WARNING, "%s (%s): %s", self->options.name, self->options.address, err->text);
  }
}

static bl_status_t start_evict(bl_store_session_t *self, bl_transfer_t *transfer, bl_error_t *err) {
  if (self->store_slot_count == 0) {
    return bl_error_set(err, BL_INTERNAL, "more blocks for it than the plan reserves store slots");
  }
  const bl_parked_block_t *block = &transfer->block;
  transfer->store_slot = self->store_slots[--self->store_slot_count];
  self->held++;
  self->held_peak = self->held > self->held_peak ? self->held : self->held_peak;
  bl_client_label_t label = {.step = self->step, .chunk = block->key.virtual_stage, .micro_batch = block->micro_batch};
  return bl_client_evict_start_known(self->client, transfer->store_slot, transfer->memory, block->bytes,
                                     block->checksum, &label, &transfer->ticket, err);
}

static void start(bl_store_session_t *self, bl_transfer_t *transfer) {
  bl_error_t err = {0};
  transfer->begun_ns = bl_clock_now_ns();
  transfer->over_ns = bl_throttle_take(&self->throttle, transfer->begun_ns, transfer->block.bytes);
  bl_status_t status = transfer->load ? bl_client_load_start(self->client, transfer->store_slot, transfer->memory,
                                                             transfer->block.bytes, &transfer->ticket, &err)
                                      : start_evict(self, transfer, &err);
  if (status != BL_OK) {
    end_transfer(self, transfer, status, &err);
    return;
  }
  transfer->state = BL_TRANSFER_MOVING;
  if (self->moving_count == 0) {
    self->moving_since_ns = transfer->begun_ns;
  }
  self->moving[self->moving_count++] = transfer;
}

// Registers the next of the regions that were added since the session began, one at a time.
static void show_more(bl_store_session_t *self) {
  const bl_client_region_t *region = &self->options.regions[self->shown];
  bl_error_t err = {0};
  uint32_t number;
  if (bl_client_register_start(self->client, region, &number, &self->show, &err) == BL_OK) {
    self->showing = true;
  } else {
    fail(self, &err);
  }
}

// False: the next transfer waits until one in flight ends.
static bool may_start(const bl_store_session_t *self) {
  if (self->moving_count == 0) {
    return true;
  }
  const bool has_slot =
      STAILQ_FIRST(&self->queue)->load || self->store_slot_count > 0; // freed by a load, or by an eviction that failed
  return has_slot && self->brisk && self->moving_count < BL_STORE_SESSION_IN_FLIGHT;
}

// Begins the queued transfers that can begin now.
static void advance(bl_store_session_t *self) {
  while (self->state == BL_STORE_SESSION_READY && !self->showing) {
    bl_transfer_t *transfer = STAILQ_FIRST(&self->queue);
    if (self->shown < self->options.region_count) {
      show_more(self);
    } else if (transfer == NULL || !transfer->ready || !may_start(self)) {
      return;
    } else {
      STAILQ_REMOVE_HEAD(&self->queue, queued);
      start(self, transfer);
    }
  }
}

// False: not yet. A device that fails reports it to the caller that waits for it at the end of the run.
static bool is_reached(const bl_store_session_t *self, const bl_transfer_t *transfer) {
  bool done = transfer->block.ready == NULL;
  return done || (bl_device_event_query(self->options.device, transfer->block.ready, &done, NULL) == BL_OK && done);
}

static void look_at(const bl_store_session_t *self, bl_transfer_t *transfer) {
  bl_parked_block_t *block = &transfer->block;
  if (transfer->ready || transfer->unhashed || !is_reached(self, transfer)) {
    return;
  }
  const bool evicted_late = block->ready != NULL && !transfer->load;
  if (evicted_late && block->hash == NULL) {
    transfer->unhashed = true;
    return;
  }
  if (evicted_late) {
    block->checksum = *block->hash;
  }
  bl__transfer_ready(transfer);
}

void bl__transfer_ready(bl_transfer_t *transfer) {
  transfer->unhashed = false;
  transfer->ready = true;
  transfer->asked_ns = bl_clock_now_ns();
}

bl_transfer_t *bl__store_session_unhashed(const bl_store_session_t *session) {
  bl_transfer_t *transfer;
  STAILQ_FOREACH(transfer, &session->queue, queued) {
    if (transfer->unhashed) {
      return transfer;
    }
  }
  return NULL;
}

bool bl__store_session_look(bl_store_session_t *session) {
  bool waits = false;
  bl_transfer_t *transfer;
  STAILQ_FOREACH(transfer, &session->queue, queued) {
    look_at(session, transfer);
    if (!transfer->ready) { // the device reaches them one after the other
      waits = true;
      break;
    }
  }
  advance(session);
  return waits;
}

static bool is_same(bl_client_ticket_t a, bl_client_ticket_t b) {
  return a.index == b.index && a.serial == b.serial;
}

static bl_transfer_t *take_moving(bl_store_session_t *self, bl_client_ticket_t ticket) {
  uint32_t i = 0;
  while (!is_same(self->moving[i]->ticket, ticket)) {
    i++;
  }
  bl_transfer_t *transfer = self->moving[i];
  self->moving[i] = self->moving[--self->moving_count];
  return transfer;
}

static void on_end(void *context, bl_client_t *client, bl_client_ticket_t ticket) {
  bl_store_session_t *self = context;
  pthread_mutex_lock(&self->shared->mutex);
  bl_error_t err = {0};
  bl_status_t status = bl_client_wait(client, ticket, UINT64_MAX, &err);
  if (!self->showing || !is_same(self->show, ticket)) {
    end_transfer(self, take_moving(self, ticket), status, &err);
  } else {
    self->showing = false;
    self->shown++;
    if (status != BL_OK && self->state == BL_STORE_SESSION_READY) {
      fail(self, &err);
    }
  }
  advance(self);
  pthread_mutex_unlock(&self->shared->mutex);
}

void bl__store_session_queue(bl_store_session_t *session, bl_transfer_t *transfer) {
  transfer->state = BL_TRANSFER_QUEUED;
  look_at(session, transfer);
  STAILQ_INSERT_TAIL(&session->queue, transfer, queued);
  if (session->state == BL_STORE_SESSION_RESTING || session->state == BL_STORE_SESSION_FAILED) {
    lose_queue(session);
  }
  advance(session);
}

void bl__store_session_extend(bl_store_session_t *session, size_t region_count) {
  session->options.region_count = region_count;
  advance(session);
}

// ---- life cycle -----------------------------------------------------------------------------------------------------

bl_status_t bl__store_session_create(const bl_store_session_options_t *options, bl_store_sessions_t *shared,
                                     bl_store_session_t **session, bl_error_t *err) {
  bl_store_session_t *made = calloc(1, sizeof *made);
  uint64_t *store_slots = calloc(options->store_slots, sizeof *store_slots);
  if (made == NULL || store_slots == NULL) {
    free(made);
    free(store_slots);
    return bl_error_set(err, BL_EXHAUSTED, "no memory for a session with a store");
  }
  STAILQ_INIT(&made->queue);
  made->options = *options;
  made->shared = shared;
  made->store_slots = store_slots;
  made->throttle = (bl_throttle_t){.bytes_per_second = options->bytes_per_second};
  made->state = BL_STORE_SESSION_OPENING;
  made->hurried = true;
  *session = made;
  open_session(made);
  return BL_OK;
}

void bl__store_session_end(bl_store_session_t *session) {
  session->ending = true;
  session->state = BL_STORE_SESSION_RESTING;
  give_up_session(session);
}

void bl__store_session_destroy(bl_store_session_t *session) {
  if (session != NULL) {
    free(session->store_slots);
    free(session);
  }
}
