// SPDX-License-Identifier: Apache-2.0
#include "datapath/handshake.h"

#include "datapath/transport.h"
#include "sys/clock.h"
#include "sys/log.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void greet(bl__link_t *link, bl_frame_kind_t kind) {
  bl_transport_t *transport = link->transport;
  bl_greeting_t greeting = {.stage = transport->stage,
                            .peer = link->stage,
                            .path = link->path,
                            .nccl = transport->nccl != NULL ? transport->block_memory.nccl : 0,
                            .shared_gpu = transport->block_memory.shared_gpu,
                            .wants_nccl = link->wants_nccl,
                            .notes_only = link->notes_only};
  int fds[BL_FRAME_MAX_ARENAS];
  memcpy(greeting.token, link->peer_token, sizeof greeting.token);
  memcpy(greeting.own_token, transport->token, sizeof greeting.own_token);
  snprintf(greeting.reason, sizeof greeting.reason, "%s", link->reason);
  snprintf(greeting.gpu, sizeof greeting.gpu, "%s", transport->block_memory.gpu);
  const bl__arenas_t *shown = link->path == BL_PATH_CUDA_IPC ? &transport->of_device : &transport->of_host;
  for (size_t i = 0; i < shown->count && bl_path_is_unix(link->path) && !link->notes_only; i++) {
    greeting.arena_bytes[i] = shown->at[i].bytes;
    fds[greeting.arena_count++] = shown->at[i].fd;
  }
  uint8_t body[BL_FRAME_GREETING_BYTES];
  bl_greeting_encode(&greeting, body);
  (void)!bl__link_put(link, &(bl_frame_t){.kind = kind}, body, fds,
                      greeting.arena_count); // the first frame, so it fits
}

// On shm the greeting shares memory of the host, whatever path tensors take in the end. The time limit of the handshake
// starts after the twins are created.
static bl_status_t hold_shown(bl__link_t *link, bl_error_t *err) {
  const bool shows = link->path == BL_PATH_SHM && !link->notes_only;
  bl_status_t status = shows ? bl__transport_hold_twins(link->transport, err) : BL_OK;
  link->opened_ns = bl_clock_now_ns();
  return status;
}

void bl__handshake_begin(bl__link_t *link) {
  bl_error_t err = {0};
  if (hold_shown(link, &err) != BL_OK) {
    bl__link_lose(link, err.status, "%s", err.text);
    return;
  }
  greet(link, BL_FRAME_GREET);
}

// Returns whether this side's copy engine can read memory of the peer's GPU, as far as both know before they try.
static bl_status_t judge_ipc(const bl__link_t *link, const bl_greeting_t *greeting, bl_error_t *err) {
  const bl_transport_t *transport = link->transport;
  char own_name[BL__TRANSPORT_NAME_BYTES], peer_name[BL__TRANSPORT_NAME_BYTES], why[BL_PATH_REASON_BYTES];
  const bl_path_end_t own = bl_block_memory_end(&transport->block_memory,
                                                bl__transport_name(transport, transport->stage, own_name), NULL, true,
                                                true); // there is a connection
  const bl_path_end_t peer = {
      .name = bl__transport_name(transport, greeting->stage, peer_name), .gpu = greeting->gpu, .unix_address = true};
  if (bl_path_obstacle(&own, &peer, BL_PATH_CUDA_IPC, why)) {
    return bl_error_set(err, BL_PRECONDITION, "%s", why);
  }
  const bl_device_path_t *path = bl_device_path_of(transport->device, err);
  if (path == NULL || path->reaches(transport->device, greeting->gpu, err) != BL_OK) {
    return bl_error_prefix(err, "%s", own_name);
  }
  return BL_OK;
}

// Maps the arenas that the greeting announced, and closes the descriptors.
static bl_status_t map_arenas(bl__link_t *link, const bl_greeting_t *greeting, bl_error_t *err) {
  const size_t came = link->stream.passed_count;
  const bool of_device = link->path == BL_PATH_CUDA_IPC;
  bl_status_t status = of_device ? judge_ipc(link, greeting, err) : BL_OK;
  if (greeting->arena_count != came) {
    status = bl_error_set(err, BL_INVALID, "%zu descriptors came for %u arenas", came, greeting->arena_count);
  }
  for (int fd; (fd = bl_stream_take_descriptor(&link->stream)) >= 0;) {
    if (status == BL_OK) {
      status = bl_peer_memory_open(&link->maps[link->map_count], of_device ? link->transport->device : NULL, fd,
                                   greeting->arena_bytes[link->map_count], err);
      link->map_count += status == BL_OK;
    }
    close(fd);
  }
  // The failure concerns this pair and path only. Another path may work.
  if (status != BL_OK && of_device) {
    err->status = status = BL_PRECONDITION;
  }
  return status;
}

