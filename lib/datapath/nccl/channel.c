// SPDX-License-Identifier: Apache-2.0
// One channel: the launcher's part, its abort, and the functions for users.
#include "datapath/nccl/engine_core.h"
#include "sys/clock.h"
#include "sys/condition.h"
#include "sys/thread.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LISTEN_NS (UINT64_C(100) * BL_NS_PER_MS) // between two polls for errors, if idle
#define LOOK_NS   (UINT64_C(1) * BL_NS_PER_MS)   // if in use

// ---- events ---------------------------------------------------------------------------------------------------------

static void on_event(bl_nccl_channel_t *channel, bl_nccl_event_t event, bl_status_t cause, uint64_t bytes,
                     const char *text);

static void *run_abort(void *argument) {
  bl_nccl_channel_t *channel = argument;
  bl_nccl_engine_t *engine = channel->engine;
  bl_thread_set_name("nccl-abort");
  pthread_mutex_lock(&engine->mutex);
  // Waits until no other thread is in a call. If a call does not return in time, only the abort may interrupt it.
  uint64_t timeout_ns = bl_clock_now_ns() + channel->life.deadlines.abort_ns / 2;
  while (channel->calling && (channel->comm == NULL || bl_clock_now_ns() < timeout_ns)) {
    (void)bl_condition_wait(&engine->changed, &engine->mutex, channel->comm == NULL ? UINT64_MAX : timeout_ns);
  }
  bl_nccl_comm_t *comm = channel->comm;
  pthread_mutex_unlock(&engine->mutex);
  if (comm != NULL) {
    engine->api->abort(engine->api, comm);
  }
  pthread_mutex_lock(&engine->mutex);
  channel->comm = NULL;
  on_event(channel, BL_NCCL_EVENT_ABORTED, BL_OK, 0, NULL);
  pthread_mutex_unlock(&engine->mutex);
  return NULL;
}

static void explain(bl_nccl_channel_t *channel, const char *text) {
  const bl_nccl_life_t *life = &channel->life;
  if (channel->err.status != BL_OK) {
    return; // the first cause counts
  }
  (void)bl_error_set(&channel->err, life->cause, "NCCL, %s: %s", channel->name, text);
  channel->engine->counters.failed++;
}

static void perform(bl_nccl_channel_t *channel, bl_nccl_act_t act, const char *text) {
  bl_nccl_engine_t *engine = channel->engine;
  switch (act) {
  case BL_NCCL_ACT_NONE:
    break;
  case BL_NCCL_ACT_CREATE:
    channel->create_due = true;
    break;
  case BL_NCCL_ACT_ABORT:
    explain(channel, text);
    channel->aborts = pthread_create(&channel->abort_thread, NULL, run_abort, channel) == 0;
    // Without a thread the channel gets stuck at its deadline. That ends the process, which is out of threads.
    break;
  case BL_NCCL_ACT_TELL_DEAD:
    explain(channel, text != NULL ? text : "ended");
    channel->changed = true;
    break;
  case BL_NCCL_ACT_TELL_READY:
    channel->changed = true;
    break;
  case BL_NCCL_ACT_TELL_STUCK:
    engine->counters.stuck++;
    if (engine->on_stuck != NULL) {
      bl_error_t err = channel->err;
      pthread_mutex_unlock(&engine->mutex);
      (void)bl_error_prefix(&err, "NCCL does not end what it has begun, so that this process must end");
      engine->on_stuck(engine->context, &err);
      pthread_mutex_lock(&engine->mutex);
    }
    break;
  }
  if (act != BL_NCCL_ACT_NONE) {
    pthread_cond_broadcast(&engine->changed);
    bl__nccl_wake(engine);
  }
  pthread_cond_signal(&engine->clock);
}

static void on_event(bl_nccl_channel_t *channel, bl_nccl_event_t event, bl_status_t cause, uint64_t bytes,
                     const char *text) {
  perform(channel, bl_nccl_life_on(&channel->life, event, bl_clock_now_ns(), cause, bytes), text);
}

