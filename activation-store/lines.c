// SPDX-License-Identifier: Apache-2.0
#include "lines.h"

#include "lines_core.h"
#include "sys/clock.h"
#include "sys/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// ---- what comes over a connection --------------------------------------------------------------------------------------

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
    bl__line_bye(line, err.status, err.text);
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
  case BL_FRAME_KEEP:
    bl__line_asked(line, frame);
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

static void on_ended(bl_line_t *line) {
  bl__ways_abort(line);
  bl__moves_lose(line);
}

static const bl__line_ops_t line_ops = {.on_frame = on_frame,
                                        .on_readable = bl__moves_continue_reading,
                                        .on_writable = bl__moves_continue_writing,
                                        .on_ended = on_ended,
                                        .on_free = bl__sources_free};

// ---- visitors ----------------------------------------------------------------------------------------------------------

static void let_in(bl_lines_t *lines, int fd, bool is_unix) {
  bl_error_t err = {0};
  const bool full = lines->count >= BL_LINES_MAX || lines->strangers >= BL_LINES_STRANGERS;
  const bool ours = !is_unix || bl_socket_peer_is_us(fd);
  if (full || !ours) {
    (void)bl_error_set(&err, BL_DENIED, full ? "too many connections" : "not our user");
    close(fd);
  } else if (bl__line_open(lines, fd, is_unix, &err) != NULL) {
    return;
  }
  lines->counters.refused++;
  bl_log(BL_LOG_WARNING, "data path: a visitor is turned away: %s", err.text);
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
  for (bl_line_t *line = LIST_FIRST(&lines->all), *next; line != NULL; line = next) {
    next = LIST_NEXT(line, listed);
    if (!line->greeted && !line->gone && now_ms - line->since_ms > BL_LINES_GREETING_MS) {
      bl__line_lose(line, "no greeting in time");
    }
  }
}

// ---- for the store -----------------------------------------------------------------------------------------------------

bl_line_t *bl_lines_find(const bl_lines_t *lines, uint64_t session) {
  bl_line_t *line;
  LIST_FOREACH(line, &lines->all, listed) {
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
  bl__line_bye(line, BL_FENCED, why);
  bl__line_hang_up(line);
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

bool bl_line_evict(bl_line_t *line, const bl_move_t *what, uint32_t source, uint64_t source_offset) {
  if (line->by == BL_PATH_NCCL) {
    return bl__way_move(line, BL_PAIR_IN, what);
  }
  return line->shm ? bl__move_pull(line, what, source, source_offset) : bl__move_receive(line, what);
}

bool bl_line_load(bl_line_t *line, const bl_move_t *what) {
  return line->by == BL_PATH_NCCL ? bl__way_move(line, BL_PAIR_OUT, what) : bl__move_send(line, what);
}

bool bl_line_has(const bl_line_t *line, uint32_t source, uint64_t offset_bytes, uint64_t bytes) {
  return bl__source_at(line, source, offset_bytes, bytes) != NULL;
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

void bl_lines_answer(bl_lines_t *lines, uint64_t session, uint64_t sequence, const bl_lease_answer_t *answer) {
  bl_line_t *line = bl_lines_find(lines, session);
  if (line != NULL && line->waiting[sequence % BL__LINE_WINDOW].sequence == sequence) {
    bl_line_answer(line, sequence, answer, "finish the transfer of");
  }
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
  *lines = (bl_lines_t){.ops = &line_ops,
                        .loop = loop,
                        .pool = pool,
                        .callbacks = *callbacks,
                        .context = context,
                        .unix_fd = -1,
                        .tcp_fd = -1,
                        .tls = options->tls,
                        .device = options->device,
                        .nccl = options->nccl};
  LIST_INIT(&lines->all);
  STAILQ_INIT(&lines->unused);
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
  for (bl_line_t *line = LIST_FIRST(&lines->all), *next; line != NULL; line = next) {
    next = LIST_NEXT(line, listed);
    bl__line_hang_up(line);
  }
  bl_line_t *line;
  LIST_FOREACH(line, &lines->all, listed) {
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
