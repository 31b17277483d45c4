// SPDX-License-Identifier: Apache-2.0
#include "datapath/handshake.h"

#include "datapath/hub.h"
#include "sys/log.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void greet(bl__link_t *link, bl_frame_kind_t kind) {
  bl_hub_t *hub = link->hub;
  bl_greeting_t greeting = {.stage = hub->stage,
                            .peer = link->stage,
                            .path = link->path,
                            .nccl = hub->nccl != NULL ? hub->endpoint.nccl : 0,
                            .shared_gpu = hub->endpoint.shared_gpu,
                            .wants_nccl = link->wants_nccl};
  int fds[BL_FRAME_MAX_ARENAS];
  memcpy(greeting.token, link->peer_token, sizeof greeting.token);
  memcpy(greeting.own_token, hub->token, sizeof greeting.own_token);
  snprintf(greeting.reason, sizeof greeting.reason, "%s", link->reason);
  snprintf(greeting.gpu, sizeof greeting.gpu, "%s", hub->endpoint.gpu);
  for (size_t i = 0; i < hub->arena_count && link->path == BL_PATH_SHM; i++) {
    greeting.arena_bytes[i] = hub->arenas[i].bytes;
    fds[greeting.arena_count++] = hub->arenas[i].fd;
  }
  uint8_t body[BL_FRAME_GREETING_BYTES];
  bl_greeting_encode(&greeting, body);
  (void)!bl__link_put(link, &(bl_frame_t){.kind = kind}, body, fds,
                      greeting.arena_count); // the first there is: it fits
}

void bl__handshake_begin(bl__link_t *link) {
  greet(link, BL_FRAME_GREET);
}

// Maps what the greeting announced and lets go of the descriptors.
static bl_status_t map_arenas(bl__link_t *link, const bl_greeting_t *greeting, bl_error_t *err) {
  const size_t came = link->stream.passed_count;
  bl_status_t status = BL_OK;
  if (greeting->arena_count != came) {
    status = bl_error_set(err, BL_INVALID, "%zu descriptors came for %u arenas", came, greeting->arena_count);
  }
  for (int fd; (fd = bl_stream_take_descriptor(&link->stream)) >= 0;) {
    if (status == BL_OK) {
      status = bl_shared_map_open(&link->maps[link->map_count], fd, greeting->arena_bytes[link->map_count], err);
      link->map_count += status == BL_OK;
    }
    close(fd);
  }
  return status;
}

// Whether tensors can go from device to device: both ends find the same.
static void judge_direct(bl__link_t *link, const bl_greeting_t *greeting) {
  const bl_hub_t *hub = link->hub;
  link->wants_nccl = link->outgoing ? link->wants_nccl : greeting->wants_nccl;
  if (!link->wants_nccl) {
    return;
  }
  char own_name[BL__HUB_NAME_BYTES], peer_name[BL__HUB_NAME_BYTES];
  (void)bl__hub_name(hub, hub->stage, own_name);
  (void)bl__hub_name(hub, greeting->stage, peer_name);
  bl_path_end_t own = bl_endpoint_end(&hub->endpoint, own_name, NULL, true, true); // there is a connection
  own.nccl = hub->nccl != NULL ? own.nccl : 0;
  const bl_path_end_t peer = {.name = peer_name,
                              .gpu = greeting->gpu,
                              .nccl = greeting->nccl,
                              .shared_gpu = greeting->shared_gpu,
                              .tcp_address = true};
  char why[BL_PATH_REASON_BYTES] = "";
  link->meets = !bl_path_nccl_obstacle(&own, &peer, why);
  snprintf(link->obstacle, sizeof link->obstacle, "%.190s", why);
  link->obstacle_status = link->meets ? BL_OK : BL_PRECONDITION;
}

