// SPDX-License-Identifier: Apache-2.0
// Reading a link: header, body, header, body. Tensor bytes go straight to their destination.
#include "base/hash.h"
#include "datapath/hub.h"
#include "datapath/link.h"
#include "datapath/stream.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static void violation(bl__link_t *link, const char *reason) {
  char who[48] = "a stranger";
  if (link->stage >= 0) {
    snprintf(who, sizeof who, "stage %d", link->stage);
  }
  bl__link_lose(link, BL_INTERNAL, "%s %s (%s)", who, reason, bl_frame_kind_name(link->frame.kind));
}

// What recv said: false when the caller must stop reading (nothing there, or the link is gone).
static bool received(bl__link_t *link, ssize_t got) {
  if (got > 0) {
    return true;
  }
  if (got < 0 && errno == EAGAIN) {
    return false;
  }
  bl__link_broke(link, got == 0 ? 0 : errno);
  return false;
}

// Descriptors are taken only while a handshake may carry them; later the kernel discards what a peer attaches.
static ssize_t receive_bytes(bl__link_t *link, uint8_t *to, size_t bytes) {
  if (link->path == BL_PATH_SHM && link->state != BL__LINK_UP) {
    return bl_socket_receive(link->fd, to, bytes, link->fds, &link->fd_count);
  }
  if (link->tls != NULL) {
    return bl_tls_session_read(link->tls, to, bytes);
  }
  ssize_t got;
  do {
    got = recv(link->fd, to, bytes, 0);
  } while (got < 0 && errno == EINTR);
  return got;
}

static void handle_control(bl__link_t *link) {
  bl_hub_t *hub = link->hub;
  const bl_frame_t *frame = &link->frame;
  if (frame->kind == BL_FRAME_MEET) {
    bl__direct_heard(link);
    return;
  }
  if (frame->kind == BL_FRAME_GO && link->direct != NULL) {
    bl__direct_go(link);
    return;
  }
  if (frame->kind == BL_FRAME_OFFER) {
    const bl_shared_map_t *map = frame->arena < link->map_count ? &link->maps[frame->arena] : NULL;
    if (map == NULL || frame->offset > map->bytes || frame->bytes > map->bytes - frame->offset) {
      violation(link, "offers a tensor outside of its arenas");
      return;
    }
  }
  const char *reason = NULL;
  pthread_mutex_lock(&hub->mutex);
  uint64_t stale = bl_exchange_stale_count(link->exchange);
  bl_status_t status = bl_exchange_on_frame(link->exchange, frame, &reason);
  hub->counters.stale_dropped += bl_exchange_stale_count(link->exchange) - stale;
  if (status == BL_OK && frame->kind == BL_FRAME_ACK) {
    hub->counters.tensors_sent++;
    bl__hub_changed(hub);
  }
  pthread_mutex_unlock(&hub->mutex);
  if (status != BL_OK) {
    violation(link, reason);
  }
}

// A DATA header: finds where the chunk goes.
static void start_data(bl__link_t *link) {
  bl_hub_t *hub = link->hub;
  const char *reason = NULL;
  pthread_mutex_lock(&hub->mutex);
  uint64_t stale = bl_exchange_stale_count(link->exchange);
  bl_status_t status = BL_INVALID;
  if (link->direct != NULL) {
    reason = "sends a frame of the other path";
  } else {
    status = bl_exchange_on_data(link->exchange, &link->frame, &link->receive, &reason);
  }
  hub->counters.stale_dropped += bl_exchange_stale_count(link->exchange) - stale;
  pthread_mutex_unlock(&hub->mutex);
  if (status != BL_OK) {
    violation(link, reason);
  }
}

// Mutex held. Where the next bytes of the chunk go: the destination, or nowhere when its attempt was given up.
static uint8_t *place_for_data(bl__link_t *link, size_t *bytes) {
  if (link->receive != NULL && link->receive->stale) {
    bl_exchange_drop(link->exchange, link->receive);
    link->receive = NULL;
  }
  *bytes = link->frame.body_bytes - link->body_read;
  if (link->receive != NULL) {
    return link->receive->destination + link->frame.offset + link->body_read;
  }
  *bytes = *bytes < BL__LINK_DISCARD_BYTES ? *bytes : BL__LINK_DISCARD_BYTES;
  return link->discard;
}

// Mutex held. The chunk is whole and its checksum was right.
static void finish_data(bl__link_t *link) {
  bl_tensor_t *tensor = link->receive;
  link->receive = NULL;
  if (tensor == NULL) {
    return;
  }
  if (tensor->stale) {
    bl_exchange_drop(link->exchange, tensor);
    return;
  }
  bl_hub_counters_t *counters = &link->hub->counters;
  counters->bytes_received += link->frame.body_bytes;
  if (bl_exchange_moved(link->exchange, tensor, link->frame.body_bytes)) {
    counters->tensors_received++;
    bl__hub_changed(link->hub);
  }
}

