// SPDX-License-Identifier: Apache-2.0
#include "datapath/link.h"

#include "datapath/block.h"
#include "datapath/transport.h"
#include "sys/clock.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool bl__link_is_pinned(const bl__link_t *link) {
  return link->pinned_attempt != 0 && link->pinned_attempt == link->transport->attempt;
}

// ---- lifetime -------------------------------------------------------------------------------------------------------

static void disconnect(bl__link_t *link) {
  bl_frame_writer_cleanup(&link->writer);
  bl_stream_close(&link->stream);
}

static void free_link(bl__link_t *link) {
  disconnect(link);
  for (size_t i = 0; i < link->map_count; i++) {
    bl_peer_memory_close(&link->maps[i]);
  }
  free(link->side);
  free(link);
}

// Returns whether the maps are still in use. The compute thread may read them in this attempt (no later attempt can get
// them, because they are no longer the peer's), or the device still copies from them.
static bool must_stay(bl__link_t *link) {
  bl_transport_t *transport = link->transport;
  pthread_mutex_lock(&transport->mutex);
  const bool stays = bl__link_is_pinned(link) && !transport->closing, pulls = link->pulling > 0;
  transport->keeps_lost |= stays;
  pthread_mutex_unlock(&transport->mutex);
  return stays || pulls;
}

void bl__link_free_lost(bl_transport_t *transport) {
  for (bl__link_t **at = &transport->links; *at != NULL;) {
    bl__link_t *link = *at;
    if (link->state != BL__LINK_CLOSED) {
      at = &link->next;
    } else if (must_stay(link)) {
      disconnect(link);
      at = &link->next;
    } else {
      *at = link->next;
      free_link(link);
    }
  }
}

static void watch(bl__link_t *link, bool writable) {
  unsigned events = BL_WATCH_READ | (writable ? BL_WATCH_WRITE : 0);
  if (link->state == BL__LINK_CONNECTING || link->state == BL__LINK_REFUSING) {
    events = BL_WATCH_WRITE;
  }
  bl_watch_set(link->watch, events);
}

static bool is_secured(const bl__link_t *link) {
  return link->path == BL_PATH_TCP && link->transport->tls != NULL;
}

static bl_status_t secure(bl__link_t *link) {
  return bl_stream_tls(&link->stream, link->stream.fd, link->transport->tls, !link->outgoing, BL_STAGES, NULL);
}

static void on_event(bl_watch_t *handle, unsigned events, void *context);

bl__link_t *bl__link_open(bl_transport_t *transport, int fd, bl_path_t path, bool outgoing) {
  bl__link_t *link = calloc(1, sizeof *link);
  if (link == NULL) {
    close(fd);
    return NULL;
  }
  link->transport = transport;
  link->path = path;
  link->outgoing = outgoing;
  link->stage = -1;
  link->state = outgoing ? BL__LINK_CONNECTING : BL__LINK_AWAIT_GREETING;
  link->opened_ns = bl_clock_now_ns();
  bl_stream_plain(&link->stream, fd, bl_path_is_unix(path));
  bl_frame_reader_init(&link->reader, &link->stream);
  bl_frame_writer_init(&link->writer, &link->stream);
  if ((path == BL_PATH_TCP && (link->side = malloc(BL_FRAME_CHUNK_BYTES)) == NULL) ||
      (is_secured(link) && secure(link) != BL_OK) ||
      bl_watch_create(transport->loop, fd, on_event, link, &link->watch, NULL) != BL_OK) {
    free_link(link);
    return NULL;
  }
  link->next = transport->links;
  transport->links = link;
  transport->strangers += outgoing ? 0 : 1;
  watch(link, false);
  bl__transport_watch_time(transport);
  return link;
}

void bl__link_name(bl__link_t *link, int32_t stage, const uint8_t token[BL_FRAME_TOKEN_BYTES], const char *reason) {
  link->stage = stage;
  memcpy(link->peer_token, token, sizeof link->peer_token);
  snprintf(link->reason, sizeof link->reason, "%s", reason);
}

void bl__link_lose(bl__link_t *link, bl_status_t status, const char *format, ...) {
  bl__assert_transfer(link->transport);
  if (link->state == BL__LINK_CLOSED) {
    return;
  }
  char text[BL_TRANSPORT_REASON_BYTES];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  bl__link_state_t state = link->state;
  link->state = BL__LINK_CLOSED;
  bl_watch_destroy(link->watch);
  link->watch = NULL;
  bl__transport_wake(link->transport); // the next iteration frees the link
  link->transport->link_ops->ended(link, state, status, text);
}