static void come_up(bl__link_t *link) {
  bl_hub_t *hub = link->hub;
  uint64_t mapped_bytes = 0;
  for (size_t i = 0; i < link->map_count; i++) {
    mapped_bytes += link->maps[i].bytes;
  }
  pthread_mutex_lock(&hub->mutex);
  bl__peer_t *peer = bl__hub_add(hub, link->stage);
  bl__link_t *old = peer != NULL ? peer->link : NULL;
  pthread_mutex_unlock(&hub->mutex);
  if (peer == NULL) {
    bl__link_lose(link, BL_EXHAUSTED, "no memory for a link to %s", BL__NAME(hub, link->stage));
    return;
  }
  if (old != NULL) {
    bl__link_lose(old, BL_UNAVAILABLE, "%s made a new link", BL__NAME(hub, link->stage));
  }
  pthread_mutex_lock(&hub->mutex);
  peer->link = link;
  peer->lost = BL_OK;
  peer->mapped_bytes = mapped_bytes;
  link->exchange = peer->exchange;
  bl__link_settle(link);
  link->direct = link->meets ? bl__direct_of(hub, peer) : NULL;
  if (link->direct != NULL) {
    bl_exchange_reset(peer->exchange, BL_EXCHANGE_PUSH, hub->attempt);
    peer->path = BL_PATH_AUTO;
  }
  pthread_mutex_unlock(&hub->mutex);
  link->state = BL__LINK_UP;
  hub->strangers -= link->outgoing ? 0 : 1;
  bl_log(BL_LOG_INFO, "data path: link to %s is up, %s", BL__NAME(hub, link->stage), link->reason);
  if (link->meets && link->direct == NULL) {
    bl__link_lose(link, BL_EXHAUSTED, "no memory for communicators with %s", BL__NAME(hub, link->stage));
  } else if (link->direct != NULL) {
    bl__direct_meet(link);
  } else {
    bl__connect_up(hub, link);
  }
}

static bl_status_t judge_greeting(const bl__link_t *link, const bl_greeting_t *greeting, char *text,
                                  size_t text_bytes) {
  const bl_hub_t *hub = link->hub;
  if (!bl_token_equal(greeting->token, hub->token)) {
    snprintf(text, text_bytes, "%s: wrong token", BL__NAME(hub, hub->stage));
    return BL_UNAUTHENTICATED;
  }
  if (greeting->peer != hub->stage) {
    snprintf(text, text_bytes, "this is %s, not %s", BL__NAME(hub, hub->stage), BL__NAME(hub, greeting->peer));
    return BL_INVALID;
  }
  if (greeting->stage >= hub->stage) {
    snprintf(text, text_bytes, "%s must wait for %s to connect", BL__NAME(hub, greeting->stage),
             BL__NAME(hub, hub->stage));
    return BL_INVALID;
  }
  if (greeting->path != link->path) {
    snprintf(text, text_bytes, "the greeting asks for another path than its socket");
    return BL_INVALID;
  }
  return BL_OK;
}

static void on_greeting(bl__link_t *link, const bl_greeting_t *greeting) {
  char text[BL_GREETING_REASON_BYTES];
  bl_status_t status = judge_greeting(link, greeting, text, sizeof text);
  if (status != BL_OK) {
    bl__link_refuse(link, status, text);
    return;
  }
  bl_error_t err = {0};
  if (map_arenas(link, greeting, &err) != BL_OK) {
    bl__link_refuse(link, err.status, err.text);
    return;
  }
  bl__link_name(link, greeting->stage, greeting->own_token, greeting->reason);
  judge_direct(link, greeting);
  link->state = BL__LINK_AWAIT_READY;
  greet(link, BL_FRAME_WELCOME);
}

static void on_welcome(bl__link_t *link, const bl_greeting_t *greeting) {
  if (greeting->stage != link->stage || greeting->peer != link->hub->stage) {
    bl__link_lose(link, BL_INTERNAL, "%s answered as %s", BL__NAME(link->hub, link->stage),
                  BL__NAME(link->hub, greeting->stage));
    return;
  }
  bl_error_t err = {0};
  if (map_arenas(link, greeting, &err) != BL_OK) {
    bl__link_lose(link, err.status, "%s", err.text); // the end of the connection tells the acceptor enough
    return;
  }
  judge_direct(link, greeting);
  (void)!bl__link_put(link, &(bl_frame_t){.kind = BL_FRAME_READY}, NULL, NULL, 0); // it fits
  come_up(link);
}

void bl__handshake_frame(bl__link_t *link) {
  const bl_frame_t *frame = &link->reader.frame;
  bl_greeting_t greeting;
  const char *reason = NULL;
  switch (frame->kind) {
  case BL_FRAME_GREET:
  case BL_FRAME_WELCOME:
    if (bl_greeting_decode(link->reader.body, &greeting, &reason) != BL_OK) {
      bl__link_lose(link, BL_INTERNAL, "a greeting is refused: %s", reason);
    } else if (frame->kind == BL_FRAME_GREET) {
      on_greeting(link, &greeting);
    } else {
      on_welcome(link, &greeting);
    }
    return;
  case BL_FRAME_READY:
    come_up(link);
    return;
  default:
    bl__link_lose(link, frame->status, "refused: %s", link->reader.text);
    return;
  }
}
