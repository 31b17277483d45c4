// SPDX-License-Identifier: Apache-2.0
#include "datapath/door.h"

#include "datapath/socket.h"
#include "loop/timer.h"
#include "sys/clock.h"
#include "sys/log.h"

#include <uv.h>

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#define MAGIC   0x726f6f64 // "door"
#define VERSION 1

// On the wire as in memory: both ends are processes of one machine.
typedef struct wire_greeting {
  uint32_t magic, version;
  bl_door_greeting_t greeting;
} wire_greeting_t;

typedef struct wire_welcome {
  uint32_t magic, version;
  bl_door_welcome_t welcome;
} wire_welcome_t;

struct bl_visitor {
  bl_door_t *door;
  bl_visitor_t *next;
  uv_poll_t poll;
  int fd;
  uint64_t since_ms;
  bool greeted, answered;
  void *user;
  size_t read;
  wire_greeting_t wire;
  int fds[BL_SOCKET_MAX_DESCRIPTORS];
  size_t fd_count;
};

struct bl_door {
  bl_loop_t *loop;
  bl_door_callbacks_t callbacks;
  void *context;
  uv_poll_t *poll; // of the listener; freed by its close
  int fd;
  bl_timer_t *timer;
  bl_visitor_t *visitors;
  size_t visitor_count;
  char address[BL_DOOR_TEXT_BYTES];
};

static void free_visitor(uv_handle_t *handle) {
  free(handle->data);
}

static void free_handle(uv_handle_t *handle) {
  free(handle);
}

static void close_descriptors(bl_visitor_t *visitor) {
  for (size_t i = 0; i < visitor->fd_count; i++) {
    close(visitor->fds[i]);
  }
  visitor->fd_count = 0;
}

static void show_out(bl_visitor_t *visitor) {
  bl_visitor_t **link = &visitor->door->visitors;
  while (*link != visitor) {
    link = &(*link)->next;
  }
  *link = visitor->next;
  visitor->door->visitor_count--;
  close_descriptors(visitor);
  uv_poll_stop(&visitor->poll);
  close(visitor->fd);
  visitor->poll.data = visitor;
  uv_close((uv_handle_t *)&visitor->poll, free_visitor);
}

static void left(bl_visitor_t *visitor) {
  bl_door_t *door = visitor->door;
  if (visitor->greeted) {
    door->callbacks.on_gone(visitor, door->context);
  }
  show_out(visitor);
}

static bool is_greeting(const wire_greeting_t *wire, size_t fd_count) {
  return wire->magic == MAGIC && wire->version == VERSION && wire->greeting.arena_count == fd_count &&
         fd_count <= BL_DOOR_ARENAS;
}

static void on_readable(uv_poll_t *poll, int status, int events) {
  (void)events;
  bl_visitor_t *visitor = poll->data;
  uint8_t extra;
  void *to = visitor->greeted ? (void *)&extra : (uint8_t *)&visitor->wire + visitor->read;
  size_t room = visitor->greeted ? 1 : sizeof visitor->wire - visitor->read;
  ssize_t got = status < 0 ? 0 : bl_socket_receive(visitor->fd, to, room, visitor->fds, &visitor->fd_count);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
    return;
  }
  if (got <= 0 || visitor->greeted) { // the end, or a byte that nobody asked for
    left(visitor);
    return;
  }
  visitor->read += (size_t)got;
  if (visitor->read < sizeof visitor->wire) {
    return;
  }
  if (!is_greeting(&visitor->wire, visitor->fd_count)) {
    bl_log(BL_LOG_WARNING, "data path: a visitor at %s sent something else than a greeting", visitor->door->address);
    show_out(visitor);
    return;
  }
  visitor->greeted = true;
  visitor->fd_count = 0; // the receiver's from here
  bl_door_t *door = visitor->door;
  door->callbacks.on_greeting(visitor, &visitor->wire.greeting, visitor->fds, door->context);
}