void bl__link_refuse(bl__link_t *link, bl_status_t status, const char *text) {
  const bl_frame_t bye = {.kind = BL_FRAME_BYE, .status = status};
  bl__transport_count_refused(link->transport, "%s", text);
  link->state = BL__LINK_REFUSING;
  if (!bl__link_put(link, &bye, text, NULL, 0)) {
    bl__link_lose(link, status, "%s", text);
  }
}

// Closes the link after a failed read or write, or the end of the stream (0), with the cause.
static void broke(bl__link_t *link, int errno_value) {
  bl_error_t why = {0};
  const bool greets = is_secured(link) && link->state == BL__LINK_AWAIT_WELCOME;
  if (errno_value == EPROTO) {
    (void)bl_stream_failure(&link->stream, errno_value, &why);
    bl__link_lose(link, why.status, "%s", why.text);
  } else if (link->stage < 0) {
    bl__link_lose(link, BL_UNAVAILABLE, "a peer closed the connection before it sent a token");
  } else if (greets && bl_stream_is_up(&link->stream)) {
    // The peer's TLS alert may be lost with the connection.
    (void)bl_stream_explain_end(&link->stream, &why);
    bl__link_lose(link, why.status, "%s", why.text);
  } else if (greets) {
    bl__link_lose(link, BL_UNAVAILABLE,
                  "%s closed the connection in the TLS handshake: it ended, or it is without "
                  "TLS; its log says why",
                  BL__NAME(link->transport, link->stage));
  } else if (errno_value == 0 || errno_value == EPIPE || errno_value == ECONNRESET) {
    bl__link_lose(link, BL_UNAVAILABLE, "%s closed the connection: it ended or was killed",
                  BL__NAME(link->transport, link->stage));
  } else {
    bl__link_lose(link, BL_UNAVAILABLE, "the connection to %s broke: %s", BL__NAME(link->transport, link->stage),
                  strerror(errno_value));
  }
}

void bl__link_take_over(bl__link_t *link) {
  bl_transport_t *transport = link->transport;
  bl__peer_t *peer = bl__transport_find(transport, link->stage);
  bl_exchange_reset(peer->exchange, bl_path_is_unix(link->path) ? BL_EXCHANGE_PULL : BL_EXCHANGE_PUSH,
                    transport->attempt);
  peer->path = link->path;
  // Between hosts NCCL is not expected.
  const bool missed = transport->block_memory.gpu[0] != '\0' && link->obstacle[0] != '\0';
  const char *obstacle = missed ? link->obstacle : "";
  const int why = (int)(sizeof peer->reason - sizeof "; not nccl: ") - (int)strnlen(obstacle, 110);
  snprintf(peer->reason, sizeof peer->reason, "%.*s%s%.110s", why, link->reason, missed ? "; not nccl: " : "",
           obstacle);
}

// ---- moving ---------------------------------------------------------------------------------------------------------

// Mutex held.
static void stop_touching(bl__link_t *link) {
  link->touching = false;
  pthread_cond_broadcast(&link->transport->untouched);
}

bl_tensor_t *bl__link_next_transfer(bl__link_t *link) {
  bl_tensor_t *tensor;
  while ((tensor = bl_exchange_next_transfer(link->exchange)) != NULL && tensor->stale) {
    bl_exchange_drop(link->exchange, tensor);
  }
  return tensor;
}

// Copies offered tensors from the peer's arenas into their destinations. Returns true if there is more to do at once.
static bool pull_some(bl__link_t *link) {
  bl_transport_t *transport = link->transport;
  size_t iteration_bytes = 0;
  pthread_mutex_lock(&transport->mutex);
  bl_tensor_t *tensor;
  while ((tensor = bl__link_next_transfer(link)) != NULL && iteration_bytes < BL__LINK_ITERATION_BYTES) {
    uint64_t rest = tensor->bytes - tensor->moved_bytes;
    size_t bytes = rest < BL__LINK_PULL_BYTES ? (size_t)rest : BL__LINK_PULL_BYTES;
    uint8_t *to = tensor->destination + tensor->moved_bytes;
    const uint8_t *from = link->maps[tensor->arena].base + tensor->offset + tensor->moved_bytes;
    link->touching = true;
    pthread_mutex_unlock(&transport->mutex);
    memcpy(to, from, bytes);
    pthread_mutex_lock(&transport->mutex);
    stop_touching(link);
    iteration_bytes += bytes;
    transport->counters.bytes_copied += bytes;
    if (tensor->stale) {
      continue; // bl__link_next_transfer drops it
    }
    transport->counters.bytes_received += bytes;
    if (bl_exchange_moved(link->exchange, tensor, bytes)) {
      transport->counters.tensors_received++;
      bl__transport_changed(transport);
    }
  }
  pthread_mutex_unlock(&transport->mutex);
  return tensor != NULL;
}

