// SPDX-License-Identifier: Apache-2.0
#include "parking/acceptor.h"

#include "sys/clock.h"
#include "sys/condition.h"
#include "sys/log.h"
#include "sys/thread.h"

#include <inttypes.h>
#include <stdlib.h>

// ---- sessions --------------------------------------------------------------------------------------------------------

static void close_session(bl_acceptor_t *self) {
  bl_client_close(self->client);
  self->client = NULL;
  self->room_count = 0;
}

static bl_status_t open_session(bl_acceptor_t *self, size_t source_count, uint64_t open_ms, bl_error_t *err) {
  const bl_acceptor_options_t *options = &self->options;
  bl_client_options_t client = {.store = options->address,
                                .job = options->job,
                                .plan = options->plan,
                                .stage = options->stage,
                                .arena_bytes = options->arena_bytes,
                                .sources = options->sources,
                                .source_count = source_count,
                                .path = options->path,
                                .device = options->source_device,
                                .nccl = options->nccl,
                                .nccl_shared_gpu = options->nccl_shared_gpu,
                                .unit_bytes = options->unit_bytes,
                                .open_ms = open_ms,
                                .deadline_ms = BL_ACCEPTOR_CALL_MS};
  bl_client_demand_t demand = {.bytes = options->room_bytes, .count = options->rooms};
  bl_status_t status = bl_client_open(&client, &self->client, err);
  if (status == BL_OK) {
    status = bl_client_reserve(self->client, options->plan, &demand, 1, err);
  }
  if (status != BL_OK) {
    close_session(self);
    return status;
  }
  size_t count = bl_client_rooms(self->client, self->rooms, options->rooms);
  self->room_count = count < options->rooms ? (uint32_t)count : options->rooms;
  self->shown = source_count;
  return BL_OK;
}

// [m] The session is of no use any more: all that it was to do, and all that it had, is lost.
static void fail(bl_acceptor_t *self, const bl_error_t *err) {
  if (self->session > 0 && self->err.status == BL_OK) {
    bl_log(BL_LOG_WARNING, "store of device %u (%s): %s; blocks for it are made again until it is back",
           self->options.device, self->options.address, err->text);
  }
  self->state = BL_ACCEPTOR_FAILED;
  self->err = *err;
  bl__acceptor_flush(self);
}

// [m] on entry and exit
static void open_again(bl_acceptor_t *self) {
  bool first = self->session == 0, hurried = self->hurried;
  bl_acceptor_state_t before = self->state;
  const size_t source_count = self->options.source_count;
  self->reopen = false;
  self->state = BL_ACCEPTOR_OPENING;
  pthread_mutex_unlock(self->mutex);
  close_session(self);
  bl_error_t err = {0};
  const uint64_t open_ms = self->options.nccl != NULL ? BL_ACCEPTOR_JOIN_MS : BL_ACCEPTOR_OPEN_MS;
  bl_status_t status = open_session(self, source_count, hurried ? open_ms : BL_ACCEPTOR_TRY_MS, &err);
  char text[BL_CLIENT_PATH_BYTES] = "";
  const bl_client_path_t path = status == BL_OK ? bl_client_path(self->client, text) : BL_CLIENT_PATH_AUTO;
  if (status == BL_OK && first) {
    bl_log(BL_LOG_INFO, "blocks to the store of device %u (%s): %s", self->options.device, self->options.address, text);
  }
  pthread_mutex_lock(self->mutex);
  self->hurried = false;
  self->opened_ns = bl_clock_now_ns();
  if (status == BL_OK) {
    if (!first && before == BL_ACCEPTOR_FAILED) {
      bl_log(BL_LOG_INFO, "store of device %u (%s) takes blocks again", self->options.device, self->options.address);
    }
    self->session++;
    self->held = 0;
    self->state = BL_ACCEPTOR_READY;
    self->path = path;
    bl_error_clear(&self->err);
  } else {
    fail(self, &err);
  }
  pthread_cond_broadcast(self->over);
}

// [m] on entry and exit. Shows the store the sources that have come since the session began.
static void show_more(bl_acceptor_t *self) {
  const size_t count = self->options.source_count;
  bl_error_t err = {0};
  pthread_mutex_unlock(self->mutex);
  for (; self->shown < count; self->shown++) {
    const bl_arena_t *arena = &self->options.sources[self->shown];
    uint32_t number;
    if (bl_client_add_source(self->client,
                             &(bl_client_source_t){.base = arena->base, .bytes = arena->bytes, .fd = arena->fd},
                             &number, &err) != BL_OK) {
      break;
    }
  }
  pthread_mutex_lock(self->mutex);
  if (self->shown < count) {
    fail(self, &err);
  }
}

