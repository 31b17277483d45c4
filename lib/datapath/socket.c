// SPDX-License-Identifier: Apache-2.0
#include "datapath/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define DISCARD_BYTES 65536 // more than a greeting has; bounds how much an unknown peer can make us read

#define LARGE_BUFFER_BYTES (4 << 20)

static bl_status_t fail(bl_error_t *err, const char *what, const bl_address_t *address) {
  int errno_value = errno;
  char text[160];
  bl_address_format(address, text, sizeof text);
  return bl_error_set(err, bl_status_from_errno(errno_value), "%s %s: %s", what, text, strerror(errno_value));
}

static bl_status_t taken(bl_error_t *err, const bl_address_t *address) {
  char text[160];
  bl_address_format(address, text, sizeof text);
  return bl_error_set(err, BL_PRECONDITION,
                      "cannot listen on %s: another process listens there; port 0 takes a free one", text);
}

static int open_socket(const bl_address_t *address) {
  return socket(address->storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

// Sets options for latency and liveness. They are optional, so failures are not errors.
static void tune(int fd, const bl_address_t *address) {
  if (address->storage.ss_family == AF_UNIX) {
    return;
  }
  int on = 1, idle_s = 5, interval_s = 2, count = 3, silence_ms = BL_SOCKET_SILENCE_MS;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silence_ms, sizeof silence_ms);
}

// Removes a stale socket file. BL_PRECONDITION if a process serves it.
static bl_status_t clear_stale_file(const bl_address_t *address, bl_error_t *err) {
  const char *path = ((const struct sockaddr_un *)&address->storage)->sun_path;
  struct stat info;
  if (lstat(path, &info) != 0) {
    return BL_OK; // no such file; bind reports any other problem
  }
  if (!S_ISSOCK(info.st_mode)) {
    return bl_error_set(err, BL_PRECONDITION, "unix:%s: there is a file of another kind; remove it", path);
  }
  int fd = open_socket(address);
  if (fd < 0) {
    return fail(err, "socket for", address);
  }
  int connected = connect(fd, (const struct sockaddr *)&address->storage, address->length);
  int errno_value = errno;
  close(fd);
  if (connected == 0 || errno_value != ECONNREFUSED) {
    return bl_error_set(err, BL_PRECONDITION, "unix:%s: another process listens there", path);
  }
  unlink(path);
  return BL_OK;
}

bl_status_t bl_socket_listen(const bl_address_t *address, int *fd, bl_address_t *bound, bl_error_t *err) {
  bool is_unix = address->storage.ss_family == AF_UNIX;
  if (is_unix) {
    bl_status_t cleared = clear_stale_file(address, err);
    if (cleared != BL_OK) {
      return cleared;
    }
  }
  bl_status_t status;
  int made = open_socket(address);
  if (made < 0) {
    return fail(err, "socket for", address);
  }
  const int on = 1;
  if (is_unix) {
    fchmod(made, 0600); // before bind: the file never exists with wider rights
  } else if (setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0) {
    // Needed because connections of a process that has ended linger.
    status = fail(err, "SO_REUSEADDR of", address);
    goto close_fd;
  }
  if (bind(made, (const struct sockaddr *)&address->storage, address->length) != 0) {
    status = errno == EADDRINUSE ? taken(err, address) : fail(err, "bind to", address);
    goto close_fd;
  }
  if (listen(made, SOMAXCONN) != 0) {
    status = errno == EADDRINUSE ? taken(err, address) : fail(err, "listen at", address);
    goto close_fd;
  }
  bl_address_t where = *address;
  if (!is_unix) {
    where.length = sizeof where.storage;
    if (getsockname(made, (struct sockaddr *)&where.storage, &where.length) != 0) {
      status = fail(err, "getsockname of", address);
      goto close_fd;
    }
  }
  *bound = where;
  *fd = made;
  return BL_OK;
close_fd:
  close(made);
  return status;
}

int bl_socket_accept(int listener) {
  bl_address_t from = {.length = sizeof from.storage};
  int fd = accept4(listener, (struct sockaddr *)&from.storage, &from.length, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd >= 0) {
    tune(fd, &from);
  }
  return fd;
}

bl_status_t bl_socket_connect(const bl_address_t *address, int *fd, bl_error_t *err) {
  int made = open_socket(address);
  if (made < 0) {
    return fail(err, "socket for", address);
  }
  tune(made, address);
  if (connect(made, (const struct sockaddr *)&address->storage, address->length) != 0 && errno != EINPROGRESS) {
    bl_status_t status = fail(err, "connect to", address);
    close(made);
    return status;
  }
  *fd = made;
  return BL_OK;
}

void bl_socket_discard(int fd) {
  char bytes[4096];
  ssize_t got;
  size_t left = DISCARD_BYTES;
  while (left > 0 && (got = recv(fd, bytes, left < sizeof bytes ? left : sizeof bytes, MSG_DONTWAIT)) > 0) {
    left -= (size_t)got;
  }
}

int bl_socket_error(int fd) {
  int errno_value = 0;
  socklen_t length = sizeof errno_value;
  return getsockopt(fd, SOL_SOCKET, SO_ERROR, &errno_value, &length) == 0 ? errno_value : errno;
}

static bool allows(const char *limit_path) {
  long long limit = 0;
  FILE *file = fopen(limit_path, "re");
  bool read = file != NULL && fscanf(file, "%lld", &limit) == 1;
  if (file != NULL) {
    fclose(file);
  }
  return read && limit >= LARGE_BUFFER_BYTES;
}

void bl_socket_enlarge_buffers(int fd) {
  int bytes = LARGE_BUFFER_BYTES;
  if (allows("/proc/sys/net/core/wmem_max")) {
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
  }
  if (allows("/proc/sys/net/core/rmem_max")) {
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
  }
}

void bl_socket_set_blocking(int fd) {
  int status_flags = fcntl(fd, F_GETFL);
  if (status_flags >= 0) {
    fcntl(fd, F_SETFL, status_flags & ~O_NONBLOCK);
  }
}

bool bl_socket_peer_is_us(int fd) {
  struct ucred peer;
  socklen_t length = sizeof peer;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && (peer.uid == geteuid() || peer.uid == 0);
}

typedef union {
  struct cmsghdr align;
  char bytes[CMSG_SPACE(BL_SOCKET_MAX_DESCRIPTORS * sizeof(int))];
} control_t;

ssize_t bl_socket_send(int fd, const struct iovec *parts, size_t part_count, const int *fds, size_t fd_count) {
  struct msghdr message = {.msg_iov = (struct iovec *)parts, .msg_iovlen = part_count};
  control_t control = {0};
  if (fd_count > 0) {
    message.msg_control = control.bytes;
    message.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
    memcpy(CMSG_DATA(header), fds, fd_count * sizeof(int));
  }
  ssize_t sent;
  do {
    sent = sendmsg(fd, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent;
}

ssize_t bl_socket_receive(int fd, void *bytes, size_t size_bytes, int *fds, size_t *fd_count) {
  struct iovec part = {.iov_base = bytes, .iov_len = size_bytes};
  control_t control;
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  ssize_t got;
  do {
    got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) {
    return got;
  }
  bool beyond = (message.msg_flags & MSG_CTRUNC) != 0;
  for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header != NULL; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; i++) {
      int one;
      memcpy(&one, CMSG_DATA(header) + i * sizeof(int), sizeof one);
      if (*fd_count < BL_SOCKET_MAX_DESCRIPTORS) {
        fds[(*fd_count)++] = one;
      } else {
        close(one);
        beyond = true;
      }
    }
  }
  if (beyond) {
    errno = EMSGSIZE;
    return -1;
  }
  return got;
}