// ---- writing --------------------------------------------------------------------------------------------------------

bool bl__link_put(bl__link_t *link, const bl_frame_t *frame, const void *body, const int *fds, size_t fd_count) {
  return bl_frame_writer_put(&link->writer, frame, body, fds, fd_count);
}

void bl__link_let_go(bl__link_t *link) {
  if (link->send != NULL && link->send->stale) {
    link->transport->counters.bytes_copied += bl_frame_writer_let_go(&link->writer, link->side);
    bl_exchange_drop(link->exchange, link->send);
    link->send = NULL;
  }
}

// Mutex held. Queues frames that are due, and selects the tensor whose bytes are sent next.
static void prepare(bl__link_t *link) {
  if (link->state != BL__LINK_UP) {
    return;
  }
  bl_frame_t frame;
  while (bl_frame_writer_free_frames(&link->writer) > BL__LINK_SPARE_FRAMES &&
         bl_exchange_next_frame(link->exchange, &frame)) {
    (void)!bl__link_put(link, &frame, NULL, NULL, 0); // it fits
  }
  link->transport->link_ops->put_notes(link);
  if (bl__link_is_direct(link)) {
    link->transport->link_ops->launch(link);
  } else if (link->path == BL_PATH_TCP && link->send == NULL && (link->send = bl__link_next_transfer(link)) != NULL) {
    const bl_tensor_t *tensor = link->send;
    link->sender = (bl_frame_sender_t){
        .frame = {.attempt = tensor->attempt, .key = tensor->key, .bytes = tensor->bytes},
        .from = tensor->source,
        .verified = true,
    };
  }
}

// Mutex held. Records the bytes that were sent of the tensor, and returns their number.
static uint64_t account(bl__link_t *link) {
  bl_tensor_t *tensor = link->send;
  const uint64_t bytes = tensor != NULL ? bl_frame_writer_sent(&link->writer, &link->sender) - tensor->moved_bytes : 0;
  if (bytes > 0 && !tensor->stale) {
    bl__transport_count_sent(link->transport, link->stage, bytes);
    if (bl_exchange_moved(link->exchange, tensor, bytes)) {
      link->send = NULL;
      link->transport->counters.tensors_sent++;
      bl__transport_changed(link->transport);
    }
  }
  bl__link_let_go(link);
  return bytes;
}

// Sends until nothing is left, the socket is full (*blocked) or the iteration is over. Returns true if there is more to
// do at once.
static bool write_some(bl__link_t *link, bool *blocked) {
  bl_transport_t *transport = link->transport;
  uint64_t iteration_bytes = 0;
  for (;;) {
    pthread_mutex_lock(&transport->mutex);
    prepare(link);
    const bool sends = link->send != NULL, more = sends || bl_frame_writer_is_busy(&link->writer);
    const bool over = !more || iteration_bytes >= BL__LINK_ITERATION_BYTES;
    link->touching = sends && !over;
    pthread_mutex_unlock(&transport->mutex);
    if (over) {
      return more;
    }
    const bl_frame_writer_result_t result =
        sends ? bl_frame_writer_send(&link->writer, &link->sender, 1) : bl_frame_writer_flush(&link->writer);
    const int errno_value = errno;
    pthread_mutex_lock(&transport->mutex);
    stop_touching(link);
    iteration_bytes += account(link);
    pthread_mutex_unlock(&transport->mutex);
    if (result == BL_WRITER_AGAIN) {
      // A TLS handshake in progress waits for the peer. Reads continue it, and then writes.
      *blocked = bl_stream_wants_writable(&link->stream);
      return false;
    }
    if (result == BL_WRITER_BROKEN) {
      broke(link, errno_value);
      return false;
    }
  }
}

// ---- reading --------------------------------------------------------------------------------------------------------

static void violation(bl__link_t *link, const char *reason) {
  char who[BL__TRANSPORT_NAME_BYTES] = "a stranger";
  if (link->stage >= 0) {
    (void)bl__transport_name(link->transport, link->stage, who);
  }
  bl__link_lose(link, BL_INTERNAL, "%s %s (%s)", who, reason, bl_frame_kind_name(link->reader.frame.kind));
}

