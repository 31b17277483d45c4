// SPDX-License-Identifier: Apache-2.0
// What all parts of the hub share: its peers, waking it and those who wait, counting.
#include "datapath/hub.h"

#include "sys/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

const char *bl__hub_name(const bl_hub_t *hub, int32_t number, char text[BL__HUB_NAME_BYTES]) {
  const int32_t stages = (int32_t)hub->replica_stages, tensor = (int32_t)hub->tensor_ranks, stage = number / tensor;
  char first[32] = "", last[32] = "";
  if (tensor > 1 && number >= 0) {
    snprintf(first, sizeof first, "tensor rank %d of ", number % tensor);
  }
  if (stages > 0 && number >= 0) {
    snprintf(last, sizeof last, " of replica %d", stage / stages);
  }
  snprintf(text, BL__HUB_NAME_BYTES, "%sstage %d%s", first, stages > 0 && number >= 0 ? stage % stages : stage, last);
  return text;
}

void bl__hub_wake(bl_hub_t *hub) {
  if (!atomic_exchange(&hub->woken, true)) {
    bl_loop_post(hub->loop, &hub->wake);
  }
}

void bl__hub_changed(bl_hub_t *hub) {
  atomic_fetch_add(&hub->changes, 1);
  pthread_cond_broadcast(&hub->changed);
}

bl__peer_t *bl__hub_find(bl_hub_t *hub, int32_t stage) {
  for (size_t i = 0; i < hub->peer_count; i++) {
    if (hub->peers[i]->stage == stage) {
      return hub->peers[i];
    }
  }
  return NULL;
}

void bl__hub_count_sent(bl_hub_t *hub, int32_t stage, uint64_t bytes) {
  hub->counters.bytes_sent += bytes;
  hub->counters.cross_machine_bytes += bl__hub_find(hub, stage)->crosses ? bytes : 0;
}

bl__peer_t *bl__hub_add(bl_hub_t *hub, int32_t stage) {
  bl__peer_t *peer = bl__hub_find(hub, stage);
  if (peer != NULL || hub->peer_count == BL_HUB_MAX_PEERS) {
    return peer;
  }
  peer = calloc(1, sizeof *peer);
  if (peer == NULL || bl_exchange_create(hub->max_in_flight, &peer->exchange) != BL_OK) {
    free(peer);
    return NULL;
  }
  peer->stage = stage;
  peer->lost = BL_UNAVAILABLE;
  snprintf(peer->reason, sizeof peer->reason, "there is no link yet");
  size_t at = hub->peer_count++;
  for (; at > 0 && hub->peers[at - 1]->stage > stage; at--) {
    hub->peers[at] = hub->peers[at - 1];
  }
  hub->peers[at] = peer;
  return peer;
}

void bl__hub_count_refused(bl_hub_t *hub, const char *format, ...) {
  char text[BL_HUB_REASON_BYTES];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  pthread_mutex_lock(&hub->mutex);
  uint64_t count = ++hub->counters.links_refused;
  pthread_mutex_unlock(&hub->mutex);
  bl_log(count <= BL__HUB_LOGGED_REFUSALS ? BL_LOG_WARNING : BL_LOG_DEBUG, "data path: connection refused: %s%s", text,
         count == BL__HUB_LOGGED_REFUSALS ? " (further ones are logged at debug level)" : "");
}

bl_status_t bl__hub_hold_twins(bl_hub_t *hub, bl_error_t *err) {
  bl__assert_transfer(hub);
  if (hub->device == NULL || hub->twins_made) {
    return BL_OK;
  }
  bl__arenas_t made = {0};
  bl_status_t status = hub->make_twins(hub->context, made.at, &made.count, err);
  if (status != BL_OK) {
    return status;
  }
  hub->twins_made = true;
  pthread_mutex_lock(&hub->mutex);
  hub->of_host = made;
  pthread_mutex_unlock(&hub->mutex);
  return BL_OK;
}

void bl__hub_watch_time(bl_hub_t *hub) {
  bl__assert_transfer(hub);
  if (!bl_timer_is_active(hub->tick)) {
    bl_timer_start(hub->tick, BL__HUB_TICK_MS, BL__HUB_TICK_MS);
  }
}
