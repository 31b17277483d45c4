// SPDX-License-Identifier: Apache-2.0
// How a link comes up: HELLO, WELCOME, READY (frame.h). The connector shows the acceptor's token; on shm both pass the
// descriptors of their arenas and map the other's.
#include "datapath/hub.h"
#include "datapath/link.h"
#include "sys/log.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

// Compares in constant time.
static bool tokens_equal(const uint8_t *a, const uint8_t *b) {
  unsigned different = 0;
  for (size_t i = 0; i < BL_FRAME_TOKEN_BYTES; i++) {
    different |= a[i] ^ b[i];
  }
  return different == 0;
}

void bl__handshake_refuse(bl__link_t *link, bl_status_t status, const char *text) {
  bl_refusal_t refusal = {.status = status};
  snprintf(refusal.text, sizeof refusal.text, "%s", text);
  uint8_t body[BL_REFUSAL_BYTES];
  bl_refusal_encode(&refusal, body);
  bl_frame_t frame = {.kind = BL_FRAME_REFUSE, .body_bytes = sizeof body};
  bl__link_put(link, &frame, body);
  bl__hub_count_refused(link->hub, "%s", text);
  link->state = BL__LINK_REFUSING;
}

static void greet(bl__link_t *link, bl_frame_kind_t kind, const uint8_t token[BL_FRAME_TOKEN_BYTES]) {
  bl_hub_t *hub = link->hub;
  bl_hello_t hello = {.stage = hub->stage, .peer = link->stage, .path = link->path};
  memcpy(hello.token, token, sizeof hello.token);
  memcpy(hello.own_token, hub->token, sizeof hello.own_token);
  snprintf(hello.reason, sizeof hello.reason, "%s", link->reason);
  snprintf(hello.gpu, sizeof hello.gpu, "%s", hub->endpoint.gpu);
  hello.nccl = hub->nccl != NULL ? hub->endpoint.nccl : 0;
  hello.shared_gpu = hub->endpoint.shared_gpu;
  hello.wants_nccl = link->wants_nccl;
  if (link->path == BL_PATH_SHM) {
    for (size_t i = 0; i < hub->arena_count; i++) {
      hello.arena_bytes[i] = hub->arenas[i].bytes;
      link->out_fds[i] = hub->arenas[i].fd;
    }
    hello.arena_count = (uint32_t)hub->arena_count;
    link->out_fd_count = hub->arena_count;
  }
  uint8_t body[BL_HELLO_BYTES];
  bl_hello_encode(&hello, body);
  bl_frame_t frame = {.kind = kind, .body_bytes = sizeof body, .session = link->session};
  bl__link_put(link, &frame, body);
}

void bl__handshake_start(bl__link_t *link, int32_t stage, const uint8_t token[BL_FRAME_TOKEN_BYTES],
                         const char *reason) {
  link->stage = stage;
  memcpy(link->peer_token, token, sizeof link->peer_token);
  snprintf(link->reason, sizeof link->reason, "%s", reason);
}

void bl__handshake_connected(bl__link_t *link) {
  int errno_value = bl_socket_error(link->fd);
  if (errno_value != 0) {
    bl__link_broke(link, errno_value);
    return;
  }
  link->state = BL__LINK_AWAIT_WELCOME;
  greet(link, BL_FRAME_HELLO, link->peer_token);
}

// Maps what the greeting announced and lets go of the descriptors.
static bl_status_t map_arenas(bl__link_t *link, const bl_hello_t *hello, bl_error_t *err) {
  bl_status_t status = BL_OK;
  if (hello->arena_count != link->fd_count) {
    status = bl_error_set(err, BL_INVALID, "%zu descriptors came for %u arenas", link->fd_count, hello->arena_count);
  }
  for (size_t i = 0; i < link->fd_count; i++) {
    if (status == BL_OK) {
      status = bl_shared_map_open(&link->maps[i], link->fds[i], hello->arena_bytes[i], err);
      link->map_count += status == BL_OK;
    }
    close(link->fds[i]);
  }
  link->fd_count = 0;
  return status;
}