static void let_in(bl_door_t *door, int fd) {
  bl_visitor_t *visitor = door->visitor_count < BL_DOOR_VISITORS ? calloc(1, sizeof *visitor) : NULL;
  if (visitor == NULL || !bl_socket_peer_is_us(fd) ||
      uv_poll_init(bl_loop_get_uv(door->loop), &visitor->poll, fd) != 0) {
    bl_log(BL_LOG_WARNING, "data path: a visitor at %s was turned away", door->address);
    free(visitor);
    close(fd);
    return;
  }
  *visitor = (bl_visitor_t){
      .door = door, .next = door->visitors, .poll = visitor->poll, .fd = fd, .since_ms = bl_loop_now_ms(door->loop)};
  visitor->poll.data = visitor;
  door->visitors = visitor;
  door->visitor_count++;
  uv_poll_start(&visitor->poll, UV_READABLE, on_readable);
}

static void on_connection(uv_poll_t *poll, int status, int events) {
  (void)status;
  (void)events;
  bl_door_t *door = poll->data;
  int fd;
  while ((fd = bl_socket_accept(door->fd)) >= 0) {
    let_in(door, fd);
  }
}

static void on_second(bl_timer_t *timer, void *context) {
  (void)timer;
  bl_door_t *door = context;
  uint64_t now_ms = bl_loop_now_ms(door->loop);
  for (bl_visitor_t *visitor = door->visitors, *next; visitor != NULL; visitor = next) {
    next = visitor->next;
    if (!visitor->greeted && now_ms - visitor->since_ms > BL_DOOR_GREETING_MS) {
      show_out(visitor);
    }
  }
}

bl_status_t bl_door_create(bl_loop_t *loop, const char *address, const bl_door_callbacks_t *callbacks, void *context,
                           bl_door_t **out, bl_error_t *err) {
  bl_door_t *door = calloc(1, sizeof *door);
  if (door == NULL || (door->poll = calloc(1, sizeof *door->poll)) == NULL) {
    free(door);
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the data path");
  }
  door->loop = loop;
  door->callbacks = *callbacks;
  door->context = context;
  door->fd = -1;
  snprintf(door->address, sizeof door->address, "%s", address);
  bl_address_t where, bound;
  bl_status_t status = bl_address_parse(address, &where, err);
  if (status == BL_OK && where.storage.ss_family != AF_UNIX) {
    status = bl_error_set(err, BL_INVALID, "%s: shared memory needs a unix socket", address);
  }
  if (status == BL_OK) {
    status = bl_socket_listen(&where, &door->fd, &bound, err);
  }
  if (status == BL_OK) {
    status = bl_timer_create(loop, on_second, door, &door->timer, err);
  }
  if (status != BL_OK) {
    goto free_door;
  }
  if (uv_poll_init(bl_loop_get_uv(loop), door->poll, door->fd) != 0) {
    status = bl_error_set(err, BL_IO, "%s cannot be watched", address);
    goto free_door;
  }
  door->poll->data = door;
  uv_poll_start(door->poll, UV_READABLE, on_connection);
  bl_timer_start(door->timer, 1000, 1000);
  *out = door;
  return BL_OK;
free_door:
  bl_timer_destroy(door->timer);
  if (door->fd >= 0) {
    close(door->fd);
    unlink(address + strlen("unix:"));
  }
  free(door->poll);
  free(door);
  return status;
}

void bl_door_destroy(bl_door_t *door) {
  if (door == NULL) {
    return;
  }
  while (door->visitors != NULL) {
    show_out(door->visitors);
  }
  bl_timer_destroy(door->timer);
  uv_poll_stop(door->poll);
  uv_close((uv_handle_t *)door->poll, free_handle);
  close(door->fd);
  unlink(door->address + strlen("unix:"));
  free(door);
}

const char *bl_door_address(const bl_door_t *door) {
  return door->address;
}

void bl_visitor_answer(bl_visitor_t *visitor, const bl_door_welcome_t *welcome, const int *fds, size_t fd_count) {
  wire_welcome_t wire = {.magic = MAGIC, .version = VERSION, .welcome = *welcome};
  struct iovec part = {.iov_base = &wire, .iov_len = sizeof wire};
  visitor->answered = true;
  // The first bytes on this connection: they fit into its buffer, or the visitor is not reading what it asked for.
  ssize_t sent = bl_socket_send(visitor->fd, &part, 1, fds, fd_count);
  if (welcome->status != BL_OK) {
    show_out(visitor);
  } else if (sent != (ssize_t)sizeof wire) {
    left(visitor);
  }
}

