// SPDX-License-Identifier: Apache-2.0
#include "datapath/transport_nccl.h"

#include "datapath/nccl/order.h"
#include "datapath/nccl/version.h"
#include "datapath/transport.h"
#include "sys/clock.h"
#include "sys/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- lifetime -------------------------------------------------------------------------------------------------------

bl__nccl_link_t *bl__nccl_link_of(bl_transport_t *transport, bl__peer_t *peer) {
  if (peer->nccl_link != NULL) {
    return peer->nccl_link;
  }
  bl__nccl_link_t *made = calloc(1, sizeof *made);
  // Sends and receives, of this attempt and of aborted ones.
  const uint32_t count = 4 * transport->max_in_flight;
  if (made == NULL || (made->moves = calloc(count, sizeof *made->moves)) == NULL) {
    free(made);
    return NULL;
  }
  made->transport = transport;
  made->stage = peer->stage;
  made->move_count = count;
  made->pair.first = transport->stage < peer->stage;
  bl_nccl_rendezvous_init(&made->rendezvous, made->pair.first);
  peer->nccl_link = made;
  return made;
}

void bl__nccl_link_shut(bl__nccl_link_t *nccl_link) {
  if (nccl_link != NULL) {
    bl_nccl_pair_close(&nccl_link->pair);
  }
}

void bl__nccl_link_free(bl__nccl_link_t *nccl_link) {
  if (nccl_link != NULL) {
    free(nccl_link->moves);
    free(nccl_link);
  }
}

// ---- the rendezvous -------------------------------------------------------------------------------------------------

static void carry_out(bl__link_t *link, const bl_nccl_rendezvous_step_t *step);

// On a thread of the engine.
static void channel_changed(void *context, bl_nccl_channel_t *channel) {
  (void)channel;
  const bl__nccl_link_t *nccl_link = context;
  bl__transport_wake(nccl_link->transport);
}

static void fail(bl__link_t *link, const bl_error_t *err) {
  bl__nccl_link_t *nccl_link = link->nccl_link;
  pthread_mutex_lock(&link->transport->mutex);
  const bl_nccl_rendezvous_step_t step = bl_nccl_rendezvous_failed(&nccl_link->rendezvous, err);
  pthread_mutex_unlock(&link->transport->mutex);
  carry_out(link, &step);
}

// Creates the communicator of one direction. A stage creates them one after the other, all stages in one order
// (nccl/order.h).
static void open_direction(bl__link_t *link, bl_pair_direction_t direction) {
  bl__nccl_link_t *nccl_link = link->nccl_link;
  const int32_t own = link->transport->stage, peer = nccl_link->stage;
  const bool out = direction == BL_PAIR_OUT;
  char name[BL_NCCL_NAME_BYTES];
  snprintf(name, sizeof name, "stage %d to stage %d", out ? own : peer, out ? peer : own);
  const bl_nccl_channel_options_t options = {.name = name, .on_change = channel_changed, .context = nccl_link};
  bl_error_t err;
  if (bl_nccl_pair_open(&nccl_link->pair, link->transport->nccl, direction, nccl_link->ids, &options, &err) != BL_OK) {
    fail(link, &err);
  }
}

// Returns the direction that is created first: from the lower to the higher stage.
static bl_pair_direction_t first_direction(const bl__nccl_link_t *nccl_link) {
  return nccl_link->pair.first ? BL_PAIR_OUT : BL_PAIR_IN;
}

