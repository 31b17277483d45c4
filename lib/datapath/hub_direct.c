// SPDX-License-Identifier: Apache-2.0
#include "datapath/hub_direct.h"

#include "datapath/hub.h"
#include "datapath/nccl/order.h"
#include "datapath/nccl/version.h"
#include "sys/clock.h"
#include "sys/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- life --------------------------------------------------------------------------------------------------------------

bl__direct_t *bl__direct_of(bl_hub_t *hub, bl__peer_t *peer) {
  if (peer->direct != NULL) {
    return peer->direct;
  }
  bl__direct_t *made = calloc(1, sizeof *made);
  const uint32_t count = 4 * hub->max_in_flight; // sends and receives, of this attempt and of what was given up
  if (made == NULL || (made->moves = calloc(count, sizeof *made->moves)) == NULL) {
    free(made);
    return NULL;
  }
  made->hub = hub;
  made->stage = peer->stage;
  made->move_count = count;
  made->pair.first = hub->stage < peer->stage;
  bl_nccl_meeting_init(&made->meeting, made->pair.first);
  peer->direct = made;
  return made;
}

void bl__direct_shut(bl__direct_t *direct) {
  if (direct != NULL) {
    bl_nccl_pair_close(&direct->pair);
  }
}

void bl__direct_free(bl__direct_t *direct) {
  if (direct != NULL) {
    free(direct->moves);
    free(direct);
  }
}

// ---- the meeting -------------------------------------------------------------------------------------------------------

static void carry_out(bl__link_t *link, const bl_nccl_meeting_step_t *step);

// On a thread of the engine.
static void channel_changed(void *context, bl_nccl_channel_t *channel) {
  (void)channel;
  const bl__direct_t *direct = context;
  bl__hub_wake(direct->hub);
}

static void fail(bl__link_t *link, const bl_error_t *err) {
  bl__direct_t *direct = link->direct;
  pthread_mutex_lock(&link->hub->mutex);
  const bl_nccl_meeting_step_t step = bl_nccl_meeting_failed(&direct->meeting, err);
  pthread_mutex_unlock(&link->hub->mutex);
  carry_out(link, &step);
}

// The communicator of one direction. A stage makes them one after the other, all stages in one order (nccl/order.h).
static void open_direction(bl__link_t *link, bl_pair_direction_t direction) {
  bl__direct_t *direct = link->direct;
  const int32_t own = link->hub->stage, peer = direct->stage;
  const bool out = direction == BL_PAIR_OUT;
  char name[BL_NCCL_NAME_BYTES];
  snprintf(name, sizeof name, "stage %d to stage %d", out ? own : peer, out ? peer : own);
  const bl_nccl_channel_options_t options = {.name = name, .on_change = channel_changed, .context = direct};
  bl_error_t err;
  if (bl_nccl_pair_open(&direct->pair, link->hub->nccl, direction, direct->ids, &options, &err) != BL_OK) {
    fail(link, &err);
  }
}

// Of the two, that from the lower to the higher stage is made first.
static bl_pair_direction_t first_direction(const bl__direct_t *direct) {
  return direct->pair.first ? BL_PAIR_OUT : BL_PAIR_IN;
}

static void say(bl__link_t *link, const bl_nccl_meeting_step_t *step) {
  bl_meet_t meet = {.verb = step->verb, .generation = step->generation, .status = step->err.status};
  if (step->verb == BL_NCCL_MEETING_IDS) {
    memcpy(meet.ids, link->direct->ids, sizeof meet.ids);
  }
  snprintf(meet.text, sizeof meet.text, "%.190s", step->err.status != BL_OK ? step->err.text : "");
  uint8_t body[BL_FRAME_MEET_BYTES];
  bl_meet_encode(&meet, body);
  if (!bl__link_put(link, &(bl_frame_t){.kind = BL_FRAME_MEET}, body, NULL, 0)) {
    bl__link_lose(link, BL_EXHAUSTED, "%s does not read what is said about communicators",
                  BL__NAME(link->hub, link->stage));
  }
}

// Ids are drawn where the pair's lower stage is, as late as they are needed.
static bool draw_ids(bl__link_t *link) {
  bl_error_t err;
  if (bl_nccl_pair_draw(link->hub->nccl, link->direct->ids, &err) != BL_OK) {
    fail(link, &err);
    return false;
  }
  return true;
}