void bl__acceptor_extend(bl_acceptor_t *acceptor, size_t source_count) {
  acceptor->options.source_count = source_count;
  pthread_cond_signal(&acceptor->work);
}

void bl__acceptor_check(bl_acceptor_t *acceptor) {
  bl_error_t err;
  bool idle = acceptor->state == BL_ACCEPTOR_READY && acceptor->moving == NULL && !acceptor->reopen;
  if (idle && bl_client_state(acceptor->client, &err) != BL_OK) {
    fail(acceptor, &err);
  }
}

void bl__acceptor_rest(bl_acceptor_t *acceptor) {
  if (acceptor->state == BL_ACCEPTOR_READY) {
    acceptor->state = BL_ACCEPTOR_RESTING;
    acceptor->rest = true;
    bl__acceptor_flush(acceptor);
    pthread_cond_signal(&acceptor->work);
  }
}

void bl__acceptor_reopen(bl_acceptor_t *acceptor) {
  bool well = acceptor->state == BL_ACCEPTOR_READY || acceptor->state == BL_ACCEPTOR_RESTING;
  acceptor->reopen = true;
  acceptor->rest = false;
  acceptor->hurried = well;
  acceptor->held = well ? 0 : acceptor->held; // the rooms go with the session
  acceptor->state = well ? BL_ACCEPTOR_OPENING : acceptor->state;
  pthread_cond_signal(&acceptor->work);
}

// ---- transfers -------------------------------------------------------------------------------------------------------

// What says something about this block alone; the session goes on.
static bool is_of_the_block(bl_status_t status) {
  return status == BL_OK || status == BL_DATA_LOSS || status == BL_IO || status == BL_CANCELLED;
}

static bl_status_t evict(bl_acceptor_t *self, const bl_transfer_t *transfer, uint64_t step, bl_error_t *err) {
  if (transfer->room == 0) {
    return bl_error_set(err, BL_INTERNAL, "more blocks for it than the plan reserves rooms");
  }
  const bl_parked_block_t *block = &transfer->block;
  bl_client_label_t label = {.step = step, .chunk = block->key.virtual_stage, .micro_batch = block->key.micro_batch};
  bl_client_ticket_t ticket;
  bl_status_t status = bl_client_evict_start_known(self->client, transfer->room, transfer->memory, block->bytes,
                                                   block->checksum, &label, &ticket, err);
  if (status != BL_OK) {
    return status;
  }
  pthread_mutex_lock(self->mutex);
  self->evicting = ticket;
  self->evicts = true;
  if (self->gives_up) {
    bl_client_cancel(self->client, ticket);
  }
  pthread_mutex_unlock(self->mutex);
  status = bl_client_wait(self->client, ticket, UINT64_MAX, err);
  pthread_mutex_lock(self->mutex);
  self->evicts = false;
  pthread_mutex_unlock(self->mutex);
  if (status == BL_DATA_LOSS || status == BL_IO) {
    self->rooms[self->room_count++] = transfer->room;
  }
  return status;
}

static bl_status_t load(bl_acceptor_t *self, bl_transfer_t *transfer, bl_error_t *err) {
  bl_status_t status = bl_client_load_unless(self->client, transfer->room, transfer->memory, transfer->block.bytes,
                                             &transfer->landing, err);
  if (status == BL_OK || status == BL_DATA_LOSS) {
    self->rooms[self->room_count++] = transfer->room;
  }
  return status;
}

static void end(bl_acceptor_t *self, bl_transfer_t *transfer, bl_parking_outcome_t outcome) {
  transfer->outcome = outcome;
  transfer->state = BL_TRANSFER_OVER;
  pthread_cond_broadcast(self->over);
}

// [m] on entry and exit
static void move(bl_acceptor_t *self, bl_transfer_t *transfer) {
  transfer->state = BL_TRANSFER_MOVING;
  self->moving = transfer;
  self->gives_up = false;
  if (!transfer->load) {
    transfer->room = self->room_count > 0 ? self->rooms[--self->room_count] : 0;
    self->held++;
    self->held_peak = self->held > self->held_peak ? self->held : self->held_peak;
  }
  const uint64_t step = self->step;
  pthread_mutex_unlock(self->mutex);
  bl_error_t err = {0};
  const uint64_t start_ns = bl_clock_now_ns();
  uint64_t over_ns = bl_throttle_take(&self->throttle, start_ns, transfer->block.bytes);
  bl_status_t status = transfer->load ? load(self, transfer, &err) : evict(self, transfer, step, &err);
  pthread_mutex_lock(self->mutex);
  while (status == BL_OK && bl_clock_now_ns() < over_ns && !self->ending) {
    (void)bl_condition_wait(&self->work, self->mutex, over_ns);
  }
  self->moving = NULL;
  if (status == BL_OK) {
    self->moved_bytes += transfer->block.bytes;
    self->moved_ns += bl_clock_now_ns() - start_ns;
  }
  bool gone = transfer->load ? status == BL_OK || status == BL_DATA_LOSS : status == BL_DATA_LOSS || status == BL_IO;
  self->held -= gone;
  transfer->session = !transfer->load && status == BL_OK ? self->session : 0;
  end(self, transfer, status == BL_OK ? BL_PARKING_DONE : BL_PARKING_LOST);
  if (!is_of_the_block(status)) {
    fail(self, &err);
  } else if (status != BL_OK && status != BL_CANCELLED) {
    bl_log(BL_LOG_WARNING, "store of device %u (%s): %s", self->options.device, self->options.address, err.text);
  }
}