// Reads a part of a chunk. False when the caller must stop.
static bool read_data(bl__link_t *link, size_t *turn_bytes) {
  bl_hub_t *hub = link->hub;
  pthread_mutex_lock(&hub->mutex);
  size_t bytes;
  uint8_t *to = place_for_data(link, &bytes);
  bool wanted = link->receive != NULL;
  link->touching = wanted;
  pthread_mutex_unlock(&hub->mutex);

  ssize_t got = receive_bytes(link, to, bytes);
  int errno_value = errno;
  bool whole = got > 0 && link->body_read + (size_t)got == link->frame.body_bytes;
  bool damaged = whole && wanted && bl_hash64(to - link->body_read, link->frame.body_bytes, 0) != link->frame.checksum;

  pthread_mutex_lock(&hub->mutex);
  link->touching = false;
  pthread_cond_broadcast(&hub->untouched);
  if (got > 0) {
    link->body_read += (size_t)got;
    *turn_bytes += (size_t)got;
  }
  // A chunk whose attempt was given up meanwhile is not judged: its destination may be in use again.
  damaged = damaged && !link->receive->stale;
  if (whole && !damaged) {
    finish_data(link);
  }
  pthread_mutex_unlock(&hub->mutex);

  errno = errno_value;
  if (!received(link, got)) {
    return false;
  }
  if (damaged) {
    bl__link_lose(link, BL_DATA_LOSS,
                  "a chunk from stage %d arrived damaged (boundary %u, micro-batch %u, offset %llu): checksum differs",
                  link->stage, link->frame.key.boundary, link->frame.key.micro_batch,
                  (unsigned long long)link->frame.offset);
    return false;
  }
  return true;
}

static void handle_frame(bl__link_t *link) {
  if (link->state != BL__LINK_UP) {
    bl__handshake_frame(link);
  } else if (link->frame.kind != BL_FRAME_DATA) {
    handle_control(link);
  }
}

// Which kinds may come in which state; everything else ends the link before its body is read.
static bool expected(const bl__link_t *link) {
  switch (link->state) {
  case BL__LINK_AWAIT_HELLO:
    return link->frame.kind == BL_FRAME_HELLO;
  case BL__LINK_AWAIT_WELCOME:
    return link->frame.kind == BL_FRAME_WELCOME || link->frame.kind == BL_FRAME_REFUSE;
  case BL__LINK_AWAIT_READY:
    return link->frame.kind == BL_FRAME_READY || link->frame.kind == BL_FRAME_REFUSE;
  case BL__LINK_UP:
    return link->frame.kind >= BL_FRAME_OFFER;
  default:
    return false;
  }
}

static bool read_header(bl__link_t *link) {
  ssize_t got = receive_bytes(link, link->header + link->header_read, BL_FRAME_HEADER_BYTES - link->header_read);
  if (!received(link, got)) {
    return false;
  }
  link->header_read += (size_t)got;
  if (link->header_read < BL_FRAME_HEADER_BYTES) {
    return true;
  }
  const char *reason = NULL;
  link->body_read = 0;
  if (link->state == BL__LINK_AWAIT_HELLO && link->tls == NULL && bl_tls_is_record(link->header)) {
    bl_socket_discard(link->fd);
    bl__handshake_refuse(link, BL_UNAUTHENTICATED, BL_STREAM_HAS_NO_TLS);
    return false;
  }
  if (bl_frame_decode(link->header, &link->frame, &reason) != BL_OK) {
    bl__link_lose(link, BL_INTERNAL, "%s sent a frame that is refused: %s", link->stage < 0 ? "a stranger" : "the peer",
                  reason);
    return false;
  }
  if (!expected(link)) {
    violation(link, "sends a frame that is not expected now");
    return false;
  }
  bool before_session =
      link->frame.kind == BL_FRAME_HELLO || link->frame.kind == BL_FRAME_WELCOME || link->frame.kind == BL_FRAME_REFUSE;
  if (!before_session && link->frame.session != link->session) {
    violation(link, "sends a frame of another session");
    return false;
  }
  if (link->frame.kind == BL_FRAME_DATA) {
    start_data(link);
  }
  return link->state != BL__LINK_CLOSED;
}

void bl__link_read(bl__link_t *link) {
  size_t turn_bytes = 0;
  // What TLS has decrypted already makes no socket readable: it is read to its end.
  while (turn_bytes < BL__LINK_TURN_BYTES || (link->tls != NULL && bl_tls_session_has_pending(link->tls))) {
    if (link->header_read < BL_FRAME_HEADER_BYTES) {
      if (!read_header(link)) {
        return;
      }
      turn_bytes += BL_FRAME_HEADER_BYTES;
    } else if (link->body_read < link->frame.body_bytes && link->frame.kind == BL_FRAME_DATA) {
      if (!read_data(link, &turn_bytes)) {
        return;
      }
    } else if (link->body_read < link->frame.body_bytes) {
      ssize_t got = receive_bytes(link, link->body + link->body_read, link->frame.body_bytes - link->body_read);
      if (!received(link, got)) {
        return;
      }
      link->body_read += (size_t)got;
    }
    if (link->header_read == BL_FRAME_HEADER_BYTES && link->body_read == link->frame.body_bytes) {
      link->header_read = 0;
      handle_frame(link);
    }
    if (link->state == BL__LINK_CLOSED || link->state == BL__LINK_REFUSING) {
      return;
    }
  }
}