static void tell_up(bl__link_t *link) {
  bl__direct_t *direct = link->direct;
  bl_hub_t *hub = link->hub;
  char version[BL_NCCL_VERSION_TEXT], reason[BL_HUB_REASON_BYTES];
  snprintf(reason, sizeof reason, "nccl: both ends have NCCL %s, credits by %.120s",
           bl_nccl_version_format(hub->endpoint.nccl, version), link->reason);
  pthread_mutex_lock(&hub->mutex);
  const bool first = !direct->settled;
  direct->settled = true;
  bl__peer_t *peer = bl__hub_find(hub, direct->stage);
  peer->path = BL_PATH_NCCL;
  snprintf(peer->reason, sizeof peer->reason, "%s", reason);
  bl__hub_changed(hub);
  pthread_mutex_unlock(&hub->mutex);
  bl_log(BL_LOG_INFO, "data path: %s, %s%s", BL__NAME(hub, direct->stage), reason, first ? "" : ", made again");
  if (first) {
    bl__connect_up(hub, link);
  }
}

// This generation is given up, at both ends. The first time the link moves tensors itself, as if there were no NCCL, or
// the connect that asked for it fails; later the pair stays as it is, and attempts fail until it is there again.
static void tell_failed(bl__link_t *link, const bl_error_t *err) {
  bl__direct_t *direct = link->direct;
  bl_hub_t *hub = link->hub;
  bl_error_t no_twins = {0};
  if (!direct->settled && bl__hub_hold_twins(hub, &no_twins) != BL_OK) { // only this thread settles
    bl__link_lose(link, no_twins.status, "%s", no_twins.text);
    return;
  }
  pthread_mutex_lock(&hub->mutex);
  const bool first = !direct->settled;
  if (first) {
    direct->settled = true;
    snprintf(link->obstacle, sizeof link->obstacle, "%.190s", err->text);
    link->obstacle_status = err->status;
    link->direct = NULL; // what it made ends by and by: bl__direct_sweep
    bl__link_settle(link);
  }
  bl__hub_changed(hub);
  pthread_mutex_unlock(&hub->mutex);
  bl_log(BL_LOG_WARNING, "data path: %s: %s", BL__NAME(hub, direct->stage), err->text);
  if (first) {
    bl__connect_up(hub, link);
  }
}

static void carry_out(bl__link_t *link, const bl_nccl_meeting_step_t *step) {
  bl__direct_t *direct = link->direct;
  if (step->acts != 0) {
    bl__hub_wake(link->hub); // it may be another pair's turn then
  }
  if ((step->acts & BL_NCCL_MEETING_CLOSE) != 0) {
    bl_nccl_pair_abort(&direct->pair, step->err.status, step->err.text);
  }
  if ((step->acts & BL_NCCL_MEETING_SAY) != 0) {
    if (step->verb == BL_NCCL_MEETING_IDS && !draw_ids(link)) {
      return;
    }
    say(link, step);
  }
  if (link->state != BL__LINK_UP) {
    return;
  }
  if ((step->acts & BL_NCCL_MEETING_OPEN) != 0) {
    open_direction(link, first_direction(direct));
  }
  if ((step->acts & BL_NCCL_MEETING_TELL_UP) != 0) {
    tell_up(link);
  }
  if ((step->acts & BL_NCCL_MEETING_TELL_FAILED) != 0) {
    tell_failed(link, &step->err);
  }
}

void bl__direct_meet(bl__link_t *link) {
  bl__direct_t *direct = link->direct;
  pthread_mutex_lock(&link->hub->mutex);
  bl_nccl_meeting_meet(&direct->meeting);
  direct->settled = false;
  direct->since_ns = bl_clock_now_ns();
  pthread_mutex_unlock(&link->hub->mutex);
  bl__hub_wake(link->hub);
}

static bl_nccl_meeting_state_t state_of(const bl__direct_t *direct) {
  pthread_mutex_lock(&direct->hub->mutex);
  const bl_nccl_meeting_state_t state = direct->meeting.state;
  pthread_mutex_unlock(&direct->hub->mutex);
  return state;
}

