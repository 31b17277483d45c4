// SPDX-License-Identifier: Apache-2.0
// One data connection of the store, as frames in both directions. What frames mean, and what moves over the connection, is
// above (bl__line_ops_t).
#include "lines_core.h"
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

// ---- the end of a line -------------------------------------------------------------------------------------------------

void bl__line_settle(bl_line_t *line) {
  if (!line->gone || line->users > 0) {
    return;
  }
  LIST_REMOVE(line, listed);
  line->lines->count--;
  line->lines->ops->on_free(line);
  bl_frame_writer_cleanup(&line->writer);
  bl_stream_close(&line->stream);
  free(line->backlog);
  free(line);
}

void bl__line_hang_up(bl_line_t *line) {
  if (line->gone) {
    return;
  }
  line->gone = true;
  line->lines->strangers -= line->greeted ? 0 : 1;
  line->lines->counters.up[line->by] -= line->greeted ? 1 : 0;
  bl_watch_destroy(line->watch);
  line->watch = NULL;
  shutdown(line->stream.fd, SHUT_RDWR); // wakes a transfer thread that waits for it, and tells the holder
  line->users++;
  line->lines->ops->on_ended(line);
  line->users--;
  bl__line_settle(line);
}

void bl__line_lose(bl_line_t *line, const char *format, ...) {
  if (line->gone) {
    return;
  }
  char text[200];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (line->greeted) {
    line->lines->counters.lost++;
    bl_log(BL_LOG_INFO, "data path: session %" PRIx64 ": %s", line->session, text);
  } else {
    line->lines->counters.refused++;
    bl_log(BL_LOG_WARNING, "data path: a visitor is shown out: %s", text);
  }
  bl__line_hang_up(line);
}

// ---- writing -----------------------------------------------------------------------------------------------------------

// Watches for what is needed now.
static void arm(bl_line_t *line) {
  if (!line->gone) {
    bl_watch_set(line->watch,
                 (line->reading ? 0 : BL_WATCH_READ) | (line->write_blocked && !line->writing ? BL_WATCH_WRITE : 0));
  }
}

static void empty_backlog(bl_line_t *line) {
  unsigned put = 0;
  if (line->backlog_count == 0) {
    return; // there may be none yet
  }
  while (put < line->backlog_count) {
    const bl__queued_t *queued = &line->backlog[put];
    if (!bl_frame_writer_put(&line->writer, &queued->frame, queued->text[0] != '\0' ? queued->text : NULL, NULL, 0)) {
      break;
    }
    put++;
  }
  line->backlog_count -= put;
  memmove(line->backlog, line->backlog + put, line->backlog_count * sizeof *line->backlog);
}

void bl__line_flush(bl_line_t *line) {
  if (line->gone || line->writing) {
    return;
  }
  while (!line->write_blocked) {
    empty_backlog(line);
    bl_frame_writer_result_t result = bl_frame_writer_flush(&line->writer);
    if (result == BL_WRITER_BROKEN) {
      bl__line_lose(line, "writing failed: %s", strerror(errno));
      return;
    }
    line->write_blocked = result == BL_WRITER_AGAIN;
    if (result == BL_WRITER_DONE && line->backlog_count == 0) {
      line->lines->ops->on_writable(line);
      break;
    }
  }
  arm(line);
}

void bl__line_put(bl_line_t *line, const bl_frame_t *frame, const char *text) {
  if (line->gone ||
      (!line->writing && line->backlog_count == 0 && bl_frame_writer_put(&line->writer, frame, text, NULL, 0))) {
    return;
  }
  if (line->backlog == NULL) {
    line->backlog = calloc(BL__LINE_BACKLOG, sizeof *line->backlog);
  }
  if (line->backlog == NULL || line->backlog_count == BL__LINE_BACKLOG) {
    bl__line_lose(line, "it does not read its answers");
    return;
  }
  bl__queued_t *queued = &line->backlog[line->backlog_count++];
  queued->frame = *frame;
  snprintf(queued->text, sizeof queued->text, "%s", text != NULL ? text : "");
}

void bl__line_bye(bl_line_t *line, bl_status_t status, const char *why) {
  const bl_frame_t bye = {.kind = BL_FRAME_BYE, .status = status};
  if (!line->writing && bl_frame_writer_put(&line->writer, &bye, why, NULL, 0)) {
    (void)!bl_frame_writer_flush(&line->writer); // as a courtesy
  }
}

// ---- answers -----------------------------------------------------------------------------------------------------------

