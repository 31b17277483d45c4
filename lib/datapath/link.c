// SPDX-License-Identifier: Apache-2.0
#include "datapath/link.h"

#include "base/hash.h"
#include "datapath/hub.h"
#include "datapath/stream.h"
#include "sys/clock.h"
#include "sys/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void close_fds(bl__link_t *link) {
  for (size_t i = 0; i < link->fd_count; i++) {
    close(link->fds[i]);
  }
  link->fd_count = 0;
}

static void free_link(bl__link_t *link) {
  bl_tls_session_destroy(link->tls);
  close(link->fd);
  free(link->side);
  free(link->discard);
  free(link);
}

void bl__link_free_lost(bl_hub_t *hub) {
  for (bl__link_t **at = &hub->links; *at != NULL;) {
    bl__link_t *link = *at;
    if (link->state == BL__LINK_CLOSED) {
      *at = link->next;
      free_link(link);
    } else {
      at = &link->next;
    }
  }
}

static bool wants_to_write(const bl__link_t *link) {
  return link->out_end > link->out_start || link->chunk != NULL;
}

static void watch(bl__link_t *link, bool writable) {
  unsigned events = BL_WATCH_READ | (writable ? BL_WATCH_WRITE : 0);
  if (link->state == BL__LINK_CONNECTING || link->state == BL__LINK_REFUSING) {
    events = BL_WATCH_WRITE;
  }
  bl_watch_set(link->watch, events);
}

static void on_event(bl_watch_t *handle, unsigned events, void *context);

bl__link_t *bl__link_open(bl_hub_t *hub, int fd, bl_path_t path, bool outgoing) {
  bl__link_t *link = calloc(1, sizeof *link);
  if (link == NULL) {
    close(fd);
    return NULL;
  }
  *link = (bl__link_t){.hub = hub,
                       .fd = fd,
                       .path = path,
                       .outgoing = outgoing,
                       .stage = -1,
                       .state = outgoing ? BL__LINK_CONNECTING : BL__LINK_AWAIT_HELLO,
                       .opened_ns = bl_clock_now_ns()};
  if (path == BL_PATH_TCP) {
    link->side = malloc(BL_FRAME_MAX_CHUNK_BYTES);
    link->discard = malloc(BL__LINK_DISCARD_BYTES);
    if (link->side == NULL || link->discard == NULL) {
      goto free_link;
    }
  }
  if (path == BL_PATH_TCP && hub->tls != NULL &&
      bl_tls_session_create(hub->tls, fd, !outgoing, BL_STAGES, &link->tls, NULL) != BL_OK) {
    goto free_link;
  }
  if (bl_watch_create(hub->loop, fd, on_event, link, &link->watch, NULL) != BL_OK) {
    goto free_link;
  }
  link->next = hub->links;
  hub->links = link;
  hub->strangers += outgoing ? 0 : 1;
  watch(link, false);
  bl__hub_watch_time(hub);
  return link;
free_link:
  free_link(link);
  return NULL;
}

// The link was up: its peer has none now.
static void tell_waiters(bl__link_t *link, bl_status_t status, const char *text) {
  bl_hub_t *hub = link->hub;
  pthread_mutex_lock(&hub->mutex);
  bl__peer_t *peer = bl__hub_find(hub, link->stage);
  bool replaced = peer == NULL || peer->link != link;
  if (!replaced) {
    if (link->direct != NULL) {
      bl__direct_part(link->direct, status, text);
    }
    bl_exchange_lose(peer->exchange);
    peer->link = NULL;
    peer->path = BL_PATH_AUTO;
    peer->mapped_bytes = 0;
    peer->lost = status;
    snprintf(peer->reason, sizeof peer->reason, "%s", text);
    hub->counters.links_lost++;
  }
  bl__hub_changed(hub);
  pthread_mutex_unlock(&hub->mutex);
  if (!replaced && !hub->closing) {
    bl_log(status == BL_UNAVAILABLE ? BL_LOG_INFO : BL_LOG_ERROR, "data path: link to stage %d ended: %s", link->stage,
           text);
    bl__connect_lost(hub, link->stage, status, text);
  }
}