// Returns whether the frame's kind is allowed in the link's state. Any other kind ends the link.
static bool expected(const bl__link_t *link) {
  const bl_frame_kind_t kind = link->reader.frame.kind;
  switch (link->state) {
  case BL__LINK_AWAIT_GREETING:
    return kind == BL_FRAME_GREET;
  case BL__LINK_AWAIT_WELCOME:
    return kind == BL_FRAME_WELCOME || kind == BL_FRAME_BYE;
  case BL__LINK_AWAIT_READY:
    return kind == BL_FRAME_READY || kind == BL_FRAME_BYE;
  case BL__LINK_UP:
    return kind == BL_FRAME_RENDEZVOUS || kind == BL_FRAME_NOTE ||
           (kind >= BL_FRAME_GO && kind <= BL_FRAME_CREDIT && link->reader.frame.sequence == 0);
  default:
    return false;
  }
}

// Passes OFFER, ACK or CREDIT to the exchange.
static void on_announcement(bl__link_t *link) {
  bl_transport_t *transport = link->transport;
  const bl_frame_t *frame = &link->reader.frame;
  if (frame->kind == BL_FRAME_OFFER) {
    const bl_peer_memory_t *map = frame->region < link->map_count ? &link->maps[frame->region] : NULL;
    if (map == NULL || frame->offset > map->bytes || frame->bytes > map->bytes - frame->offset) {
      violation(link, "offers a tensor outside of its arenas");
      return;
    }
  }
  const char *reason = NULL;
  pthread_mutex_lock(&transport->mutex);
  uint64_t stale = bl_exchange_stale_count(link->exchange);
  bl_status_t status = bl_exchange_on_frame(link->exchange, frame, &reason);
  transport->counters.stale_dropped += bl_exchange_stale_count(link->exchange) - stale;
  if (status == BL_OK && frame->kind == BL_FRAME_ACK) {
    transport->counters.tensors_sent++;
    bl__transport_changed(transport);
  }
  pthread_mutex_unlock(&transport->mutex);
  if (status != BL_OK) {
    violation(link, reason);
  }
}

// Processes a DATA header: sets where the chunk is read to.
static void on_data(bl__link_t *link) {
  bl_transport_t *transport = link->transport;
  const bl_frame_t *frame = &link->reader.frame;
  const char *reason = "sends a frame of the other path";
  bl_status_t status = BL_INVALID;
  pthread_mutex_lock(&transport->mutex);
  uint64_t stale = bl_exchange_stale_count(link->exchange);
  if (link->nccl_link == NULL) {
    status = bl_exchange_on_data(link->exchange, frame, &link->receive, &reason);
  }
  transport->counters.stale_dropped += bl_exchange_stale_count(link->exchange) - stale;
  if (status == BL_OK && link->receive != NULL) {
    bl_frame_reader_into(&link->reader, link->receive->destination + frame->offset);
  }
  pthread_mutex_unlock(&transport->mutex);
  if (status != BL_OK) {
    violation(link, reason);
  }
}

static void on_frame(bl__link_t *link) {
  const bl_frame_kind_t kind = link->reader.frame.kind;
  if (!expected(link)) {
    violation(link, "sends a frame that is not expected now");
  } else if (kind == BL_FRAME_DATA) {
    on_data(link);
  } else if (kind == BL_FRAME_OFFER || kind == BL_FRAME_ACK || kind == BL_FRAME_CREDIT) {
    on_announcement(link);
  } else {
    link->transport->link_ops->on_frame(link);
  }
}

// Mutex held. The chunk is complete and its checksum is right.
static void finish_chunk(bl__link_t *link) {
  bl_transport_counters_t *counters = &link->transport->counters;
  const uint32_t bytes = link->reader.frame.body_bytes;
  counters->bytes_received += bytes;
  if (bl_exchange_moved(link->exchange, link->receive, bytes)) {
    counters->tensors_received++;
    bl__transport_changed(link->transport);
  }
}

// Continues to read the body of a chunk, into the memory of its tensor while that is wanted.
static bl_frame_reader_event_t read_chunk(bl__link_t *link) {
  bl_transport_t *transport = link->transport;
  const bl_frame_t *frame = &link->reader.frame;
  pthread_mutex_lock(&transport->mutex);
  if (link->receive != NULL && link->receive->stale) { // its attempt was aborted
    bl_exchange_drop(link->exchange, link->receive);
    link->receive = NULL;
    bl_frame_reader_into(&link->reader, NULL);
  }
  bl_tensor_t *tensor = link->receive;
  link->touching = tensor != NULL;
  pthread_mutex_unlock(&transport->mutex);

  const bl_frame_reader_event_t event = bl_frame_reader_next(&link->reader);
  bool damaged = false;
  if (event == BL_READER_BODY && tensor != NULL) { // now, while it is in the cache
    tensor->hash = bl_block_checksum_more(tensor->hash, tensor->destination + frame->offset, frame->body_bytes);
    damaged = tensor->hash != frame->checksum;
  }

  pthread_mutex_lock(&transport->mutex);
  stop_touching(link);
  // The checksum of a stale chunk is ignored, because its destination may already be in use for another tensor.
  damaged = damaged && !tensor->stale;
  if (event == BL_READER_BODY && tensor != NULL && !damaged) {
    if (tensor->stale) {
      bl_exchange_drop(link->exchange, tensor);
    } else {
      finish_chunk(link);
    }
  }
  link->receive = event == BL_READER_BODY && !damaged ? NULL : link->receive;
  pthread_mutex_unlock(&transport->mutex);
  if (damaged) {
    bl__link_lose(link, BL_DATA_LOSS,
                  "a chunk from %s arrived damaged (boundary %u, micro-batch %u, offset %llu): checksum differs",
                  BL__NAME(link->transport, link->stage), frame->key.boundary, frame->key.micro_batch,
                  (unsigned long long)frame->offset);
  }
  return event;
}