void bl__nccl_tick(bl_nccl_channel_t *channel, uint64_t now_ns) {
  char text[160];
  bl_nccl_state_t state = channel->life.state;
  double waited = (double)(now_ns - channel->life.since_ns) * 1e-9;
  if (state == BL_NCCL_CREATING) {
    snprintf(text, sizeof text, "it was not made within %.1f s; the peer does not take part, or cannot be reached",
             waited);
  } else {
    snprintf(text, sizeof text, "a transfer of %llu bytes was not over after %.1f s; the peer does not take part",
             (unsigned long long)channel->life.bytes[channel->life.first], waited);
  }
  perform(channel, bl_nccl_life_on(&channel->life, BL_NCCL_EVENT_TICK, now_ns, BL_OK, 0), text);
}

// ---- the launcher's -------------------------------------------------------------------------------------------------

static void begin_call(bl_nccl_channel_t *channel) {
  channel->calling = true;
  pthread_mutex_unlock(&channel->engine->mutex);
}

static void end_call(bl_nccl_channel_t *channel) {
  pthread_mutex_lock(&channel->engine->mutex);
  channel->calling = false;
  pthread_cond_broadcast(&channel->engine->changed); // an abort may wait for it
}

// Returns true if the call has not failed. Otherwise the channel has failed.
static bool check(bl_nccl_channel_t *channel, bl_nccl_result_t result, const char *text) {
  if (result == BL_NCCL_DONE || result == BL_NCCL_IN_PROGRESS) {
    return true;
  }
  on_event(channel, BL_NCCL_EVENT_FAILED, result == BL_NCCL_PEER_FAILED ? BL_UNAVAILABLE : BL_IO, 0, text);
  return false;
}

static bl_nccl_result_t create(bl_nccl_channel_t *channel) {
  const bl_nccl_engine_t *engine = channel->engine;
  char text[BL_NCCL_TEXT_BYTES] = "";
  const bool pair = channel->options.group_ranks == 0; // the operations of a group wait for its collectives
  bl_nccl_config_t config = {.group_ranks = channel->options.group_ranks,
                             .min_ctas = pair ? 1 : 0,
                             .max_ctas = pair ? engine->max_ctas : 0,
                             .name = channel->name};
  bl_nccl_comm_t *comm = NULL;
  channel->create_due = false;
  begin_call(channel);
  bl_nccl_result_t result =
      engine->api->create(engine->api, channel->options.id, channel->options.rank, &config, &comm, text);
  end_call(channel);
  channel->comm = comm;
  return check(channel, result, text) ? result : BL_NCCL_BROKEN;
}

static bl_nccl_result_t poll(bl_nccl_channel_t *channel) {
  const bl_nccl_engine_t *engine = channel->engine;
  char text[BL_NCCL_TEXT_BYTES] = "";
  begin_call(channel);
  bl_nccl_result_t result = engine->api->poll(engine->api, channel->comm, text);
  end_call(channel);
  channel->looked_ns = bl_clock_now_ns();
  return check(channel, result, text) ? result : BL_NCCL_BROKEN;
}

static bl_nccl_result_t launch(bl_nccl_channel_t *channel, void *buffer, uint64_t bytes, uint32_t ticket) {
  const bl_nccl_engine_t *engine = channel->engine;
  char text[BL_NCCL_TEXT_BYTES] = "";
  begin_call(channel);
  bl_nccl_result_t result = engine->api->launch(engine->api, channel->comm, buffer, bytes, ticket, text);
  end_call(channel);
  channel->launching = result == BL_NCCL_IN_PROGRESS;
  return check(channel, result, text) ? result : BL_NCCL_BROKEN;
}