void bl__link_lose(bl__link_t *link, bl_status_t status, const char *format, ...) {
  bl__assert_transfer(link->hub);
  if (link->state == BL__LINK_CLOSED) {
    return;
  }
  char text[BL_HUB_REASON_BYTES];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  bl__link_state_t state = link->state;
  link->state = BL__LINK_CLOSED;
  bl_watch_destroy(link->watch);
  link->watch = NULL;
  bl__hub_wake(link->hub); // which frees it
  if (state == BL__LINK_UP) {
    tell_waiters(link, status, text);
  }
  for (size_t i = 0; i < link->map_count; i++) {
    bl_shared_map_close(&link->maps[i]);
  }
  close_fds(link);
  if (!link->outgoing && state != BL__LINK_UP) {
    link->hub->strangers--;
    if (state != BL__LINK_REFUSING && !link->hub->closing) { // a refusal was counted when it was decided
      bl__hub_count_refused(link->hub, "%s", text);
    }
  }
  if (link->outgoing && state != BL__LINK_UP) {
    bl__connect_failed(link->hub, link, status, text);
  }
}

void bl__link_broke(bl__link_t *link, int errno_value) {
  const bl_error_t *tls = link->tls != NULL ? bl_tls_session_error(link->tls) : NULL;
  if (link->state == BL__LINK_AWAIT_HELLO && link->tls != NULL && bl_tls_session_is_plaintext(link->tls)) {
    bl_tls_session_destroy(link->tls);
    link->tls = NULL;
    bl_socket_discard(link->fd);
    bl__handshake_refuse(link, BL_UNAUTHENTICATED, BL_STREAM_WANTS_TLS);
  } else if (tls != NULL && tls->status != BL_OK) {
    bl__link_lose(link, tls->status, "%s", tls->text);
  } else if (link->stage < 0) {
    bl__link_lose(link, BL_UNAVAILABLE, "a stranger closed the connection before it showed a token");
  } else if (link->state == BL__LINK_CONNECTING) {
    bl__link_lose(link, BL_UNAVAILABLE, "connecting failed: %s", strerror(errno_value));
  } else if (link->tls != NULL && link->state == BL__LINK_AWAIT_WELCOME && bl_tls_session_is_up(link->tls)) {
    bl_error_t why; // its alert may be lost with the connection
    (void)bl_tls_session_explain_end(link->tls, &why);
    bl__link_lose(link, why.status, "%s", why.text);
  } else if (link->tls != NULL && link->state == BL__LINK_AWAIT_WELCOME) {
    bl__link_lose(link, BL_UNAVAILABLE,
                  "stage %d closed the connection in the TLS handshake: it ended, or it is without "
                  "TLS; its log says why",
                  link->stage);
  } else if (errno_value == 0 || errno_value == EPIPE || errno_value == ECONNRESET) {
    bl__link_lose(link, BL_UNAVAILABLE, "stage %d closed the connection: it ended or was killed", link->stage);
  } else {
    bl__link_lose(link, BL_UNAVAILABLE, "the connection to stage %d broke: %s", link->stage, strerror(errno_value));
  }
}

void bl__link_settle(bl__link_t *link) {
  bl_hub_t *hub = link->hub;
  bl__peer_t *peer = bl__hub_find(hub, link->stage);
  bl_exchange_reset(peer->exchange, link->path == BL_PATH_SHM ? BL_EXCHANGE_PULL : BL_EXCHANGE_PUSH, hub->attempt);
  peer->path = link->path;
  const bool missed = hub->endpoint.gpu[0] != '\0' && link->obstacle[0] != '\0'; // between hosts nobody misses it
  snprintf(peer->reason, sizeof peer->reason, "%.80s%s%.95s", link->reason, missed ? "; not nccl: " : "",
           missed ? link->obstacle : "");
}

void bl__link_put(bl__link_t *link, const bl_frame_t *frame, const uint8_t *body) {
  if (link->out_start == link->out_end) {
    link->out_start = link->out_end = 0;
  }
  bl_frame_encode(frame, link->out + link->out_end);
  link->out_end += BL_FRAME_HEADER_BYTES;
  if (body != NULL) {
    memcpy(link->out + link->out_end, body, frame->body_bytes);
    link->out_end += frame->body_bytes;
  }
}

void bl__link_let_go(bl__link_t *link) {
  if (link->send == NULL || link->chunk == NULL || !link->send->stale) {
    return;
  }
  size_t rest = link->chunk_bytes - link->chunk_sent;
  memcpy(link->side, link->chunk + link->chunk_sent, rest);
  link->hub->counters.bytes_copied += rest;
  link->chunk = link->side;
  link->chunk_bytes = rest;
  link->chunk_sent = 0;
  bl_exchange_drop(link->exchange, link->send);
  link->send = NULL;
}