static void on_broken(bl__link_t *link) {
  const bl_frame_reader_t *reader = &link->reader;
  const bool tls = is_secured(link);
  if (link->state == BL__LINK_AWAIT_GREETING && bl_stream_is_other_kind(&link->stream, reader->buffer)) {
    bl_socket_discard(link->stream.fd);
    bl__link_refuse(link, BL_UNAUTHENTICATED, tls ? BL_STREAM_WANTS_TLS : BL_STREAM_HAS_NO_TLS);
  } else if (reader->failure.status != BL_OK) {
    broke(link, reader->errno_value);
  } else {
    bl__link_lose(link, BL_INTERNAL, "%s sent a frame that is refused: %s", link->stage < 0 ? "a stranger" : "the peer",
                  reader->reason);
  }
}

// Reads the bytes that have arrived, at most BL__LINK_ITERATION_BYTES.
static void read_some(bl__link_t *link) {
  uint64_t iteration_bytes = 0;
  link->unread = false;
  for (int fd; link->state == BL__LINK_UP && (fd = bl_stream_take_descriptor(&link->stream)) >= 0;) {
    close(fd); // not requested
  }
  while (link->state != BL__LINK_CLOSED && link->state != BL__LINK_REFUSING) {
    if (iteration_bytes >= BL__LINK_ITERATION_BYTES) {
      link->unread = true;
      return;
    }
    const bool in_body = link->reader.in_body;
    switch (in_body ? read_chunk(link) : bl_frame_reader_next(&link->reader)) {
    case BL_READER_FRAME:
      iteration_bytes += BL_FRAME_HEADER_BYTES;
      on_frame(link);
      break;
    case BL_READER_BODY:
      iteration_bytes += link->reader.frame.body_bytes;
      break;
    case BL_READER_AGAIN:
      return;
    case BL_READER_END:
      broke(link, 0);
      return;
    case BL_READER_BROKEN:
      on_broken(link);
      return;
    }
  }
}

// ---- iterations -----------------------------------------------------------------------------------------------------

bool bl__link_iterate(bl__link_t *link) {
  bl__assert_transfer(link->transport);
  if (link->state == BL__LINK_CLOSED || link->state == BL__LINK_CONNECTING) {
    return false;
  }
  if (link->unread) {
    read_some(link);
  }
  bool more = link->state == BL__LINK_UP && link->path == BL_PATH_SHM && link->nccl_link == NULL && pull_some(link);
  bool blocked = false;
  more |= link->state != BL__LINK_CLOSED && write_some(link, &blocked);
  if (link->state == BL__LINK_REFUSING && !blocked && !more) {
    bl__link_lose(link, BL_UNAUTHENTICATED, "refused");
  }
  if (link->state == BL__LINK_CLOSED) {
    return false;
  }
  watch(link, blocked);
  return more || link->unread;
}

static void on_connected(bl__link_t *link) {
  const int errno_value = bl_socket_error(link->stream.fd);
  if (errno_value != 0) {
    bl__link_lose(link, BL_UNAVAILABLE, "connecting failed: %s", strerror(errno_value));
    return;
  }
  link->state = BL__LINK_AWAIT_WELCOME;
  link->transport->link_ops->connected(link);
}

static void on_event(bl_watch_t *handle, unsigned events, void *context) {
  (void)handle;
  bl__link_t *link = context;
  if (link->state == BL__LINK_CONNECTING) {
    on_connected(link);
  } else if ((events & BL_WATCH_READ) != 0 && link->state != BL__LINK_REFUSING) {
    read_some(link);
  }
  if (bl__link_iterate(link)) {
    bl__transport_wake(link->transport);
  }
}
