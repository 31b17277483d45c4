// SPDX-License-Identifier: Apache-2.0
// One data connection of the store, as frames in both directions. The meaning of frames, and the blocks that move over
// the connection, are handled above (bl__connection_ops_t).
#include "connections_core.h"
#include "sys/clock.h"
#include "sys/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define TURN_FRAMES 64 // frames and skipped bodies of one connection until others are served

// ---- the end of a connection ----------------------------------------------------------------------------------------

void bl__connection_free_if_unused(bl_connection_t *connection) {
  if (!connection->gone || connection->users > 0) {
    return;
  }
  LIST_REMOVE(connection, listed);
  connection->connections->count--;
  connection->connections->ops->on_free(connection);
  bl_frame_writer_cleanup(&connection->writer);
  bl_stream_close(&connection->stream);
  free(connection->backlog);
  free(connection);
}

void bl__connection_hang_up(bl_connection_t *connection) {
  if (connection->gone) {
    return;
  }
  connection->gone = true;
  connection->connections->ungreeted -= connection->greeted ? 0 : 1;
  connection->connections->counters.up[connection->by] -= connection->greeted ? 1 : 0;
  bl_watch_destroy(connection->watch);
  connection->watch = NULL;
  shutdown(connection->stream.fd, SHUT_RDWR); // wakes a transfer thread that waits for it, and notifies the holder
  connection->users++;
  connection->connections->ops->on_ended(connection);
  connection->users--;
  bl__connection_free_if_unused(connection);
}

void bl__connection_lose(bl_connection_t *connection, const char *format, ...) {
  if (connection->gone) {
    return;
  }
  char text[200];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (connection->greeted) {
    connection->connections->counters.lost++;
    bl_log(BL_LOG_INFO, "data path: session %" PRIx64 ": %s", connection->session, text);
  } else {
    connection->connections->counters.refused++;
    bl_log(BL_LOG_WARNING, "data path: connection rejected: %s", text);
  }
  bl__connection_hang_up(connection);
}

// ---- writing --------------------------------------------------------------------------------------------------------

// Watches for the events that are needed now.
static void arm(bl_connection_t *connection) {
  if (!connection->gone) {
    bl_watch_set(connection->watch, (connection->reading ? 0 : BL_WATCH_READ) |
                                        (connection->write_blocked && !connection->writing ? BL_WATCH_WRITE : 0));
  }
}

static void empty_backlog(bl_connection_t *connection) {
  unsigned put = 0;
  if (connection->backlog_count == 0) {
    return; // it may not be allocated yet
  }
  while (put < connection->backlog_count) {
    const bl__queued_t *queued = &connection->backlog[put];
    if (!bl_frame_writer_put(&connection->writer, &queued->frame, queued->text[0] != '\0' ? queued->text : NULL, NULL,
                             0)) {
      break;
    }
    put++;
  }
  connection->backlog_count -= put;
  memmove(connection->backlog, connection->backlog + put, connection->backlog_count * sizeof *connection->backlog);
}

void bl__connection_flush(bl_connection_t *connection) {
  if (connection->gone || connection->writing) {
    return;
  }
  while (!connection->write_blocked) {
    empty_backlog(connection);
    bl_frame_writer_result_t result = bl_frame_writer_flush(&connection->writer);
    if (result == BL_WRITER_BROKEN) {
      bl__connection_lose(connection, "writing failed: %s", strerror(errno));
      return;
    }
    connection->write_blocked = result == BL_WRITER_AGAIN;
    if (result == BL_WRITER_DONE && connection->backlog_count == 0) {
      connection->connections->ops->on_writable(connection);
      break;
    }
  }
  arm(connection);
}

void bl__connection_put(bl_connection_t *connection, const bl_frame_t *frame, const char *text) {
  if (connection->gone || (!connection->writing && connection->backlog_count == 0 &&
                           bl_frame_writer_put(&connection->writer, frame, text, NULL, 0))) {
    return;
  }
  if (connection->backlog == NULL) {
    connection->backlog = calloc(BL__CONNECTION_BACKLOG, sizeof *connection->backlog);
  }
  if (connection->backlog == NULL || connection->backlog_count == BL__CONNECTION_BACKLOG) {
    bl__connection_lose(connection, "it does not read its answers");
    return;
  }
  bl__queued_t *queued = &connection->backlog[connection->backlog_count++];
  queued->frame = *frame;
  snprintf(queued->text, sizeof queued->text, "%s", text != NULL ? text : "");
}

void bl__connection_goodbye(bl_connection_t *connection, bl_status_t status, const char *why) {
  const bl_frame_t bye = {.kind = BL_FRAME_BYE, .status = status};
  if (!connection->writing && bl_frame_writer_put(&connection->writer, &bye, why, NULL, 0)) {
    (void)!bl_frame_writer_flush(&connection->writer); // best effort
  }
}

// ---- answers --------------------------------------------------------------------------------------------------------

static void put_answer(bl_connection_t *connection, uint64_t sequence, const bl_frame_t *frame, const char *text) {
  bl_connections_t *connections = connection->connections;
  unsigned index = sequence % BL__CONNECTION_WINDOW;
  if (connection->waiting[index].sequence == sequence) {
    connection->waiting[index].sequence = 0;
    connections->callbacks.on_answered(connections->context, connection->waiting[index].kind,
                                       connection->waiting[index].began_ns);
  }
  connection->users++;
  bl__connection_put(connection, frame, text);
  bl__connection_flush(connection);
  connection->users--;
  bl__connection_free_if_unused(connection);
}

void bl__connection_asked(bl_connection_t *connection, const bl_frame_t *frame) {
  unsigned index = frame->sequence % BL__CONNECTION_WINDOW;
  connection->waiting[index].sequence = frame->sequence;
  connection->waiting[index].kind = frame->kind;
  connection->waiting[index].began_ns = bl_clock_now_ns();
}