bool bl__direct_is_up(bl__link_t *link) {
  if (state_of(link->direct) == BL_NCCL_MEETING_UP) {
    return true;
  }
  bl__direct_meet(link);
  return false;
}

void bl__direct_part(bl__direct_t *direct, bl_status_t status, const char *text) {
  bl_error_t err;
  (void)bl_error_set(&err, status, "%s", text);
  for (uint32_t i = 0; i < direct->move_count; i++) {
    direct->moves[i].tensor = NULL; // the exchange forgets them
  }
  if ((bl_nccl_meeting_part(&direct->meeting, &err).acts & BL_NCCL_MEETING_CLOSE) != 0) {
    bl_nccl_pair_abort(&direct->pair, status, text);
  }
}

static bl_nccl_way_t first_way(const bl_hub_t *hub, int32_t stage) {
  const bool lower = hub->stage < stage;
  return (bl_nccl_way_t){.from = (uint32_t)(lower ? hub->stage : stage), .to = (uint32_t)(lower ? stage : hub->stage)};
}

// Mutex held. Whether the pairs of this stage that come earlier in the order of all are made, or are not to be.
static bool is_turn(const bl__direct_t *direct) {
  const bl_hub_t *hub = direct->hub;
  const bl_nccl_way_t own = first_way(hub, direct->stage);
  for (size_t i = 0; i < hub->peer_count; i++) {
    const bl__peer_t *peer = hub->peers[i];
    const bl_nccl_way_t way = first_way(hub, peer->stage);
    if (peer->link != NULL && peer->link->direct != NULL && bl_nccl_meeting_is_busy(&peer->direct->meeting) &&
        bl_nccl_way_compare(&way, &own) < 0) {
      return false;
    }
  }
  const bl__connect_t *connect = hub->connect;
  for (size_t i = 0; connect != NULL && i < connect->peer_count; i++) {
    const bl_nccl_way_t way = first_way(hub, connect->peers[i].stage);
    if (!connect->peers[i].up && bl_nccl_way_compare(&way, &own) < 0) {
      return false;
    }
  }
  return true;
}

// Frees communicators that have ended.
static void sweep(bl__direct_t *direct) {
  if (state_of(direct) == BL_NCCL_MEETING_ENDING && bl_nccl_pair_sweep(&direct->pair)) {
    pthread_mutex_lock(&direct->hub->mutex);
    (void)bl_nccl_meeting_closed(&direct->meeting);
    pthread_mutex_unlock(&direct->hub->mutex);
  }
}

// What has become of the communicators.
static void look(bl__link_t *link) {
  bl__direct_t *direct = link->direct;
  const bl_nccl_meeting_state_t state = state_of(direct);
  if (state != BL_NCCL_MEETING_MAKING && state != BL_NCCL_MEETING_MADE && state != BL_NCCL_MEETING_UP) {
    return;
  }
  bl_error_t err = {0};
  const bl_nccl_state_t now = bl_nccl_pair_state(&direct->pair, &err);
  if (now >= BL_NCCL_ABORTING) {
    fail(link, &err);
  } else if (state == BL_NCCL_MEETING_MAKING && now == BL_NCCL_READY) {
    pthread_mutex_lock(&link->hub->mutex);
    const bl_nccl_meeting_step_t step = bl_nccl_meeting_made(&direct->meeting);
    pthread_mutex_unlock(&link->hub->mutex);
    carry_out(link, &step);
  } else if (state == BL_NCCL_MEETING_MAKING && direct->pair.channels[1] == NULL && direct->pair.channels[0] != NULL &&
             bl_nccl_channel_state(direct->pair.channels[0], NULL) == BL_NCCL_READY) {
    open_direction(link, first_direction(direct) == BL_PAIR_OUT ? BL_PAIR_IN : BL_PAIR_OUT);
  }
}

void bl__direct_sweep(bl_hub_t *hub) {
  for (size_t i = 0; i < hub->peer_count; i++) {
    if (hub->peers[i]->direct != NULL) {
      sweep(hub->peers[i]->direct);
    }
  }
}