void bl__acceptor_queue(bl_acceptor_t *acceptor, bl_transfer_t *transfer) {
  transfer->next = NULL;
  transfer->state = BL_TRANSFER_QUEUED;
  if (acceptor->last != NULL) {
    acceptor->last->next = transfer;
  } else {
    acceptor->first = transfer;
  }
  acceptor->last = transfer;
  pthread_cond_signal(&acceptor->work);
}

void bl__acceptor_flush(bl_acceptor_t *acceptor) {
  while (acceptor->first != NULL) {
    bl_transfer_t *transfer = acceptor->first;
    acceptor->first = transfer->next;
    end(acceptor, transfer, BL_PARKING_LOST);
  }
  acceptor->last = NULL;
  if (acceptor->moving != NULL && acceptor->moving->load) {
    bl_client_landing_give_up(&acceptor->moving->landing);
  } else if (acceptor->moving != NULL) {
    acceptor->gives_up = true;
    if (acceptor->evicts) {
      bl_client_cancel(acceptor->client, acceptor->evicting);
    }
  }
}

static void *serve(void *argument) {
  bl_acceptor_t *self = argument;
  bl_thread_set_name("parking");
  bl_thread_unpin();
  pthread_mutex_lock(self->mutex);
  while (!self->ending) {
    bl_transfer_t *transfer = self->first;
    if (self->reopen) {
      open_again(self);
    } else if (self->rest) {
      self->rest = false;
      pthread_mutex_unlock(self->mutex);
      close_session(self);
      pthread_mutex_lock(self->mutex);
    } else if (self->state == BL_ACCEPTOR_READY && self->shown < self->options.source_count) {
      show_more(self);
    } else if (transfer == NULL) {
      pthread_cond_wait(&self->work, self->mutex);
    } else {
      self->first = transfer->next;
      self->last = self->first == NULL ? NULL : self->last;
      move(self, transfer);
    }
  }
  pthread_mutex_unlock(self->mutex);
  close_session(self);
  return NULL;
}

// ---- life ------------------------------------------------------------------------------------------------------------

bl_status_t bl__acceptor_create(const bl_acceptor_options_t *options, pthread_mutex_t *mutex, pthread_cond_t *over,
                                bl_acceptor_t **acceptor, bl_error_t *err) {
  bl_acceptor_t *made = calloc(1, sizeof *made);
  uint64_t *rooms = calloc(options->rooms, sizeof *rooms);
  if (made == NULL || rooms == NULL) {
    free(made);
    free(rooms);
    return bl_error_set(err, BL_EXHAUSTED, "no memory for an acceptor");
  }
  bl_condition_init(&made->work);
  made->options = *options;
  made->mutex = mutex;
  made->over = over;
  made->rooms = rooms;
  made->throttle = (bl_throttle_t){.bytes_per_second = options->bytes_per_second};
  made->reopen = made->hurried = true;
  if (pthread_create(&made->thread, NULL, serve, made) != 0) {
    pthread_cond_destroy(&made->work);
    free(made);
    free(rooms);
    return bl_error_set(err, BL_EXHAUSTED, "the system gives no thread for transfers to the store of device %u",
                        options->device);
  }
  *acceptor = made;
  return BL_OK;
}

void bl__acceptor_end(bl_acceptor_t *acceptor) {
  acceptor->ending = true;
  bl__acceptor_flush(acceptor);
  pthread_cond_signal(&acceptor->work);
}

void bl__acceptor_destroy(bl_acceptor_t *acceptor) {
  if (acceptor == NULL) {
    return;
  }
  pthread_mutex_lock(acceptor->mutex);
  bl__acceptor_end(acceptor);
  pthread_mutex_unlock(acceptor->mutex);
  pthread_join(acceptor->thread, NULL);
  pthread_cond_destroy(&acceptor->work);
  free(acceptor->rooms);
  free(acceptor);
}