static void say(bl__link_t *link, const bl_nccl_rendezvous_step_t *step) {
  bl_rendezvous_message_t rendezvous = {.kind = step->kind, .generation = step->generation, .status = step->err.status};
  if (step->kind == BL_NCCL_RENDEZVOUS_IDS) {
    memcpy(rendezvous.ids, link->nccl_link->ids, sizeof rendezvous.ids);
  }
  snprintf(rendezvous.text, sizeof rendezvous.text, "%.190s", step->err.status != BL_OK ? step->err.text : "");
  uint8_t body[BL_FRAME_RENDEZVOUS_BYTES];
  bl_rendezvous_message_encode(&rendezvous, body);
  if (!bl__link_put(link, &(bl_frame_t){.kind = BL_FRAME_RENDEZVOUS}, body, NULL, 0)) {
    bl__link_lose(link, BL_EXHAUSTED, "%s does not read what is said about communicators",
                  BL__NAME(link->transport, link->stage));
  }
}

// The pair's lower stage draws the ids, as late as possible.
static bool draw_ids(bl__link_t *link) {
  bl_error_t err;
  if (bl_nccl_pair_draw(link->transport->nccl, link->nccl_link->ids, &err) != BL_OK) {
    fail(link, &err);
    return false;
  }
  return true;
}

static void tell_up(bl__link_t *link) {
  bl__nccl_link_t *nccl_link = link->nccl_link;
  bl_transport_t *transport = link->transport;
  char version[BL_NCCL_VERSION_TEXT], reason[BL_TRANSPORT_REASON_BYTES];
  snprintf(reason, sizeof reason, "nccl: both ends have NCCL %s, credits by %.120s",
           bl_nccl_version_format(transport->block_memory.nccl, version), link->reason);
  pthread_mutex_lock(&transport->mutex);
  const bool first = !nccl_link->decided;
  nccl_link->decided = true;
  bl__peer_t *peer = bl__transport_find(transport, nccl_link->stage);
  peer->path = BL_PATH_NCCL;
  snprintf(peer->reason, sizeof peer->reason, "%s", reason);
  bl__transport_changed(transport);
  pthread_mutex_unlock(&transport->mutex);
  bl_log(BL_LOG_INFO, "data path: %s, %s%s", BL__NAME(transport, nccl_link->stage), reason,
         first ? "" : ", created again");
  if (first) {
    bl__connect_up(transport, link);
  }
}

// Both ends have dropped this generation. The first time, the link itself then moves tensors, as if there were no NCCL,
// or the connect that requested nccl fails. Later the pair stays as it is, and attempts fail until it is up again.
static void tell_failed(bl__link_t *link, const bl_error_t *err) {
  bl__nccl_link_t *nccl_link = link->nccl_link;
  bl_transport_t *transport = link->transport;
  bl_error_t no_twins = {0};
  // Only this thread sets `decided`.
  if (!nccl_link->decided && bl__transport_hold_twins(transport, &no_twins) != BL_OK) {
    bl__link_lose(link, no_twins.status, "%s", no_twins.text);
    return;
  }
  pthread_mutex_lock(&transport->mutex);
  const bool first = !nccl_link->decided;
  if (first) {
    nccl_link->decided = true;
    snprintf(link->obstacle, sizeof link->obstacle, "%.190s", err->text);
    link->obstacle_status = err->status;
    link->nccl_link = NULL; // bl__nccl_link_sweep frees its communicators once they have ended
    bl__link_take_over(link);
  }
  bl__transport_changed(transport);
  pthread_mutex_unlock(&transport->mutex);
  bl_log(BL_LOG_WARNING, "data path: %s: %s", BL__NAME(transport, nccl_link->stage), err->text);
  if (first) {
    bl__connect_up(transport, link);
  }
}