void bl__direct_turn(bl__link_t *link) {
  bl__direct_t *direct = link->direct;
  if (direct == NULL || link->state != BL__LINK_UP) {
    return;
  }
  look(link);
  if (link->direct == NULL || link->state != BL__LINK_UP) {
    return;
  }
  pthread_mutex_lock(&link->hub->mutex);
  bl_nccl_meeting_step_t step = {0};
  if (bl_nccl_meeting_can_begin(&direct->meeting) && is_turn(direct)) {
    step = bl_nccl_meeting_turn(&direct->meeting);
  }
  pthread_mutex_unlock(&link->hub->mutex);
  carry_out(link, &step);
}

void bl__direct_heard(bl__link_t *link) {
  bl_meet_t meet;
  const char *reason = NULL;
  if (bl_meet_decode(link->reader.body, &meet, &reason) != BL_OK) {
    bl__link_lose(link, BL_INTERNAL, "%s sent a word that is refused: %s", BL__NAME(link->hub, link->stage), reason);
    return;
  }
  bl__direct_t *direct = link->direct;
  if (direct == NULL) {
    return; // of communicators that were given up
  }
  bl_error_t why = {0};
  if (meet.status != BL_OK) {
    (void)bl_error_set(&why, meet.status, "%s", meet.text);
  }
  pthread_mutex_lock(&link->hub->mutex);
  if (meet.verb == BL_NCCL_MEETING_IDS && !direct->pair.first && meet.generation > direct->meeting.generation) {
    memcpy(direct->ids, meet.ids, sizeof direct->ids);
  }
  const bl_nccl_meeting_step_t step = bl_nccl_meeting_heard(&direct->meeting, meet.verb, meet.generation, &why);
  pthread_mutex_unlock(&link->hub->mutex);
  carry_out(link, &step);
  bl__hub_wake(link->hub); // it may be this pair's turn now
}

// ---- transfers ---------------------------------------------------------------------------------------------------------

// Mutex held.
static void lose_tensor(bl__direct_t *direct, bl_tensor_t *tensor, const bl_error_t *err) {
  bl_hub_t *hub = direct->hub;
  if (!tensor->stale && tensor->attempt == hub->attempt && direct->broken_attempt != hub->attempt) {
    direct->broken_attempt = hub->attempt;
    direct->err = *err;
    // Communicators are made again, whichever end it was: another attempt may end well.
    direct->err.status = err->status == BL_IO ? BL_UNAVAILABLE : err->status;
  }
  bl__peer_t *peer = bl__hub_find(hub, direct->stage);
  bl_exchange_drop(peer->exchange, tensor);
}

// On a thread of the engine.
static void over(bl_nccl_transfer_t *transfer) {
  bl__move_t *move = (bl__move_t *)(void *)transfer; // its first member
  bl__direct_t *direct = move->direct;
  bl_hub_t *hub = direct->hub;
  pthread_mutex_lock(&hub->mutex);
  bl_tensor_t *tensor = move->tensor;
  move->used = false;
  direct->moving--;
  bl_exchange_t *exchange = bl__hub_find(hub, direct->stage)->exchange;
  if (tensor != NULL && transfer->status != BL_OK) {
    bl_error_t err;
    (void)bl_nccl_channel_state(move->channel, &err);
    lose_tensor(direct, tensor, &err);
  } else if (tensor != NULL && tensor->stale) {
    bl_exchange_drop(exchange, tensor);
  } else if (tensor != NULL) {
    const bool sent = tensor->role == BL_TENSOR_SEND;
    hub->counters.tensors_sent += sent;
    hub->counters.tensors_received += !sent;
    bl__hub_count_sent(hub, direct->stage, sent ? transfer->bytes : 0);
    hub->counters.bytes_received += sent ? 0 : transfer->bytes;
    (void)bl_exchange_moved(exchange, tensor, transfer->bytes);
  }
  bl__hub_changed(hub);
  pthread_cond_broadcast(&hub->untouched);
  pthread_mutex_unlock(&hub->mutex);
}