static void stop_touching(bl__link_t *link) {
  link->touching = false;
  pthread_cond_broadcast(&link->hub->untouched);
}

// Mutex held. The next tensor to move, stale ones dropped.
static bl_tensor_t *next_transfer(bl__link_t *link) {
  bl_tensor_t *tensor;
  while ((tensor = bl_exchange_next_transfer(link->exchange)) != NULL && tensor->stale) {
    bl_exchange_drop(link->exchange, tensor);
  }
  return tensor;
}

// Mutex held, given back while the checksum is computed. Puts the next chunk of a tensor behind `out`.
static void start_chunk(bl__link_t *link) {
  bl_tensor_t *tensor = next_transfer(link);
  if (tensor == NULL) {
    return;
  }
  uint64_t rest = tensor->bytes - tensor->moved_bytes;
  size_t bytes = rest < BL_FRAME_MAX_CHUNK_BYTES ? (size_t)rest : BL_FRAME_MAX_CHUNK_BYTES;
  const uint8_t *chunk = tensor->source + tensor->moved_bytes;
  bl_frame_t frame = {.kind = BL_FRAME_DATA,
                      .body_bytes = (uint32_t)bytes,
                      .session = link->session,
                      .attempt = tensor->attempt,
                      .key = tensor->key,
                      .offset = tensor->moved_bytes,
                      .bytes = tensor->bytes};
  link->touching = true;
  pthread_mutex_unlock(&link->hub->mutex);
  frame.checksum = bl_hash64(chunk, bytes, 0);
  pthread_mutex_lock(&link->hub->mutex);
  stop_touching(link);
  if (tensor->stale) {
    bl_exchange_drop(link->exchange, tensor);
    return;
  }
  bl__link_put(link, &frame, NULL);
  link->send = tensor;
  link->chunk = chunk;
  link->chunk_bytes = bytes;
  link->chunk_sent = 0;
}

static bool has_room(const bl__link_t *link, size_t frames) {
  return link->out_end + frames * BL_FRAME_HEADER_BYTES + BL__LINK_SPARE_BYTES <= BL__LINK_OUT_BYTES;
}

// Mutex held. Fills `out` while no chunk is under way: the header of a chunk must be the last thing before it.
static void prepare(bl__link_t *link) {
  if (link->state != BL__LINK_UP || link->chunk != NULL) {
    return;
  }
  if (link->out_start == link->out_end) {
    link->out_start = link->out_end = 0;
  }
  bl_frame_t frame;
  while (has_room(link, 2) && bl_exchange_next_frame(link->exchange, &frame)) {
    frame.session = link->session;
    bl__link_put(link, &frame, NULL);
  }
  if (link->direct != NULL) {
    bl_tensor_t *tensor;
    while (has_room(link, 1) && bl__direct_sends(link->direct) && (tensor = next_transfer(link)) != NULL) {
      bl__direct_send(link, tensor);
    }
  } else if (link->path == BL_PATH_TCP && has_room(link, 1)) {
    start_chunk(link);
  }
}

// Mutex held. `sent` bytes have left: first of `out`, then of the chunk.
static void account(bl__link_t *link, size_t sent) {
  size_t control = link->out_end - link->out_start;
  control = sent < control ? sent : control;
  link->out_start += control;
  link->chunk_sent += sent - control;
  if (link->chunk == NULL || link->chunk_sent < link->chunk_bytes) {
    return;
  }
  bl_tensor_t *tensor = link->send;
  size_t bytes = link->chunk_bytes;
  link->chunk = NULL;
  link->send = NULL;
  if (tensor == NULL) {
    return; // the end of a chunk that came from `side`
  }
  if (tensor->stale) {
    bl_exchange_drop(link->exchange, tensor);
    return;
  }
  bl_hub_counters_t *counters = &link->hub->counters;
  bl__hub_count_sent(link->hub, link->stage, bytes);
  if (bl_exchange_moved(link->exchange, tensor, bytes)) {
    counters->tensors_sent++;
    bl__hub_changed(link->hub);
  }
}

static ssize_t send_parts(bl__link_t *link, const struct iovec parts[2]) {
  if (link->tls == NULL) {
    return bl_socket_send(link->fd, parts, 2, link->out_fds, link->out_fd_count);
  }
  const struct iovec *part = &parts[parts[0].iov_len > 0 ? 0 : 1];
  return bl_tls_session_write(link->tls, part->iov_base, part->iov_len);
}