// Returns whether the transfer is over. Its launch must be.
static bl_nccl_result_t is_over(bl_nccl_channel_t *channel, uint32_t ticket) {
  const bl_nccl_engine_t *engine = channel->engine;
  char text[BL_NCCL_TEXT_BYTES] = "";
  begin_call(channel);
  bl_nccl_result_t result = engine->api->over(engine->api, channel->comm, ticket, text);
  end_call(channel);
  return check(channel, result, text) ? result : BL_NCCL_BROKEN;
}

static void tell_over(bl_nccl_channel_t *channel, bl_nccl_transfer_t *transfer, bl_status_t status) {
  bl_nccl_engine_t *engine = channel->engine;
  transfer->status = status;
  if (status == BL_OK) {
    engine->counters.transfers++;
    engine->counters.bytes += transfer->bytes;
  }
  channel->telling = true;
  pthread_mutex_unlock(&engine->mutex);
  transfer->over(transfer);
  pthread_mutex_lock(&engine->mutex);
  channel->telling = false;
  pthread_cond_broadcast(&engine->changed);
}

static bool launch_next(bl_nccl_channel_t *channel) {
  bl_nccl_transfer_t *transfer = STAILQ_FIRST(&channel->waiting);
  if (transfer == NULL || channel->launching || !bl_nccl_life_takes(&channel->life)) {
    return false;
  }
  uint32_t ticket = (channel->ticket + channel->life.in_flight) % BL_NCCL_IN_FLIGHT;
  STAILQ_REMOVE_HEAD(&channel->waiting, queued);
  STAILQ_INSERT_TAIL(&channel->running, transfer, queued);
  on_event(channel, BL_NCCL_EVENT_LAUNCHED, BL_OK, transfer->bytes, NULL);
  return launch(channel, transfer->buffer, transfer->bytes, ticket) != BL_NCCL_BROKEN;
}

static bool end_oldest(bl_nccl_channel_t *channel) {
  bl_nccl_transfer_t *oldest = STAILQ_FIRST(&channel->running);
  if (oldest == NULL || (channel->launching && STAILQ_NEXT(oldest, queued) == NULL)) {
    return false;
  }
  if (is_over(channel, channel->ticket) != BL_NCCL_DONE || channel->life.state != BL_NCCL_IN_USE) {
    return false; // an abort has begun, which ends the transfer
  }
  channel->ticket = (channel->ticket + 1) % BL_NCCL_IN_FLIGHT;
  STAILQ_REMOVE_HEAD(&channel->running, queued);
  on_event(channel, BL_NCCL_EVENT_OVER, BL_OK, 0, NULL);
  tell_over(channel, oldest, BL_OK);
  return true;
}

// The channel is dead: ends all transfers, in order.
static void end_all(bl_nccl_channel_t *channel) {
  STAILQ_CONCAT(&channel->running, &channel->waiting);
  for (bl_nccl_transfer_t *transfer; (transfer = STAILQ_FIRST(&channel->running)) != NULL;) {
    STAILQ_REMOVE_HEAD(&channel->running, queued);
    tell_over(channel, transfer, channel->err.status);
  }
}

static void tell_change(bl_nccl_channel_t *channel) {
  channel->changed = false;
  if (channel->options.on_change != NULL) {
    channel->telling = true;
    pthread_mutex_unlock(&channel->engine->mutex);
    channel->options.on_change(channel->options.context, channel);
    pthread_mutex_lock(&channel->engine->mutex);
    channel->telling = false;
    pthread_cond_broadcast(&channel->engine->changed);
  }
}

static bool is_usable(const bl_nccl_channel_t *channel) {
  return channel->life.state == BL_NCCL_READY || channel->life.state == BL_NCCL_IN_USE;
}