// Mutex held. Queues our half of a tensor.
static void queue(bl__direct_t *direct, bl_pair_direction_t direction, bl_tensor_t *tensor, void *buffer) {
  bl__move_t *move = NULL;
  for (uint32_t i = 0; i < direct->move_count && move == NULL; i++) {
    move = direct->moves[i].used ? NULL : &direct->moves[i];
  }
  bl_error_t err;
  if (move == NULL) { // more than are in flight there are none: each is a posted tensor
    (void)bl_error_set(&err, BL_INTERNAL, "more transfers than tensors");
    lose_tensor(direct, tensor, &err);
    return;
  }
  *move = (bl__move_t){.transfer = {.buffer = buffer, .bytes = tensor->bytes, .over = over},
                       .direct = direct,
                       .channel = direct->pair.channels[bl_nccl_pair_index(&direct->pair, direction)],
                       .tensor = tensor,
                       .used = true};
  direct->moving++;
  if (bl_nccl_pair_post(&direct->pair, direction, &move->transfer, &err) !=
      BL_OK) { // bl__direct_turn sees that it failed
    move->used = false;
    direct->moving--;
    lose_tensor(direct, tensor, &err);
  }
}

// Says GO, for which there is room, and queues our half of a send that the peer has given credit for.
static void send_tensor(bl__link_t *link, bl_tensor_t *tensor) {
  bl__direct_t *direct = link->direct;
  const bl_frame_t frame = {.kind = BL_FRAME_GO,
                            .attempt = tensor->attempt,
                            .key = tensor->key,
                            .bytes = tensor->bytes,
                            .region = direct->meeting.generation};
  bl_exchange_launch(link->exchange, tensor);
  (void)!bl__link_put(link, &frame, NULL, NULL, 0);
  queue(direct, BL_PAIR_OUT, tensor, (void *)(uintptr_t)tensor->source);
}

void bl__direct_launch(bl__link_t *link) {
  bl_tensor_t *tensor;
  while (link->direct->meeting.state == BL_NCCL_MEETING_UP && bl_frame_writer_room(&link->writer) > 1 &&
         (tensor = bl__link_next_transfer(link)) != NULL) {
    send_tensor(link, tensor);
  }
}

void bl__direct_go(bl__link_t *link) {
  bl_hub_t *hub = link->hub;
  bl__direct_t *direct = link->direct;
  const bl_frame_t *frame = &link->reader.frame;
  const char *reason = NULL;
  bl_tensor_t *tensor = NULL;
  bl_status_t status = BL_OK;
  bl_error_t err;
  pthread_mutex_lock(&hub->mutex);
  const bool usable = direct->meeting.state == BL_NCCL_MEETING_UP && direct->meeting.generation == frame->region;
  if (!usable) { // it broke here meanwhile, which the sender hears, or has heard
    if (frame->attempt == hub->attempt && direct->broken_attempt != hub->attempt) {
      direct->broken_attempt = hub->attempt;
      direct->err = direct->meeting.err;
      bl__hub_changed(hub);
    }
  } else {
    const uint64_t stale = bl_exchange_stale_count(link->exchange);
    status = bl_exchange_on_data(link->exchange, frame, &tensor, &reason);
    hub->counters.stale_dropped += bl_exchange_stale_count(link->exchange) - stale;
    if (status == BL_OK && tensor != NULL) {
      queue(direct, BL_PAIR_IN, tensor, tensor->destination);
    }
  }
  pthread_mutex_unlock(&hub->mutex);
  if (status != BL_OK) {
    bl__link_lose(link, BL_INTERNAL, "%s %s (GO)", BL__NAME(link->hub, link->stage), reason);
  } else if (usable && tensor == NULL) { // the sender has queued its half: only the end of the communicator ends that
    (void)bl_error_set(&err, BL_CANCELLED, "%s has given up attempt %llu", BL__NAME(hub, hub->stage),
                       (unsigned long long)frame->attempt);
    fail(link, &err);
  }
}

bool bl__direct_is_broken(const bl__direct_t *direct, uint64_t attempt, bl_error_t *err) {
  if (direct == NULL) {
    return false;
  }
  if (direct->broken_attempt == attempt) {
    *err = direct->err;
    return true;
  }
  const bl_nccl_meeting_t *meeting = &direct->meeting;
  if (meeting->state == BL_NCCL_MEETING_APART || (meeting->state == BL_NCCL_MEETING_ENDING && !meeting->again)) {
    *err = meeting->err;
    return true;
  }
  return false;
}

void bl__direct_begin(bl__direct_t *direct) {
  bl_nccl_meeting_want(&direct->meeting);
  bl__hub_wake(direct->hub);
}