static void carry_out(bl__link_t *link, const bl_nccl_rendezvous_step_t *step) {
  bl__nccl_link_t *nccl_link = link->nccl_link;
  if (step->acts != 0) {
    bl__transport_wake(link->transport); // it may now be another pair's turn
  }
  if ((step->acts & BL_NCCL_RENDEZVOUS_CLOSE) != 0) {
    bl_nccl_pair_abort(&nccl_link->pair, step->err.status, step->err.text);
  }
  if ((step->acts & BL_NCCL_RENDEZVOUS_SAY) != 0) {
    if (step->kind == BL_NCCL_RENDEZVOUS_IDS && !draw_ids(link)) {
      return;
    }
    say(link, step);
  }
  if (link->state != BL__LINK_UP) {
    return;
  }
  if ((step->acts & BL_NCCL_RENDEZVOUS_OPEN) != 0) {
    open_direction(link, first_direction(nccl_link));
  }
  if ((step->acts & BL_NCCL_RENDEZVOUS_TELL_UP) != 0) {
    tell_up(link);
  }
  if ((step->acts & BL_NCCL_RENDEZVOUS_TELL_FAILED) != 0) {
    tell_failed(link, &step->err);
  }
}

void bl__nccl_link_meet(bl__link_t *link) {
  bl__nccl_link_t *nccl_link = link->nccl_link;
  pthread_mutex_lock(&link->transport->mutex);
  bl_nccl_rendezvous_begin(&nccl_link->rendezvous);
  nccl_link->decided = false;
  pthread_mutex_unlock(&link->transport->mutex);
  bl__transport_wake(link->transport);
}

static bl_nccl_rendezvous_state_t state_of(const bl__nccl_link_t *nccl_link) {
  pthread_mutex_lock(&nccl_link->transport->mutex);
  const bl_nccl_rendezvous_state_t state = nccl_link->rendezvous.state;
  pthread_mutex_unlock(&nccl_link->transport->mutex);
  return state;
}

bool bl__nccl_link_is_up(bl__link_t *link) {
  if (state_of(link->nccl_link) == BL_NCCL_RENDEZVOUS_UP) {
    return true;
  }
  bl__nccl_link_meet(link);
  return false;
}

void bl__nccl_link_part(bl__nccl_link_t *nccl_link, bl_status_t status, const char *text) {
  bl_error_t err;
  (void)bl_error_set(&err, status, "%s", text);
  for (uint32_t i = 0; i < nccl_link->move_count; i++) {
    nccl_link->moves[i].tensor = NULL; // the exchange drops them
  }
  if ((bl_nccl_rendezvous_part(&nccl_link->rendezvous, &err).acts & BL_NCCL_RENDEZVOUS_CLOSE) != 0) {
    bl_nccl_pair_abort(&nccl_link->pair, status, text);
  }
}

static bl_nccl_way_t first_way(const bl_transport_t *transport, int32_t stage) {
  const bool lower = transport->stage < stage;
  return (bl_nccl_way_t){.from = (uint32_t)(lower ? transport->stage : stage),
                         .to = (uint32_t)(lower ? stage : transport->stage)};
}

// Mutex held. Returns whether it is this pair's turn: all earlier pairs of this stage are created, or will not be.
static bool is_turn(const bl__nccl_link_t *nccl_link) {
  const bl_transport_t *transport = nccl_link->transport;
  const bl_nccl_way_t own = first_way(transport, nccl_link->stage);
  for (size_t i = 0; i < transport->peer_count; i++) {
    const bl__peer_t *peer = transport->peers[i];
    const bl_nccl_way_t way = first_way(transport, peer->stage);
    if (peer->link != NULL && peer->link->nccl_link != NULL &&
        bl_nccl_rendezvous_is_busy(&peer->nccl_link->rendezvous) && bl_nccl_way_compare(&way, &own) < 0) {
      return false;
    }
  }
  const bl__connect_t *connect = transport->connect;
  for (size_t i = 0; connect != NULL && i < connect->peer_count; i++) {
    const bl_nccl_way_t way = first_way(transport, connect->peers[i].stage);
    if (!connect->peers[i].up && bl_nccl_way_compare(&way, &own) < 0) {
      return false;
    }
  }
  return true;
}

