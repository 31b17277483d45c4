// SPDX-License-Identifier: Apache-2.0
// Functions that all parts of the transport share: finding peers, waking the transport and its waiters, counting.
#include "datapath/transport.h"

#include "sys/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

const char *bl__transport_name(const bl_transport_t *transport, int32_t number, char text[BL__TRANSPORT_NAME_BYTES]) {
  const int32_t stages = (int32_t)transport->replica_stages, tensor = (int32_t)transport->tensor_ranks,
                stage = number / tensor;
  char first[32] = "", last[32] = "";
  if (tensor > 1 && number >= 0) {
    snprintf(first, sizeof first, "tensor rank %d of ", number % tensor);
  }
  if (stages > 0 && number >= 0) {
    snprintf(last, sizeof last, " of replica %d", stage / stages);
  }
  snprintf(text, BL__TRANSPORT_NAME_BYTES, "%sstage %d%s", first, stages > 0 && number >= 0 ? stage % stages : stage,
           last);
  return text;
}

void bl__transport_wake(bl_transport_t *transport) {
  if (!atomic_exchange(&transport->woken, true)) {
    bl_loop_post(transport->loop, &transport->wake);
  }
}

void bl__transport_changed(bl_transport_t *transport) {
  atomic_fetch_add(&transport->changes, 1);
  pthread_cond_broadcast(&transport->changed);
}

bl__peer_t *bl__transport_find(bl_transport_t *transport, int32_t stage) {
  for (size_t i = 0; i < transport->peer_count; i++) {
    if (transport->peers[i]->stage == stage) {
      return transport->peers[i];
    }
  }
  return NULL;
}

void bl__transport_count_sent(bl_transport_t *transport, int32_t stage, uint64_t bytes) {
  transport->counters.bytes_sent += bytes;
  transport->counters.cross_machine_bytes += bl__transport_find(transport, stage)->crosses ? bytes : 0;
}

bl__peer_t *bl__transport_add(bl_transport_t *transport, int32_t stage) {
  bl__peer_t *peer = bl__transport_find(transport, stage);
  if (peer != NULL || transport->peer_count == BL_TRANSPORT_MAX_PEERS) {
    return peer;
  }
  peer = calloc(1, sizeof *peer);
  if (peer == NULL || bl_exchange_create(transport->max_in_flight, &peer->exchange) != BL_OK) {
    free(peer);
    return NULL;
  }
  peer->stage = stage;
  peer->lost = BL_UNAVAILABLE;
  snprintf(peer->reason, sizeof peer->reason, "there is no link yet");
  size_t at = transport->peer_count++;
  for (; at > 0 && transport->peers[at - 1]->stage > stage; at--) {
    transport->peers[at] = transport->peers[at - 1];
  }
  transport->peers[at] = peer;
  return peer;
}

void bl__transport_count_refused(bl_transport_t *transport, const char *format, ...) {
  char text[BL_TRANSPORT_REASON_BYTES];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  pthread_mutex_lock(&transport->mutex);
  uint64_t count = ++transport->counters.links_refused;
  pthread_mutex_unlock(&transport->mutex);
  bl_log(count <= BL__TRANSPORT_LOGGED_REFUSALS ? BL_LOG_WARNING : BL_LOG_DEBUG, "data path: connection refused: %s%s",
         text, count == BL__TRANSPORT_LOGGED_REFUSALS ? " (further ones are logged at debug level)" : "");
}

bl_status_t bl__transport_hold_twins(bl_transport_t *transport, bl_error_t *err) {
  bl__assert_transfer(transport);
  if (transport->device == NULL || transport->twins_made) {
    return BL_OK;
  }
  bl__arenas_t made = {0};
  bl_status_t status = transport->make_twins(transport->context, made.at, &made.count, err);
  if (status != BL_OK) {
    return status;
  }
  transport->twins_made = true;
  pthread_mutex_lock(&transport->mutex);
  transport->of_host = made;
  pthread_mutex_unlock(&transport->mutex);
  return BL_OK;
}

void bl__transport_watch_time(bl_transport_t *transport) {
  bl__assert_transfer(transport);
  if (!bl_timer_is_active(transport->tick)) {
    bl_timer_start(transport->tick, BL__TRANSPORT_TICK_MS, BL__TRANSPORT_TICK_MS);
  }
}