// Sends until there is nothing left, the socket is full (*blocked) or the turn is over. True: more to do at once.
static bool write_turn(bl__link_t *link, bool *blocked) {
  bl_hub_t *hub = link->hub;
  size_t turn_bytes = 0;
  for (;;) {
    pthread_mutex_lock(&hub->mutex);
    prepare(link);
    struct iovec parts[2] = {
        {.iov_base = link->out + link->out_start, .iov_len = link->out_end - link->out_start},
        {.iov_base = (uint8_t *)link->chunk + link->chunk_sent, .iov_len = 0},
    };
    if (link->chunk != NULL) {
      parts[1].iov_len = link->chunk_bytes - link->chunk_sent;
    }
    bool nothing = !wants_to_write(link), over = turn_bytes >= BL__LINK_TURN_BYTES;
    link->touching = link->send != NULL && !nothing && !over;
    pthread_mutex_unlock(&hub->mutex);
    if (nothing || over) {
      return !nothing;
    }
    ssize_t sent = send_parts(link, parts);
    int errno_value = errno;
    pthread_mutex_lock(&hub->mutex);
    if (sent > 0) {
      account(link, (size_t)sent);
    }
    stop_touching(link);
    bl__link_let_go(link);
    pthread_mutex_unlock(&hub->mutex);
    if (sent >= 0) {
      turn_bytes += (size_t)sent;
      link->out_fd_count = 0;
    } else if (errno_value == EAGAIN) {
      // A handshake under way waits for the peer: reading goes on with it, and then writing.
      *blocked = link->tls == NULL || bl_tls_session_wants_writable(link->tls);
      return false;
    } else {
      bl__link_broke(link, errno_value);
      return false;
    }
  }
}

// Copies offered tensors from the peer's arenas into their destinations. True: more to do at once.
static bool pull_turn(bl__link_t *link) {
  bl_hub_t *hub = link->hub;
  size_t turn_bytes = 0;
  pthread_mutex_lock(&hub->mutex);
  bl_tensor_t *tensor;
  while ((tensor = next_transfer(link)) != NULL && turn_bytes < BL__LINK_TURN_BYTES) {
    uint64_t rest = tensor->bytes - tensor->moved_bytes;
    size_t bytes = rest < BL__LINK_PULL_BYTES ? (size_t)rest : BL__LINK_PULL_BYTES;
    uint8_t *to = tensor->destination + tensor->moved_bytes;
    const uint8_t *from = link->maps[tensor->arena].base + tensor->offset + tensor->moved_bytes;
    link->touching = true;
    pthread_mutex_unlock(&hub->mutex);
    memcpy(to, from, bytes);
    pthread_mutex_lock(&hub->mutex);
    stop_touching(link);
    turn_bytes += bytes;
    hub->counters.bytes_copied += bytes;
    if (tensor->stale) {
      continue; // next_transfer drops it
    }
    hub->counters.bytes_received += bytes;
    if (bl_exchange_moved(link->exchange, tensor, bytes)) {
      hub->counters.tensors_received++;
      bl__hub_changed(hub);
    }
  }
  pthread_mutex_unlock(&hub->mutex);
  return tensor != NULL;
}

bool bl__link_turn(bl__link_t *link) {
  bl__assert_transfer(link->hub);
  if (link->state == BL__LINK_CLOSED || link->state == BL__LINK_CONNECTING) {
    return false;
  }
  bool more = link->state == BL__LINK_UP && link->path == BL_PATH_SHM && link->direct == NULL && pull_turn(link);
  bool blocked = false;
  more |= write_turn(link, &blocked);
  if (link->state == BL__LINK_REFUSING && !blocked && !more) {
    bl__link_lose(link, BL_UNAUTHENTICATED, "refused");
  }
  if (link->state == BL__LINK_CLOSED) {
    return false;
  }
  watch(link, blocked);
  return more;
}

static void on_event(bl_watch_t *handle, unsigned events, void *context) {
  (void)handle;
  bl__link_t *link = context;
  if (link->state == BL__LINK_CONNECTING) {
    bl__handshake_connected(link);
  } else if ((events & BL_WATCH_READ) != 0 && link->state != BL__LINK_REFUSING) {
    bl__link_read(link);
  }
  if (bl__link_turn(link)) {
    bl__hub_wake(link->hub);
  }
}