static void put_answer(bl_line_t *line, uint64_t sequence, const bl_frame_t *frame, const char *text) {
  bl_lines_t *lines = line->lines;
  unsigned slot = sequence % BL__LINE_WINDOW;
  if (line->waiting[slot].sequence == sequence) {
    line->waiting[slot].sequence = 0;
    lines->callbacks.on_answered(lines->context, line->waiting[slot].kind, line->waiting[slot].began_ns);
  }
  line->users++;
  bl__line_put(line, frame, text);
  bl__line_flush(line);
  line->users--;
  bl__line_settle(line);
}

void bl__line_asked(bl_line_t *line, const bl_frame_t *frame) {
  unsigned slot = frame->sequence % BL__LINE_WINDOW;
  line->waiting[slot].sequence = frame->sequence;
  line->waiting[slot].kind = frame->kind;
  line->waiting[slot].began_ns = bl_clock_now_ns();
}

void bl_line_answer(bl_line_t *line, uint64_t sequence, const bl_lease_answer_t *answer, const char *what) {
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
  put_answer(line, sequence, &frame, frame.status != BL_OK ? err.text : NULL);
}

void bl_line_fail(bl_line_t *line, uint64_t sequence, const bl_error_t *err) {
  bl_frame_t frame = {.kind = BL_FRAME_ANSWER, .status = err->status, .sequence = sequence};
  put_answer(line, sequence, &frame, err->text);
}

// ---- reading -----------------------------------------------------------------------------------------------------------

// A visitor without TLS where it is wanted, or the other way round: told so in plain words, as far as it listens.
static void turn_away_other_kind(bl_line_t *line, bool wants_tls) {
  bl_socket_discard(line->stream.fd);
  bl__line_bye(line, BL_UNAUTHENTICATED, wants_tls ? BL_STREAM_WANTS_TLS : BL_STREAM_HAS_NO_TLS);
  bl__line_lose(line, "%s",
                wants_tls ? "it speaks plaintext, the data path here is TLS"
                          : "it speaks TLS, the data path here is plaintext: --tls-ca, --tls-certificate and "
                            "--tls-key are not given");
}

static void read_frames(bl_line_t *line) {
  if (line->frame_pending && !line->reading) {
    line->frame_pending = false;
    line->lines->ops->on_frame(line);
  }
  line->lines->ops->on_readable(line);
  while (!line->gone && !line->reading) {
    switch (bl_frame_reader_next(&line->reader)) {
    case BL_READER_FRAME:
      line->lines->ops->on_frame(line);
      break;
    case BL_READER_BODY: // of a chunk that was read away
      break;
    case BL_READER_AGAIN:
      return;
    case BL_READER_END:
      bl__line_lose(line, "%s", line->reader.reason);
      return;
    case BL_READER_BROKEN: {
      const bool wants_tls = line->lines->tls != NULL && !line->stream.is_unix;
      if (!line->greeted && bl_stream_is_other_kind(&line->stream, line->reader.buffer)) {
        turn_away_other_kind(line, wants_tls);
        return;
      }
      line->lines->counters.broken += line->greeted ? 1 : 0;
      bl__line_lose(line, "%s", line->reader.reason);
      return;
    }
    }
  }
}

void bl__line_read(bl_line_t *line) {
  line->users++;
  read_frames(line);
  bl__line_flush(line);
  arm(line);
  line->users--;
  bl__line_settle(line);
}

static void on_ready(bl_watch_t *watch, unsigned events, void *context) {
  (void)watch;
  bl_line_t *line = context;
  if ((events & BL_WATCH_WRITE) != 0) {
    line->write_blocked = false;
  }
  bl__line_read(line);
}

// ---- the beginning -----------------------------------------------------------------------------------------------------

bl_line_t *bl__line_open(bl_lines_t *lines, int fd, bool is_unix, bl_error_t *err) {
  bl_line_t *line = calloc(1, sizeof *line);
  if (line == NULL) {
    close(fd);
    (void)bl_error_set(err, BL_EXHAUSTED, "no memory for a connection");
    return NULL;
  }
  bl_stream_plain(&line->stream, fd, is_unix);
  const bool secure = !is_unix && lines->tls != NULL;
  if ((secure && bl_stream_tls(&line->stream, fd, lines->tls, true, BL_STAGES, err) != BL_OK) ||
      bl_watch_create(lines->loop, fd, on_ready, line, &line->watch, err) != BL_OK) {
    bl_stream_close(&line->stream);
    free(line);
    return NULL;
  }
  bl_frame_reader_init(&line->reader, &line->stream);
  bl_frame_writer_init(&line->writer, &line->stream);
  line->lines = lines;
  line->since_ms = bl_loop_now_ms(lines->loop);
  LIST_INSERT_HEAD(&lines->all, line, listed);
  STAILQ_INIT(&line->moves);
  lines->count++;
  lines->strangers++;
  arm(line);
  return line;
}