static bl__nccl_pace_t use(bl_nccl_channel_t *channel) {
  bool moved = false;
  if (channel->launching) {
    bl_nccl_result_t result = poll(channel);
    channel->launching = result == BL_NCCL_IN_PROGRESS;
    moved = result == BL_NCCL_DONE;
  }
  uint64_t quiet_ns = !STAILQ_EMPTY(&channel->running) ? LOOK_NS : LISTEN_NS;
  if (!channel->launching && is_usable(channel) && bl_clock_now_ns() - channel->looked_ns >= quiet_ns) {
    (void)poll(channel);
  }
  if (is_usable(channel)) {
    moved |= launch_next(channel);
  }
  if (channel->life.state == BL_NCCL_IN_USE) {
    moved |= end_oldest(channel);
  }
  return moved ? BL__NCCL_MOVES : !STAILQ_EMPTY(&channel->running) ? BL__NCCL_WAITS : BL__NCCL_LISTENS;
}

// The owner of a group makes its calls itself. Between them the group is polled for errors.
static bl__nccl_pace_t look_at_group(bl_nccl_channel_t *channel) {
  if (!channel->calling && !channel->launching && bl_clock_now_ns() - channel->looked_ns >= LISTEN_NS) {
    (void)poll(channel);
  }
  return BL__NCCL_LISTENS;
}

// A communicator counts as created once a first transfer has completed on it. NCCL connects two ranks only then, which
// takes longer than the deadline of a transfer allows.
static bl__nccl_pace_t make(bl_nccl_channel_t *channel) {
  const bool launched = channel->greeted && !channel->launching;
  const bl_nccl_result_t result = channel->create_due ? create(channel) : poll(channel);
  channel->launching = channel->launching && result == BL_NCCL_IN_PROGRESS;
  if (result != BL_NCCL_DONE || channel->life.state != BL_NCCL_CREATING) { // an abort may have begun
    return BL__NCCL_WAITS;
  }
  if (!channel->greeted) {
    channel->greeted = true;
    (void)launch(channel, NULL, BL_NCCL_GREETING_BYTES, 0);
    return BL__NCCL_MOVES;
  }
  if (launched && is_over(channel, 0) == BL_NCCL_DONE) {
    on_event(channel, BL_NCCL_EVENT_CREATED, BL_OK, 0, NULL);
    return BL__NCCL_MOVES;
  }
  return BL__NCCL_WAITS;
}

bl__nccl_pace_t bl__nccl_step(bl_nccl_channel_t *channel) {
  bl__nccl_pace_t pace = BL__NCCL_IDLE;
  if (channel->life.state == BL_NCCL_CREATING) {
    pace = make(channel);
  } else if (is_usable(channel)) {
    pace = channel->options.group_ranks > 0 ? look_at_group(channel) : use(channel);
  }
  const bool dead = channel->life.state == BL_NCCL_DEAD && !channel->ended; // it may die during a callback too
  if (dead) {
    end_all(channel);
    channel->changed = true;
  }
  if (channel->changed) {
    tell_change(channel);
  }
  if (dead) {
    channel->ended = true;
    pthread_cond_broadcast(&channel->engine->changed);
  }
  return pace;
}

// ---- for users ------------------------------------------------------------------------------------------------------

