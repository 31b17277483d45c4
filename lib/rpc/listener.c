// SPDX-License-Identifier: Apache-2.0
#include "rpc/listener.h"

#include "sys/lock_file.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define LOCK_PATH_BYTES (BL_RPC_ADDRESS_BYTES + 8)

static void write_lock_path(const bl__address_t *address, char path[LOCK_PATH_BYTES]) {
  snprintf(path, LOCK_PATH_BYTES, "%s.lock", address->path);
}

// Takes the lock. The kernel frees it when its holder ends in any way.
static bl_status_t take_lock(bl__listener_t *listener, bl_error_t *err) {
  char path[LOCK_PATH_BYTES];
  write_lock_path(&listener->address, path);
  bl_status_t status = bl_lock_file_open(path, 0600, &listener->lock_fd);
  int cause = errno;
  if (status == BL_PRECONDITION) {
    return bl_error_set(err, status, "cannot listen on unix:%s: another server that is alive holds it",
                        listener->address.path);
  }
  if (status != BL_OK) {
    return bl_error_set(err, bl_status_from_errno(cause), "cannot listen on unix:%s: lock file %s: %s",
                        listener->address.path, path, strerror(cause));
  }
  return BL_OK;
}

// A server without a lock may also use the path: if it answers, it is alive.
static bl_status_t remove_stale_socket(const char *path, bl_error_t *err) {
  struct stat status;
  if (lstat(path, &status) != 0) {
    return BL_OK; // no file; the lock has already detected a folder that cannot be read
  }
  if (!S_ISSOCK(status.st_mode)) {
    return bl_error_set(err, BL_PRECONDITION, "cannot listen on unix:%s: the file there is not a socket", path);
  }
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) {
    return bl_error_set(err, bl_status_from_errno(errno), "cannot listen on unix:%s: %s", path, strerror(errno));
  }
  struct sockaddr_un peer = {.sun_family = AF_UNIX};
  memcpy(peer.sun_path, path, strlen(path) + 1); // fits: checked by bl__address_parse
  bool refused = connect(fd, (struct sockaddr *)&peer, sizeof peer) != 0 && errno == ECONNREFUSED;
  close(fd);
  if (!refused) {
    return bl_error_set(err, BL_PRECONDITION, "cannot listen on unix:%s: another process answers there", path);
  }
  if (unlink(path) != 0 && errno != ENOENT) {
    return bl_error_set(err, bl_status_from_errno(errno), "cannot listen on unix:%s: removing the old socket: %s", path,
                        strerror(errno));
  }
  return BL_OK;
}

bl_status_t bl__listener_claim(bl__listener_t *listener, const bl__address_t *address, bl_error_t *err) {
  listener->address = *address;
  listener->lock_fd = -1;
  if (!address->is_unix) {
    return BL_OK;
  }
  bl_status_t status = take_lock(listener, err);
  if (status != BL_OK) {
    return status;
  }
  status = remove_stale_socket(address->path, err);
  if (status != BL_OK) {
    char path[LOCK_PATH_BYTES];
    write_lock_path(address, path);
    bl_lock_file_close(path, listener->lock_fd);
    listener->lock_fd = -1;
  }
  return status;
}

void bl__listener_release(bl__listener_t *listener) {
  if (listener->lock_fd < 0) {
    return;
  }
  char path[LOCK_PATH_BYTES];
  write_lock_path(&listener->address, path);
  unlink(listener->address.path);
  bl_lock_file_close(path, listener->lock_fd);
  listener->lock_fd = -1;
}

// Binds as gRPC would. Returns 0 or the errno value.
static int try_bind(const struct addrinfo *info) {
  int fd = socket(info->ai_family, info->ai_socktype | SOCK_CLOEXEC, info->ai_protocol);
  if (fd < 0) {
    return errno;
  }
  const int on = 1;
  (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  int error = bind(fd, info->ai_addr, info->ai_addrlen) != 0 || listen(fd, 1) != 0 ? errno : 0;
  close(fd);
  return error;
}

bl_status_t bl__listener_explain(const bl__address_t *address, const char *text, bl_error_t *err) {
  if (address->is_unix) {
    return bl_error_set(err, BL_IO, "cannot listen on %s", text);
  }
  const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
  struct addrinfo *info = NULL;
  int failure = getaddrinfo(address->host, address->port, &hints, &info);
  if (failure != 0) {
    return bl_error_set(err, BL_INVALID, "cannot listen on %s: %s", text, gai_strerror(failure));
  }
  int error = 0;
  for (const struct addrinfo *next = info; next != NULL && error == 0; next = next->ai_next) {
    error = try_bind(next);
  }
  freeaddrinfo(info);
  if (error == EADDRINUSE) {
    return bl_error_set(err, BL_PRECONDITION, "cannot listen on %s: another process listens there", text);
  }
  return bl_error_set(err, error == 0 ? BL_IO : bl_status_from_errno(error), "cannot listen on %s: %s", text,
                      error == 0 ? "refused by gRPC" : strerror(error));
}