// Whether tensors can go from device to device: both ends find the same.
static void judge_direct(bl__link_t *link, const bl_hello_t *hello) {
  const bl_hub_t *hub = link->hub;
  link->wants_nccl = link->outgoing ? link->wants_nccl : hello->wants_nccl;
  if (!link->wants_nccl) {
    return;
  }
  char own_name[24], peer_name[24];
  snprintf(own_name, sizeof own_name, "stage %d", hub->stage);
  snprintf(peer_name, sizeof peer_name, "stage %d", hello->stage);
  bl_path_end_t own = bl_endpoint_end(&hub->endpoint, own_name, NULL, true, true); // there is a connection
  own.nccl = hub->nccl != NULL ? own.nccl : 0;
  const bl_path_end_t peer = {
      .name = peer_name, .gpu = hello->gpu, .nccl = hello->nccl, .shared_gpu = hello->shared_gpu, .tcp_address = true};
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
    bl__link_lose(link, BL_EXHAUSTED, "no memory for a link to stage %d", link->stage);
    return;
  }
  if (old != NULL) {
    bl__link_lose(old, BL_UNAVAILABLE, "stage %d made a new link", link->stage);
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
  bl_log(BL_LOG_INFO, "data path: link to stage %d is up, %s", link->stage, link->reason);
  if (link->meets && link->direct == NULL) {
    bl__link_lose(link, BL_EXHAUSTED, "no memory for communicators with stage %d", link->stage);
  } else if (link->direct != NULL) {
    bl__direct_meet(link);
  } else {
    bl__connect_up(hub, link);
  }
}

static bl_status_t judge_hello(const bl__link_t *link, const bl_hello_t *hello, char *text, size_t text_bytes) {
  const bl_hub_t *hub = link->hub;
  if (!tokens_equal(hello->token, hub->token)) {
    snprintf(text, text_bytes, "stage %d: wrong token", hub->stage);
    return BL_UNAUTHENTICATED;
  }
  if (hello->peer != hub->stage) {
    snprintf(text, text_bytes, "this is stage %d, not stage %d", hub->stage, hello->peer);
    return BL_INVALID;
  }
  if (hello->stage >= hub->stage) {
    snprintf(text, text_bytes, "stage %d must wait for stage %d to connect", hello->stage, hub->stage);
    return BL_INVALID;
  }
  if (hello->path != (uint32_t)link->path) {
    snprintf(text, text_bytes, "the greeting asks for another path than its socket");
    return BL_INVALID;
  }
  return BL_OK;
}

static void on_hello(bl__link_t *link, const bl_hello_t *hello) {
  char text[BL_FRAME_TEXT_BYTES];
  bl_status_t status = judge_hello(link, hello, text, sizeof text);
  if (status != BL_OK) {
    bl__handshake_refuse(link, status, text);
    return;
  }
  bl_error_t err = {0};
  if (map_arenas(link, hello, &err) != BL_OK) {
    bl__handshake_refuse(link, err.status, err.text);
    return;
  }
  bl__handshake_start(link, hello->stage, hello->own_token, hello->reason);
  judge_direct(link, hello);
  while (link->session == 0) {
    if (getrandom(&link->session, sizeof link->session, 0) != (ssize_t)sizeof link->session) {
      link->session = 0;
    }
  }
  link->state = BL__LINK_AWAIT_READY;
  greet(link, BL_FRAME_WELCOME, link->peer_token);
}

static void on_welcome(bl__link_t *link, const bl_hello_t *hello) {
  if (hello->stage != link->stage || hello->peer != link->hub->stage || link->frame.session == 0) {
    bl__link_lose(link, BL_INTERNAL, "stage %d answered as stage %d", link->stage, hello->stage);
    return;
  }
  bl_error_t err = {0};
  if (map_arenas(link, hello, &err) != BL_OK) {
    bl__link_lose(link, err.status, "%s", err.text); // the end of the connection tells the acceptor enough
    return;
  }
  judge_direct(link, hello);
  link->session = link->frame.session;
  bl_frame_t ready = {.kind = BL_FRAME_READY, .session = link->session};
  bl__link_put(link, &ready, NULL);
  come_up(link);
}

static void on_refusal(bl__link_t *link) {
  bl_refusal_t refusal;
  const char *reason = NULL;
  if (bl_refusal_decode(link->body, &refusal, &reason) != BL_OK) {
    bl__link_lose(link, BL_INTERNAL, "stage %d sent a refusal that is refused: %s", link->stage, reason);
    return;
  }
  bl__link_lose(link, refusal.status, "refused: %s", refusal.text);
}

void bl__handshake_frame(bl__link_t *link) {
  bl_hello_t hello;
  const char *reason = NULL;
  switch (link->frame.kind) {
  case BL_FRAME_HELLO:
  case BL_FRAME_WELCOME:
    if (bl_hello_decode(link->body, &hello, &reason) != BL_OK) {
      bl__link_lose(link, BL_INTERNAL, "a greeting is refused: %s", reason);
    } else if (link->frame.kind == BL_FRAME_HELLO) {
      on_hello(link, &hello);
    } else {
      on_welcome(link, &hello);
    }
    return;
  case BL_FRAME_READY:
    come_up(link);
    return;
  default:
    on_refusal(link);
    return;
  }
}