bl_status_t bl_nccl_channel_open(bl_nccl_engine_t *engine, const bl_nccl_channel_options_t *options,
                                 bl_nccl_channel_t **out, bl_error_t *err) {
  const uint32_t ranks = options->group_ranks > 0 ? options->group_ranks : 2;
  if (options->rank < 0 || (uint32_t)options->rank >= ranks || ranks < 2) {
    return bl_error_set(err, BL_INVALID, "a channel of %u ranks has no rank %d", ranks, options->rank);
  }
  bl_nccl_channel_t *channel = calloc(1, sizeof *channel);
  if (channel == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for a channel of NCCL");
  }
  channel->engine = engine;
  channel->options = *options;
  STAILQ_INIT(&channel->running);
  STAILQ_INIT(&channel->waiting);
  snprintf(channel->name, sizeof channel->name, "%s", options->name);
  channel->options.name = channel->name;
  bl_nccl_deadlines_t deadlines = options->deadlines;
  deadlines.create_ns = deadlines.create_ns != 0 ? deadlines.create_ns : engine->deadlines.create_ns;
  deadlines.transfer_ns = deadlines.transfer_ns != 0 ? deadlines.transfer_ns : engine->deadlines.transfer_ns;
  deadlines.abort_ns = deadlines.abort_ns != 0 ? deadlines.abort_ns : engine->deadlines.abort_ns;
  deadlines.bytes_per_second =
      deadlines.bytes_per_second != 0 ? deadlines.bytes_per_second : engine->deadlines.bytes_per_second;
  bl_nccl_life_init(&channel->life, &deadlines);
  pthread_mutex_lock(&engine->mutex);
  STAILQ_INSERT_TAIL(&engine->channels, channel, listed);
  engine->counters.opened++;
  on_event(channel, BL_NCCL_EVENT_CREATE, BL_OK, 0, NULL);
  pthread_mutex_unlock(&engine->mutex);
  *out = channel;
  return BL_OK;
}

static bool has_failed(const bl_nccl_channel_t *channel) {
  return channel->err.status != BL_OK;
}

bl_status_t bl_nccl_channel_wait(bl_nccl_channel_t *channel, uint64_t deadline_ns, bl_error_t *err) {
  bl_nccl_engine_t *engine = channel->engine;
  bl_status_t status = BL_OK;
  pthread_mutex_lock(&engine->mutex);
  while (channel->life.state == BL_NCCL_CREATING && bl_clock_now_ns() < deadline_ns) {
    (void)bl_condition_wait(&engine->changed, &engine->mutex, deadline_ns);
  }
  if (channel->life.state == BL_NCCL_CREATING) {
    status = bl_error_set(err, BL_DEADLINE, "NCCL, %s: it is not made yet", channel->name);
  } else if (has_failed(channel)) {
    status = channel->err.status;
    if (err != NULL) {
      *err = channel->err;
    }
  }
  pthread_mutex_unlock(&engine->mutex);
  return status;
}

bl_status_t bl_nccl_channel_post(bl_nccl_channel_t *channel, bl_nccl_transfer_t *transfer, bl_error_t *err) {
  bl_nccl_engine_t *engine = channel->engine;
  bl_status_t status = BL_OK;
  pthread_mutex_lock(&engine->mutex);
  if (has_failed(channel)) {
    status = channel->err.status;
    if (err != NULL) {
      *err = channel->err;
    }
  } else {
    STAILQ_INSERT_TAIL(&channel->waiting, transfer, queued);
    bl__nccl_wake(engine);
  }
  pthread_mutex_unlock(&engine->mutex);
  return status;
}

// ---- collectives of a group

typedef struct {
  bl_device_stream_t *stream;
  void *window; // NULL: an exchange
  uint64_t block_bytes;
  const bl_nccl_piece_t *pieces;
  uint32_t count;
} collective_t;

static bl_nccl_result_t put(bl_nccl_channel_t *channel, const collective_t *collective, char *text) {
  const bl_nccl_api_t *api = channel->engine->api;
  begin_call(channel);
  const bl_nccl_result_t result =
      collective->window != NULL
          ? api->gather(api, channel->comm, collective->stream, collective->window, collective->block_bytes, text)
          : api->exchange(api, channel->comm, collective->stream, collective->pieces, collective->count, text);
  end_call(channel);
  return result;
}

// Mutex held. The launcher does not poll meanwhile.
static void put_to_end(bl_nccl_channel_t *channel, const collective_t *collective) {
  const bl_nccl_engine_t *engine = channel->engine;
  char text[BL_NCCL_TEXT_BYTES] = "";
  channel->launching = true;
  bl_nccl_result_t result = put(channel, collective, text);
  while (check(channel, result, text) && result == BL_NCCL_IN_PROGRESS && is_usable(channel)) {
    begin_call(channel);
    sched_yield();
    result = engine->api->poll(engine->api, channel->comm, text);
    end_call(channel);
  }
  channel->launching = false;
}

