// SPDX-License-Identifier: Apache-2.0
#include "lines.h"

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
  bl_line_t **at = &line->lines->first;
  while (*at != line) {
    at = &(*at)->next;
  }
  *at = line->next;
  line->lines->count--;
  bl__sources_free(line);
  bl_stream_close(&line->stream);
  free(line->backlog);
  free(line);
}

static void hang_up(bl_line_t *line) {
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
  bl__ways_abort(line);
  bl__moves_lose(line);
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
  hang_up(line);
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
      (void)bl__moves_continue_writing(line);
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

void bl_lines_answer(bl_lines_t *lines, uint64_t session, uint64_t sequence, const bl_lease_answer_t *answer) {
  bl_line_t *line = bl_lines_find(lines, session);
  if (line != NULL && line->waiting[sequence % BL__LINE_WINDOW].sequence == sequence) {
    bl_line_answer(line, sequence, answer, "finish the transfer of");
  }
}

// ---- reading -----------------------------------------------------------------------------------------------------------

// Shows the parts of the arena, on shm, and says which path was chosen. False: it does not read that.
static bool welcome(bl_line_t *line, const bl_greeting_t *greeting, const bl_lines_room_t *room) {
  bl_greeting_t answer = {.session = greeting->session, .path = greeting->path};
  int fds[BL_LINES_PARTS];
  for (unsigned i = 0; i < BL_LINES_PARTS && line->stream.is_unix; i++) {
    if (room->parts[i] != NULL) {
      fds[answer.arena_count] = room->parts[i]->fd;
      answer.arena_bytes[answer.arena_count++] = room->parts[i]->bytes;
    }
  }
  uint8_t body[BL_FRAME_GREETING_BYTES];
  bl_greeting_encode(&answer, body);
  // The first bytes on this connection: they fit into its buffer.
  return bl_frame_writer_put(&line->writer, &(bl_frame_t){.kind = BL_FRAME_WELCOME}, body, fds, answer.arena_count) &&
         bl_frame_writer_flush(&line->writer) == BL_WRITER_DONE;
}

static void turn_away(bl_line_t *line, bl_status_t status, const char *why) {
  const bl_frame_t bye = {.kind = BL_FRAME_BYE, .status = status};
  if (!line->writing && bl_frame_writer_put(&line->writer, &bye, why, NULL, 0)) {
    (void)!bl_frame_writer_flush(&line->writer); // as a courtesy
  }
}

static void greet(bl_line_t *line) {
  bl_lines_t *lines = line->lines;
  bl_greeting_t greeting;
  bl_error_t err = {0};
  const char *reason = NULL;
  bl_lines_room_t room = {0};
  if (bl_greeting_decode(line->reader.body, &greeting, &reason) != BL_OK) {
    bl__line_lose(line, "%s", reason);
    return;
  }
  if (bl_path_is_unix(greeting.path) != line->stream.is_unix) {
    (void)bl_error_set(&err, BL_INVALID, "shm is spoken over the unix socket, tcp over TCP");
  } else {
    err.status = lines->callbacks.admit(lines->context, &greeting, line->stream.fd, &room, &err);
  }
  if (err.status != BL_OK) {
    turn_away(line, err.status, err.text);
    bl__line_lose(line, "%s", err.text);
    return;
  }
  if (!welcome(line, &greeting, &room)) {
    bl__line_lose(line, "it does not read its welcome");
    return;
  }
  bl_lines_end(lines, greeting.session, "its holder connected anew");
  line->greeted = true;
  lines->strangers--;
  line->session = greeting.session;
  line->shm = bl_path_is_unix(greeting.path);
  line->by = greeting.path;
  lines->counters.up[line->by]++;
  line->unverified = greeting.unverified || greeting.path == BL_PATH_CUDA_IPC || greeting.path == BL_PATH_NCCL;
  line->room = room;
  snprintf(line->path, sizeof line->path, "%s", greeting.reason);
}

static void on_frame(bl_line_t *line) {
  const bl_frame_t *frame = &line->reader.frame;
  if ((frame->kind == BL_FRAME_GREET) == line->greeted) {
    bl__line_lose(line, "%s out of turn", bl_frame_kind_name(frame->kind));
    return;
  }
  switch (frame->kind) {
  case BL_FRAME_GREET:
    greet(line);
    return;
  case BL_FRAME_SHOW:
    bl__source_show(line, frame);
    return;
  case BL_FRAME_HIDE:
    bl__source_hide(line, frame);
    return;
  case BL_FRAME_MEET:
    bl__ways_meet(line);
    return;
  case BL_FRAME_EVICT:
  case BL_FRAME_LOAD:
  case BL_FRAME_RELEASE:
    line->waiting[frame->sequence % BL__LINE_WINDOW].sequence = frame->sequence;
    line->waiting[frame->sequence % BL__LINE_WINDOW].kind = frame->kind;
    line->waiting[frame->sequence % BL__LINE_WINDOW].began_ns = bl_clock_now_ns();
    line->lines->callbacks.on_request(line->lines->context, line, frame);
    return;
  case BL_FRAME_DATA:
    (void)bl__moves_data(line);
    return;
  default:
    bl__line_lose(line, "%s is not for a store", bl_frame_kind_name(frame->kind));
    return;
  }
}

// A visitor without TLS where it is wanted, or the other way round: told so in plain words, as far as it listens.
static void turn_away_other_kind(bl_line_t *line, bool wants_tls) {
  bl_socket_discard(line->stream.fd);
  turn_away(line, BL_UNAUTHENTICATED, wants_tls ? BL_STREAM_WANTS_TLS : BL_STREAM_HAS_NO_TLS);
  bl__line_lose(line, "%s",
                wants_tls ? "it speaks plaintext, the data path here is TLS"
                          : "it speaks TLS, the data path here is plaintext: --tls-ca, --tls-certificate and "
                            "--tls-key are not given");
}

static void read_frames(bl_line_t *line) {
  if (line->frame_pending && !line->reading) {
    line->frame_pending = false;
    on_frame(line);
  }
  bl__moves_continue_reading(line);
  while (!line->gone && !line->reading) {
    switch (bl_frame_reader_next(&line->reader)) {
    case BL_READER_FRAME:
      on_frame(line);
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

// ---- visitors ----------------------------------------------------------------------------------------------------------

static void let_in(bl_lines_t *lines, int fd, bool is_unix) {
  bl_error_t err = {0};
  bool full = lines->count >= BL_LINES_MAX || lines->strangers >= BL_LINES_STRANGERS;
  bl_line_t *line = full || (is_unix && !bl_socket_peer_is_us(fd)) ? NULL : calloc(1, sizeof *line);
  if (line == NULL || bl_watch_create(lines->loop, fd, on_ready, line, &line->watch, &err) != BL_OK) {
    lines->counters.refused++;
    bl_log(BL_LOG_WARNING, "data path: a visitor is turned away: %s", full ? "too many connections" : "not our user");
    free(line);
    close(fd);
    return;
  }
  line->lines = lines;
  line->next = lines->first;
  line->since_ms = bl_loop_now_ms(lines->loop);
  if (is_unix || lines->tls == NULL) {
    bl_stream_plain(&line->stream, fd, is_unix);
  } else if (bl_stream_tls(&line->stream, fd, lines->tls, true, BL_STAGES, &err) != BL_OK) {
    lines->counters.refused++;
    bl_log(BL_LOG_WARNING, "data path: a visitor is turned away: %s", err.text);
    bl_watch_destroy(line->watch);
    free(line);
    close(fd);
    return;
  }
  bl_frame_reader_init(&line->reader, &line->stream);
  bl_frame_writer_init(&line->writer, &line->stream);
  lines->first = line;
  lines->count++;
  lines->strangers++;
  arm(line);
}

static void on_unix(bl_watch_t *watch, unsigned events, void *context) {
  (void)watch;
  (void)events;
  bl_lines_t *lines = context;
  for (int fd; (fd = bl_socket_accept(lines->unix_fd)) >= 0;) {
    let_in(lines, fd, true);
  }
}

static void on_tcp(bl_watch_t *watch, unsigned events, void *context) {
  (void)watch;
  (void)events;
  bl_lines_t *lines = context;
  for (int fd; (fd = bl_socket_accept(lines->tcp_fd)) >= 0;) {
    let_in(lines, fd, false);
  }
}

static void on_second(bl_timer_t *timer, void *context) {
  (void)timer;
  bl_lines_t *lines = context;
  uint64_t now_ms = bl_loop_now_ms(lines->loop);
  for (bl_line_t *line = lines->first, *next; line != NULL; line = next) {
    next = line->next;
    if (!line->greeted && !line->gone && now_ms - line->since_ms > BL_LINES_GREETING_MS) {
      bl__line_lose(line, "no greeting in time");
    }
  }
}

// ---- for the store -----------------------------------------------------------------------------------------------------

bl_line_t *bl_lines_find(const bl_lines_t *lines, uint64_t session) {
  for (bl_line_t *line = lines->first; line != NULL; line = line->next) {
    if (line->session == session && line->greeted && !line->gone) {
      return line;
    }
  }
  return NULL;
}

void bl_lines_end(bl_lines_t *lines, uint64_t session, const char *why) {
  bl_line_t *line = bl_lines_find(lines, session);
  if (line == NULL) {
    return;
  }
  turn_away(line, BL_FENCED, why);
  hang_up(line);
}

const char *bl_lines_path(const bl_lines_t *lines, uint64_t session) {
  const bl_line_t *line = bl_lines_find(lines, session);
  return line == NULL ? "none" : line->path;
}

uint64_t bl_line_session(const bl_line_t *line) {
  return line->session;
}

bool bl_line_is_shm(const bl_line_t *line) {
  return line->shm;
}

bool bl_line_has(const bl_line_t *line, uint32_t number, uint64_t offset_bytes, uint64_t bytes) {
  const bl__source_t *source = bl__source_find(line, number);
  return source != NULL && bytes > 0 && offset_bytes <= source->map.bytes && bytes <= source->map.bytes - offset_bytes;
}

const bl_arena_t *bl__line_part(const bl_line_t *line, uint64_t bytes, uint64_t *offset_bytes) {
  for (unsigned i = 0; i < BL_LINES_PARTS; i++) {
    const bl_arena_t *part = line->room.parts[i];
    if (part != NULL && *offset_bytes < part->bytes) {
      return bytes <= part->bytes - *offset_bytes ? part : NULL;
    }
    *offset_bytes -= part != NULL ? part->bytes : 0;
  }
  return NULL;
}

const char *bl_lines_unix_address(const bl_lines_t *lines) {
  return lines->unix_address;
}

const char *bl_lines_tcp_address(const bl_lines_t *lines) {
  return lines->tcp_address;
}

const bl_lines_counters_t *bl_lines_counters(const bl_lines_t *lines) {
  return &lines->counters;
}

void bl_lines_on_moved(bl_lines_t *lines, bl_moved_fn moved) {
  lines->moved = moved;
}

// ---- creation ----------------------------------------------------------------------------------------------------------

static bl_status_t listen_unix(bl_lines_t *lines, const char *address, bl_error_t *err) {
  bl_address_t where, bound;
  bl_status_t status = bl_address_parse(address, &where, err);
  if (status == BL_OK && where.storage.ss_family != AF_UNIX) {
    status = bl_error_set(err, BL_INVALID, "%s: shared memory needs a unix socket", address);
  }
  if (status == BL_OK) {
    status = bl_socket_listen(&where, &lines->unix_fd, &bound, err);
  }
  if (status == BL_OK) {
    bl_address_format(&bound, lines->unix_address, sizeof lines->unix_address);
    status = bl_watch_create(lines->loop, lines->unix_fd, on_unix, lines, &lines->unix_watch, err);
  }
  if (status == BL_OK) {
    bl_watch_set(lines->unix_watch, BL_WATCH_READ);
  }
  return status;
}

static bl_status_t listen_tcp(bl_lines_t *lines, const bl_address_t *where, bl_error_t *err) {
  bl_address_t bound;
  bl_status_t status = bl_socket_listen(where, &lines->tcp_fd, &bound, err);
  if (status == BL_OK) {
    bl_address_format(&bound, lines->tcp_address, sizeof lines->tcp_address);
    status = bl_watch_create(lines->loop, lines->tcp_fd, on_tcp, lines, &lines->tcp_watch, err);
  }
  if (status == BL_OK) {
    bl_watch_set(lines->tcp_watch, BL_WATCH_READ);
  }
  return status;
}

bl_status_t bl_lines_create(bl_loop_t *loop, bl_pool_t *pool, const bl_lines_options_t *options,
                            const bl_lines_callbacks_t *callbacks, void *context, bl_lines_t **out, bl_error_t *err) {
  bl_lines_t *lines = calloc(1, sizeof *lines);
  if (lines == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the data path");
  }
  *lines = (bl_lines_t){.loop = loop,
                        .pool = pool,
                        .callbacks = *callbacks,
                        .context = context,
                        .unix_fd = -1,
                        .tcp_fd = -1,
                        .tls = options->tls,
                        .device = options->device,
                        .nccl = options->nccl};
  bl_status_t status = BL_OK;
  if (options->device != NULL && !options->device->host_memory) {
    status = bl_mover_create(options->device, &lines->mover, err);
    if (status != BL_OK) {
      free(lines);
      return status;
    }
  }
  status = bl_timer_create(loop, on_second, lines, &lines->timer, err);
  if (status == BL_OK) {
    status = listen_unix(lines, options->unix_address, err);
  }
  if (status == BL_OK && options->tcp != NULL) {
    status = listen_tcp(lines, options->tcp, err);
  }
  if (status != BL_OK) {
    bl_lines_destroy(lines);
    return status;
  }
  bl_timer_start(lines->timer, 1000, 1000);
  *out = lines;
  return BL_OK;
}

void bl_lines_stop(bl_lines_t *lines) {
  if (lines == NULL || lines->stopped) {
    return;
  }
  lines->stopped = true;
  bl_timer_destroy(lines->timer);
  bl_watch_destroy(lines->unix_watch);
  bl_watch_destroy(lines->tcp_watch);
  if (lines->unix_fd >= 0) {
    close(lines->unix_fd);
    unlink(lines->unix_address + strlen("unix:"));
  }
  if (lines->tcp_fd >= 0) {
    close(lines->tcp_fd);
  }
  for (bl_line_t *line = lines->first, *next; line != NULL; line = next) {
    next = line->next;
    hang_up(line);
  }
  for (bl_line_t *line = lines->first; line != NULL; line = line->next) {
    // What it says of moves is on its way to the loop. A line that was freed has left the list, which no analyzer sees:
    bl__ways_close(line); // NOLINT(clang-analyzer-unix.Malloc)
  }
}

void bl_lines_destroy(bl_lines_t *lines) {
  if (lines == NULL) {
    return;
  }
  bl_lines_stop(lines);
  bl__moves_free(lines);
  bl_mover_destroy(lines->mover);
  free(lines);
}