// Frees communicators that have ended.
static void sweep(bl__nccl_link_t *nccl_link) {
  if (state_of(nccl_link) == BL_NCCL_RENDEZVOUS_ENDING && bl_nccl_pair_sweep(&nccl_link->pair)) {
    pthread_mutex_lock(&nccl_link->transport->mutex);
    (void)bl_nccl_rendezvous_closed(&nccl_link->rendezvous);
    pthread_mutex_unlock(&nccl_link->transport->mutex);
  }
}

// Checks the state of the communicators.
static void look(bl__link_t *link) {
  bl__nccl_link_t *nccl_link = link->nccl_link;
  const bl_nccl_rendezvous_state_t state = state_of(nccl_link);
  if (state != BL_NCCL_RENDEZVOUS_MAKING && state != BL_NCCL_RENDEZVOUS_MADE && state != BL_NCCL_RENDEZVOUS_UP) {
    return;
  }
  bl_error_t err = {0};
  const bl_nccl_state_t now = bl_nccl_pair_state(&nccl_link->pair, &err);
  if (now >= BL_NCCL_ABORTING) {
    fail(link, &err);
  } else if (state == BL_NCCL_RENDEZVOUS_MAKING && now == BL_NCCL_READY) {
    pthread_mutex_lock(&link->transport->mutex);
    const bl_nccl_rendezvous_step_t step = bl_nccl_rendezvous_made(&nccl_link->rendezvous);
    pthread_mutex_unlock(&link->transport->mutex);
    carry_out(link, &step);
  } else if (state == BL_NCCL_RENDEZVOUS_MAKING && nccl_link->pair.channels[1] == NULL &&
             nccl_link->pair.channels[0] != NULL &&
             bl_nccl_channel_state(nccl_link->pair.channels[0], NULL) == BL_NCCL_READY) {
    open_direction(link, first_direction(nccl_link) == BL_PAIR_OUT ? BL_PAIR_IN : BL_PAIR_OUT);
  }
}

void bl__nccl_link_sweep(bl_transport_t *transport) {
  for (size_t i = 0; i < transport->peer_count; i++) {
    if (transport->peers[i]->nccl_link != NULL) {
      sweep(transport->peers[i]->nccl_link);
    }
  }
}

void bl__nccl_link_iterate(bl__link_t *link) {
  bl__nccl_link_t *nccl_link = link->nccl_link;
  if (nccl_link == NULL || link->state != BL__LINK_UP) {
    return;
  }
  look(link);
  if (link->nccl_link == NULL || link->state != BL__LINK_UP) {
    return;
  }
  pthread_mutex_lock(&link->transport->mutex);
  bl_nccl_rendezvous_step_t step = {0};
  if (bl_nccl_rendezvous_can_begin(&nccl_link->rendezvous) && is_turn(nccl_link)) {
    step = bl_nccl_rendezvous_turn(&nccl_link->rendezvous);
  }
  pthread_mutex_unlock(&link->transport->mutex);
  carry_out(link, &step);
}

void bl__nccl_link_heard(bl__link_t *link) {
  bl_rendezvous_message_t rendezvous;
  const char *reason = NULL;
  if (bl_rendezvous_message_decode(link->reader.body, &rendezvous, &reason) != BL_OK) {
    bl__link_lose(link, BL_INTERNAL, "%s sent a rendezvous message that is refused: %s",
                  BL__NAME(link->transport, link->stage), reason);
    return;
  }
  bl__nccl_link_t *nccl_link = link->nccl_link;
  if (nccl_link == NULL) {
    return; // of communicators that were dropped
  }
  bl_error_t why = {0};
  if (rendezvous.status != BL_OK) {
    (void)bl_error_set(&why, rendezvous.status, "%s", rendezvous.text);
  }
  pthread_mutex_lock(&link->transport->mutex);
  if (rendezvous.kind == BL_NCCL_RENDEZVOUS_IDS && !nccl_link->pair.first &&
      rendezvous.generation > nccl_link->rendezvous.generation) {
    memcpy(nccl_link->ids, rendezvous.ids, sizeof nccl_link->ids);
  }
  const bl_nccl_rendezvous_step_t step =
      bl_nccl_rendezvous_heard(&nccl_link->rendezvous, rendezvous.kind, rendezvous.generation, &why);
  pthread_mutex_unlock(&link->transport->mutex);
  carry_out(link, &step);
  bl__transport_wake(link->transport); // it may now be this pair's turn
}