// Mutex held. Waits until no other thread is in a call, and returns whether calls can be made.
static bool enter(bl_nccl_channel_t *channel) {
  while (channel->calling && is_usable(channel)) {
    (void)bl_condition_wait(&channel->engine->changed, &channel->engine->mutex, UINT64_MAX);
  }
  return is_usable(channel);
}

// Mutex held.
static bl_status_t failure_of(const bl_nccl_channel_t *channel, bl_error_t *err) {
  if (has_failed(channel) && err != NULL) {
    *err = channel->err;
  }
  return channel->err.status;
}

static bl_status_t collect(bl_nccl_channel_t *channel, const collective_t *collective, bl_error_t *err) {
  bl_nccl_engine_t *engine = channel->engine;
  pthread_mutex_lock(&engine->mutex);
  const bool usable = enter(channel);
  if (usable) {
    put_to_end(channel, collective);
  }
  bl_status_t status = failure_of(channel, err);
  if (status == BL_OK && !usable) {
    status = bl_error_set(err, BL_PRECONDITION, "NCCL, %s: it is not made yet", channel->name);
  }
  pthread_mutex_unlock(&engine->mutex);
  return status;
}

bl_status_t bl_nccl_channel_check(bl_nccl_channel_t *group, bl_error_t *err) {
  pthread_mutex_lock(&group->engine->mutex);
  if (enter(group)) {
    (void)poll(group);
  }
  bl_status_t status = failure_of(group, err);
  pthread_mutex_unlock(&group->engine->mutex);
  return status;
}

bl_status_t bl_nccl_channel_gather(bl_nccl_channel_t *group, bl_device_stream_t *stream, void *window,
                                   uint64_t block_bytes, bl_error_t *err) {
  return collect(group, &(collective_t){.stream = stream, .window = window, .block_bytes = block_bytes}, err);
}

bl_status_t bl_nccl_channel_exchange(bl_nccl_channel_t *group, bl_device_stream_t *stream,
                                     const bl_nccl_piece_t *pieces, uint32_t count, bl_error_t *err) {
  return collect(group, &(collective_t){.stream = stream, .pieces = pieces, .count = count}, err);
}

void bl_nccl_channel_abort(bl_nccl_channel_t *channel, bl_status_t cause, const char *why) {
  pthread_mutex_lock(&channel->engine->mutex);
  on_event(channel, BL_NCCL_EVENT_CANCEL, cause, 0, why);
  pthread_mutex_unlock(&channel->engine->mutex);
}

void bl_nccl_channel_close(bl_nccl_channel_t *channel) {
  if (channel == NULL) {
    return;
  }
  bl_nccl_engine_t *engine = channel->engine;
  bl_nccl_channel_abort(channel, BL_CANCELLED, "closed");
  pthread_mutex_lock(&engine->mutex);
  while ((!channel->ended && channel->life.state != BL_NCCL_STUCK) || channel->telling || channel->calling) {
    (void)bl_condition_wait(&engine->changed, &engine->mutex, UINT64_MAX);
  }
  bool dead = channel->ended;
  if (dead) {
    STAILQ_REMOVE(&engine->channels, channel, bl_nccl_channel, listed);
  }
  pthread_mutex_unlock(&engine->mutex);
  if (dead) {
    if (channel->aborts) {
      pthread_join(channel->abort_thread, NULL);
    }
    free(channel);
  }
}

bl_nccl_state_t bl_nccl_channel_state(bl_nccl_channel_t *channel, bl_error_t *err) {
  pthread_mutex_lock(&channel->engine->mutex);
  bl_nccl_state_t state = channel->life.state;
  if (err != NULL) {
    *err = channel->err;
  }
  pthread_mutex_unlock(&channel->engine->mutex);
  return state;
}