void bl_visitor_dismiss(bl_visitor_t *visitor) {
  show_out(visitor);
}

void bl_visitor_set_user(bl_visitor_t *visitor, void *user) {
  visitor->user = user;
}

void *bl_visitor_user(const bl_visitor_t *visitor) {
  return visitor->user;
}

// ---- the holder's side -------------------------------------------------------------------------------------------------

// Waits for an event of the socket. False when the deadline has passed.
static bool wait_for(int fd, short events, uint64_t deadline_ns) {
  uint64_t now_ns = bl_clock_now_ns();
  while (now_ns < deadline_ns) {
    struct pollfd poll_fd = {.fd = fd, .events = events};
    uint64_t left_ms = (deadline_ns - now_ns) / BL_NS_PER_MS + 1;
    int ready = poll(&poll_fd, 1, left_ms < 1000 ? (int)left_ms : 1000);
    if (ready > 0) {
      return true;
    }
    now_ns = bl_clock_now_ns();
  }
  return false;
}

static bl_status_t receive_welcome(int fd, const char *address, uint64_t deadline_ns, wire_welcome_t *wire, int *fds,
                                   size_t *fd_count, bl_error_t *err) {
  size_t read = 0;
  while (read < sizeof *wire) {
    if (!wait_for(fd, POLLIN, deadline_ns)) {
      return bl_error_set(err, BL_DEADLINE, "%s: the store did not answer in time", address);
    }
    ssize_t got = bl_socket_receive(fd, (uint8_t *)wire + read, sizeof *wire - read, fds, fd_count);
    if (got > 0) {
      read += (size_t)got;
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      return bl_error_set(err, BL_UNAVAILABLE, "%s: the store closed the connection", address);
    }
  }
  if (wire->magic != MAGIC || wire->version != VERSION) {
    return bl_error_set(err, BL_UNIMPLEMENTED, "%s: this is no store of our version", address);
  }
  wire->welcome.text[BL_DOOR_TEXT_BYTES - 1] = '\0';
  if (wire->welcome.status != BL_OK) {
    bool known = (unsigned)wire->welcome.status < BL_STATUS_COUNT;
    return bl_error_set(err, known ? wire->welcome.status : BL_INTERNAL, "%s: %s", address, wire->welcome.text);
  }
  return *fd_count == 1 ? BL_OK : bl_error_set(err, BL_INTERNAL, "%s: %zu descriptors came", address, *fd_count);
}

bl_status_t bl_door_knock(const char *address, const bl_door_greeting_t *greeting, const int *fds, uint64_t deadline_ns,
                          int *fd, bl_door_welcome_t *welcome, int *arena_fd, bl_error_t *err) {
  bl_address_t where;
  int made = -1, received[BL_SOCKET_MAX_DESCRIPTORS] = {-1};
  size_t received_count = 0;
  wire_welcome_t answer = {0};
  bl_status_t status = bl_address_parse(address, &where, err);
  if (status == BL_OK) {
    status = bl_socket_connect(&where, &made, err);
  }
  if (status != BL_OK) {
    return status;
  }
  int errno_value = wait_for(made, POLLOUT, deadline_ns) ? bl_socket_error(made) : ETIMEDOUT;
  if (errno_value != 0) {
    status = bl_error_set(err, bl_status_from_errno(errno_value), "connect to %s: %s", address, strerror(errno_value));
    goto close_made;
  }
  wire_greeting_t wire = {.magic = MAGIC, .version = VERSION, .greeting = *greeting};
  struct iovec part = {.iov_base = &wire, .iov_len = sizeof wire};
  if (bl_socket_send(made, &part, 1, fds, greeting->arena_count) != (ssize_t)sizeof wire) {
    status =
        bl_error_set(err, BL_UNAVAILABLE, "%s: the store does not take the greeting: %s", address, strerror(errno));
    goto close_made;
  }
  status = receive_welcome(made, address, deadline_ns, &answer, received, &received_count, err);
  if (status != BL_OK) {
    goto close_received;
  }
  *fd = made;
  *arena_fd = received[0];
  *welcome = answer.welcome;
  return BL_OK;
close_received:
  for (size_t i = 0; i < received_count; i++) {
    close(received[i]);
  }
close_made:
  close(made);
  return status;
}