// ---- transfers ------------------------------------------------------------------------------------------------------

// Mutex held.
static void lose_tensor(bl__nccl_link_t *nccl_link, bl_tensor_t *tensor, const bl_error_t *err) {
  bl_transport_t *transport = nccl_link->transport;
  if (!tensor->stale && tensor->attempt == transport->attempt && nccl_link->broken_attempt != transport->attempt) {
    nccl_link->broken_attempt = transport->attempt;
    nccl_link->err = *err;
    // New communicators are created whichever end failed, so another attempt may succeed.
    nccl_link->err.status = err->status == BL_IO ? BL_UNAVAILABLE : err->status;
  }
  bl__peer_t *peer = bl__transport_find(transport, nccl_link->stage);
  bl_exchange_drop(peer->exchange, tensor);
}

// On a thread of the engine.
static void over(bl_nccl_transfer_t *transfer) {
  bl__move_t *move = (bl__move_t *)(void *)transfer; // its first member
  bl__nccl_link_t *nccl_link = move->nccl_link;
  bl_transport_t *transport = nccl_link->transport;
  pthread_mutex_lock(&transport->mutex);
  bl_tensor_t *tensor = move->tensor;
  move->used = false;
  nccl_link->moving--;
  bl_exchange_t *exchange = bl__transport_find(transport, nccl_link->stage)->exchange;
  if (tensor != NULL && transfer->status != BL_OK) {
    bl_error_t err;
    (void)bl_nccl_channel_state(move->channel, &err);
    lose_tensor(nccl_link, tensor, &err);
  } else if (tensor != NULL && tensor->stale) {
    bl_exchange_drop(exchange, tensor);
  } else if (tensor != NULL) {
    const bool sent = tensor->role == BL_TENSOR_SEND;
    transport->counters.tensors_sent += sent;
    transport->counters.tensors_received += !sent;
    bl__transport_count_sent(transport, nccl_link->stage, sent ? transfer->bytes : 0);
    transport->counters.bytes_received += sent ? 0 : transfer->bytes;
    (void)bl_exchange_moved(exchange, tensor, transfer->bytes);
  }
  bl__transport_changed(transport);
  pthread_cond_broadcast(&transport->untouched);
  pthread_mutex_unlock(&transport->mutex);
}

// Mutex held. Queues our half of a tensor.
static void queue(bl__nccl_link_t *nccl_link, bl_pair_direction_t direction, bl_tensor_t *tensor, void *buffer) {
  bl__move_t *move = NULL;
  for (uint32_t i = 0; i < nccl_link->move_count && move == NULL; i++) {
    move = nccl_link->moves[i].used ? NULL : &nccl_link->moves[i];
  }
  bl_error_t err;
  if (move == NULL) { // cannot happen: each move is a posted tensor
    (void)bl_error_set(&err, BL_INTERNAL, "more transfers than tensors");
    lose_tensor(nccl_link, tensor, &err);
    return;
  }
  *move = (bl__move_t){.transfer = {.buffer = buffer, .bytes = tensor->bytes, .over = over},
                       .nccl_link = nccl_link,
                       .channel = nccl_link->pair.channels[bl_nccl_pair_index(&nccl_link->pair, direction)],
                       .tensor = tensor,
                       .used = true};
  nccl_link->moving++;
  if (bl_nccl_pair_post(&nccl_link->pair, direction, &move->transfer, &err) != BL_OK) {
    // bl__nccl_link_iterate handles the failure of the pair.
    move->used = false;
    nccl_link->moving--;
    lose_tensor(nccl_link, tensor, &err);
  }
}