// Determines whether tensors can move from device to device. Both ends come to the same result.
static void judge_direct(bl__link_t *link, const bl_greeting_t *greeting) {
  const bl_transport_t *transport = link->transport;
  link->wants_nccl = link->outgoing ? link->wants_nccl : greeting->wants_nccl;
  if (!link->wants_nccl) {
    return;
  }
  char own_name[BL__TRANSPORT_NAME_BYTES], peer_name[BL__TRANSPORT_NAME_BYTES];
  (void)bl__transport_name(transport, transport->stage, own_name);
  (void)bl__transport_name(transport, greeting->stage, peer_name);
  bl_path_end_t own = bl_block_memory_end(&transport->block_memory, own_name, NULL, true, true); // a connection exists
  own.nccl = transport->nccl != NULL ? own.nccl : 0;
  const bl_path_end_t peer = {.name = peer_name,
                              .gpu = greeting->gpu,
                              .nccl = greeting->nccl,
                              .shared_gpu = greeting->shared_gpu,
                              .tcp_address = true};
  char why[BL_PATH_REASON_BYTES] = "";
  link->meets = !bl_path_obstacle(&own, &peer, BL_PATH_NCCL, why);
  snprintf(link->obstacle, sizeof link->obstacle, "%.190s", why);
  link->obstacle_status = link->meets ? BL_OK : BL_PRECONDITION;
}

static void come_up(bl__link_t *link) {
  bl_transport_t *transport = link->transport;
  uint64_t mapped_bytes = 0;
  bl_error_t err = {0};
  const bool staged = !link->meets && link->path != BL_PATH_CUDA_IPC && !link->notes_only;
  if (staged && bl__transport_hold_twins(transport, &err) != BL_OK) {
    bl__link_lose(link, err.status, "%s", err.text);
    return;
  }
  for (size_t i = 0; i < link->map_count; i++) {
    mapped_bytes += link->maps[i].bytes;
  }
  pthread_mutex_lock(&transport->mutex);
  bl__peer_t *peer = bl__transport_add(transport, link->stage);
  bl__link_t *old = peer != NULL ? peer->link : NULL;
  pthread_mutex_unlock(&transport->mutex);
  if (peer == NULL) {
    bl__link_lose(link, BL_EXHAUSTED, "no memory for a link to %s", BL__NAME(transport, link->stage));
    return;
  }
  if (old != NULL) {
    bl__link_lose(old, BL_UNAVAILABLE, "%s made a new link", BL__NAME(transport, link->stage));
  }
  pthread_mutex_lock(&transport->mutex);
  peer->link = link;
  peer->lost = BL_OK;
  peer->mapped_bytes = mapped_bytes;
  peer->said.count = peer->heard.count = 0;
  peer->links++;
  link->exchange = peer->exchange;
  bl__link_take_over(link);
  link->nccl_link = link->meets ? bl__nccl_link_of(transport, peer) : NULL;
  if (link->nccl_link != NULL) {
    bl_exchange_reset(peer->exchange, BL_EXCHANGE_PUSH, transport->attempt);
    peer->path = BL_PATH_AUTO;
  }
  pthread_mutex_unlock(&transport->mutex);
  link->state = BL__LINK_UP;
  transport->strangers -= link->outgoing ? 0 : 1;
  bl_log(BL_LOG_INFO, "data path: link to %s is up, %s", BL__NAME(transport, link->stage),
         link->nccl_link != NULL ? link->reason : peer->reason);
  if (link->meets && link->nccl_link == NULL) {
    bl__link_lose(link, BL_EXHAUSTED, "no memory for communicators with %s", BL__NAME(transport, link->stage));
  } else if (link->nccl_link != NULL) {
    bl__nccl_link_meet(link);
  } else {
    bl__connect_up(transport, link);
  }
}

static bl_status_t judge_greeting(const bl__link_t *link, const bl_greeting_t *greeting, char *text,
                                  size_t text_bytes) {
  const bl_transport_t *transport = link->transport;
  if (!bl_token_equal(greeting->token, transport->token)) {
    snprintf(text, text_bytes, "%s: wrong token", BL__NAME(transport, transport->stage));
    return BL_UNAUTHENTICATED;
  }
  if (greeting->peer != transport->stage) {
    snprintf(text, text_bytes, "this is %s, not %s", BL__NAME(transport, transport->stage),
             BL__NAME(transport, greeting->peer));
    return BL_INVALID;
  }
  if (greeting->stage >= transport->stage) {
    snprintf(text, text_bytes, "%s must wait for %s to connect", BL__NAME(transport, greeting->stage),
             BL__NAME(transport, transport->stage));
    return BL_INVALID;
  }
  if (bl_path_is_unix(greeting->path) != bl_path_is_unix(link->path) || greeting->path == BL_PATH_NCCL) {
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
  // Over the kind of socket on which it arrived.
  link->path = greeting->path;
  link->notes_only = greeting->notes_only;
  bl_error_t err = {0};
  if (map_arenas(link, greeting, &err) != BL_OK || hold_shown(link, &err) != BL_OK) {
    bl__link_refuse(link, err.status, err.text);
    return;
  }
  bl__link_name(link, greeting->stage, greeting->own_token, greeting->reason);
  judge_direct(link, greeting);
  link->state = BL__LINK_AWAIT_READY;
  greet(link, BL_FRAME_WELCOME);
}

static void on_welcome(bl__link_t *link, const bl_greeting_t *greeting) {
  if (greeting->stage != link->stage || greeting->peer != link->transport->stage) {
    bl__link_lose(link, BL_INTERNAL, "%s answered as %s", BL__NAME(link->transport, link->stage),
                  BL__NAME(link->transport, greeting->stage));
    return;
  }
  bl_error_t err = {0};
  if (map_arenas(link, greeting, &err) != BL_OK) {
    bl__link_lose(link, err.status, "%s", err.text); // closing the connection is enough for the acceptor
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