void bl_connection_answer(bl_connection_t *connection, uint64_t sequence, const bl_lease_answer_t *answer,
                          const char *what) {
  bl_error_t err = {0};
  bl_frame_t frame = {.kind = BL_FRAME_ANSWER,
                      .status = bl_lease_answer_to_error(answer, what, &err),
                      .sequence = sequence,
                      .id = answer->id,
                      .generation = answer->generation,
                      .bytes = answer->bytes,
                      .offset = answer->offset_bytes,
                      .checksum = answer->checksum,
                      .retry_after_ms = answer->retry_after_ms};
  put_answer(connection, sequence, &frame, frame.status != BL_OK ? err.text : NULL);
}

void bl_connection_fail(bl_connection_t *connection, uint64_t sequence, const bl_error_t *err) {
  bl_frame_t frame = {.kind = BL_FRAME_ANSWER, .status = err->status, .sequence = sequence};
  put_answer(connection, sequence, &frame, err->text);
}

// ---- reading --------------------------------------------------------------------------------------------------------

// A peer without TLS where it is required, or the reverse: sends it the reason in plain text, if it reads that.
static void turn_away_other_kind(bl_connection_t *connection, bool wants_tls) {
  bl_socket_discard(connection->stream.fd);
  bl__connection_goodbye(connection, BL_UNAUTHENTICATED, wants_tls ? BL_STREAM_WANTS_TLS : BL_STREAM_HAS_NO_TLS);
  bl__connection_lose(connection, "%s",
                      wants_tls ? "it speaks plaintext, the data path here is TLS"
                                : "it speaks TLS, the data path here is plaintext: --tls-ca, --tls-certificate and "
                                  "--tls-key are not given");
}

// Has the rest read in the next iteration of the loop, also what TLS or the reader holds already.
static void read_on(bl_connection_t *connection) {
  if (!connection->reads_on) {
    connection->reads_on = true;
    connection->users++;
    bl_loop_post(connection->connections->loop, &connection->read_more);
  }
}

static void read_frames(bl_connection_t *connection) {
  if (connection->body_stalled && connection->coming != NULL) {
    return;
  }
  if (connection->frame_pending && !connection->reading) {
    connection->frame_pending = false;
    connection->connections->ops->on_frame(connection);
  }
  connection->connections->ops->on_readable(connection);
  for (unsigned frames = 0; !connection->gone && !connection->reading; frames++) {
    if (frames == TURN_FRAMES) {
      read_on(connection);
      return;
    }
    switch (bl_frame_reader_next(&connection->reader)) {
    case BL_READER_FRAME:
      connection->connections->ops->on_frame(connection);
      break;
    case BL_READER_BODY: // of a chunk that is skipped
      break;
    case BL_READER_AGAIN:
      return;
    case BL_READER_END:
      bl__connection_lose(connection, "%s", connection->reader.reason);
      return;
    case BL_READER_BROKEN: {
      const bool wants_tls = connection->connections->tls != NULL && !connection->stream.is_unix;
      if (!connection->greeted && bl_stream_is_other_kind(&connection->stream, connection->reader.buffer)) {
        turn_away_other_kind(connection, wants_tls);
        return;
      }
      connection->connections->counters.broken += connection->greeted ? 1 : 0;
      bl__connection_lose(connection, "%s", connection->reader.reason);
      return;
    }
    }
  }
}

void bl__connection_read(bl_connection_t *connection) {
  connection->users++;
  read_frames(connection);
  bl__connection_flush(connection);
  arm(connection);
  connection->users--;
  bl__connection_free_if_unused(connection);
}

static void on_read_more(bl_message_t *message) {
  bl_connection_t *connection = BL_MESSAGE_OWNER(message, bl_connection_t, read_more);
  connection->reads_on = false;
  if (!connection->gone) {
    bl__connection_read(connection);
  }
  connection->users--;
  bl__connection_free_if_unused(connection);
}

static void on_ready(bl_watch_t *watch, unsigned events, void *context) {
  (void)watch;
  bl_connection_t *connection = context;
  if ((events & BL_WATCH_READ) != 0) {
    connection->body_stalled = false;
  }
  if ((events & BL_WATCH_WRITE) != 0) {
    connection->write_blocked = false;
  }
  bl__connection_read(connection);
}

// ---- opening --------------------------------------------------------------------------------------------------------

bl_connection_t *bl__connection_open(bl_connections_t *connections, int fd, bool is_unix, bl_error_t *err) {
  bl_connection_t *connection = calloc(1, sizeof *connection);
  if (connection == NULL) {
    close(fd);
    (void)bl_error_set(err, BL_EXHAUSTED, "no memory for a connection");
    return NULL;
  }
  bl_stream_plain(&connection->stream, fd, is_unix);
  const bool secure = !is_unix && connections->tls != NULL;
  if ((secure && bl_stream_tls(&connection->stream, fd, connections->tls, true, BL_STAGES, err) != BL_OK) ||
      bl_watch_create(connections->loop, fd, on_ready, connection, &connection->watch, err) != BL_OK) {
    bl_stream_close(&connection->stream);
    free(connection);
    return NULL;
  }
  bl_frame_reader_init(&connection->reader, &connection->stream);
  bl_frame_writer_init(&connection->writer, &connection->stream);
  connection->connections = connections;
  connection->read_more.handle = on_read_more;
  connection->since_ms = bl_loop_now_ms(connections->loop);
  LIST_INSERT_HEAD(&connections->all, connection, listed);
  STAILQ_INIT(&connection->transfers);
  connections->count++;
  connections->ungreeted++;
  arm(connection);
  return connection;
}