// Sends GO, for which the caller has checked the space, and queues our half of a send that the peer has given credit
// for.
static void send_tensor(bl__link_t *link, bl_tensor_t *tensor) {
  bl__nccl_link_t *nccl_link = link->nccl_link;
  const bl_frame_t frame = {.kind = BL_FRAME_GO,
                            .attempt = tensor->attempt,
                            .key = tensor->key,
                            .bytes = tensor->bytes,
                            .region = nccl_link->rendezvous.generation};
  bl_exchange_launch(link->exchange, tensor);
  (void)!bl__link_put(link, &frame, NULL, NULL, 0);
  queue(nccl_link, BL_PAIR_OUT, tensor, (void *)(uintptr_t)tensor->source);
}

void bl__nccl_link_launch(bl__link_t *link) {
  bl_tensor_t *tensor;
  while (link->nccl_link->rendezvous.state == BL_NCCL_RENDEZVOUS_UP && bl_frame_writer_free_frames(&link->writer) > 1 &&
         (tensor = bl__link_next_transfer(link)) != NULL) {
    send_tensor(link, tensor);
  }
}

void bl__nccl_link_go(bl__link_t *link) {
  bl_transport_t *transport = link->transport;
  bl__nccl_link_t *nccl_link = link->nccl_link;
  const bl_frame_t *frame = &link->reader.frame;
  const char *reason = NULL;
  bl_tensor_t *tensor = NULL;
  bl_status_t status = BL_OK;
  bl_error_t err;
  pthread_mutex_lock(&transport->mutex);
  const bool usable =
      nccl_link->rendezvous.state == BL_NCCL_RENDEZVOUS_UP && nccl_link->rendezvous.generation == frame->region;
  if (!usable) { // it broke here; the sender is notified
    if (frame->attempt == transport->attempt && nccl_link->broken_attempt != transport->attempt) {
      nccl_link->broken_attempt = transport->attempt;
      nccl_link->err = nccl_link->rendezvous.err;
      bl__transport_changed(transport);
    }
  } else {
    const uint64_t stale = bl_exchange_stale_count(link->exchange);
    status = bl_exchange_on_data(link->exchange, frame, &tensor, &reason);
    transport->counters.stale_dropped += bl_exchange_stale_count(link->exchange) - stale;
    if (status == BL_OK && tensor != NULL) {
      queue(nccl_link, BL_PAIR_IN, tensor, tensor->destination);
    }
  }
  pthread_mutex_unlock(&transport->mutex);
  if (status != BL_OK) {
    bl__link_lose(link, BL_INTERNAL, "%s %s (GO)", BL__NAME(link->transport, link->stage), reason);
  } else if (usable && tensor == NULL) {
    // The sender has queued its half. Only the end of the communicator ends that.
    (void)bl_error_set(&err, BL_CANCELLED, "%s has aborted attempt %llu", BL__NAME(transport, transport->stage),
                       (unsigned long long)frame->attempt);
    fail(link, &err);
  }
}

bool bl__nccl_link_is_broken(const bl__nccl_link_t *nccl_link, uint64_t attempt, bl_error_t *err) {
  if (nccl_link == NULL) {
    return false;
  }
  if (nccl_link->broken_attempt == attempt) {
    *err = nccl_link->err;
    return true;
  }
  const bl_nccl_rendezvous_t *rendezvous = &nccl_link->rendezvous;
  if (rendezvous->state == BL_NCCL_RENDEZVOUS_APART ||
      (rendezvous->state == BL_NCCL_RENDEZVOUS_ENDING && !rendezvous->again)) {
    *err = rendezvous->err;
    return true;
  }
  return false;
}

void bl__nccl_link_begin(bl__nccl_link_t *nccl_link) {
  bl_nccl_rendezvous_want(&nccl_link->rendezvous);
  bl__transport_wake(nccl_link->transport);
}
