// SPDX-License-Identifier: Apache-2.0
#include "datapath/stream.h"

#include "tls/session.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static ssize_t plain_read(bl_stream_t *stream, const struct iovec *parts, size_t part_count) {
  if (stream->is_unix) {
    return bl_socket_receive(stream->fd, parts[0].iov_base, parts[0].iov_len, stream->passed, &stream->passed_count);
  }
  ssize_t got;
  do {
    got = readv(stream->fd, parts, (int)part_count);
  } while (got < 0 && errno == EINTR);
  return got;
}

static ssize_t plain_write(bl_stream_t *stream, const struct iovec *parts, size_t part_count, const int *fds,
                           size_t fd_count) {
  return bl_socket_send(stream->fd, parts, part_count, fds, fd_count);
}

static void plain_close(bl_stream_t *stream) {
  close(stream->fd);
}

void bl_stream_plain(bl_stream_t *stream, int fd, bool is_unix) {
  static const bl_stream_ops_t ops = {.read = plain_read, .write = plain_write, .close = plain_close};
  *stream = (bl_stream_t){.ops = &ops, .fd = fd, .is_unix = is_unix};
  if (!is_unix) {
    bl_socket_enlarge_buffers(fd);
  }
}

// ---- over TLS -------------------------------------------------------------------------------------------------------

static ssize_t tls_read(bl_stream_t *stream, const struct iovec *parts, size_t part_count) {
  size_t moved = 0;
  for (size_t i = 0; i < part_count; i++) {
    for (size_t at = 0; at < parts[i].iov_len;) {
      ssize_t got = bl_tls_session_read(stream->state, (uint8_t *)parts[i].iov_base + at, parts[i].iov_len - at);
      if (got <= 0) {
        return moved > 0 ? (ssize_t)moved : got; // the next read returns the failure
      }
      at += (size_t)got;
      moved += (size_t)got;
    }
  }
  return (ssize_t)moved;
}

static ssize_t tls_write(bl_stream_t *stream, const struct iovec *parts, size_t part_count, const int *fds,
                         size_t fd_count) {
  (void)fds, (void)fd_count; // for unix sockets only
  size_t moved = 0;
  for (size_t i = 0; i < part_count; i++) {
    for (size_t at = 0; at < parts[i].iov_len;) {
      ssize_t sent =
          bl_tls_session_write(stream->state, (const uint8_t *)parts[i].iov_base + at, parts[i].iov_len - at);
      if (sent <= 0) {
        return moved > 0 ? (ssize_t)moved : sent;
      }
      at += (size_t)sent;
      moved += (size_t)sent;
    }
  }
  return (ssize_t)moved;
}

static void tls_close(bl_stream_t *stream) {
  bl_tls_session_destroy(stream->state);
  stream->state = NULL;
  close(stream->fd);
}

static const bl_error_t *tls_failure(const bl_stream_t *stream) {
  return bl_tls_session_error(stream->state);
}

static const bl_stream_ops_t tls_ops = {
    .read = tls_read, .write = tls_write, .close = tls_close, .failure = tls_failure};

bl_status_t bl_stream_tls(bl_stream_t *stream, int fd, bl_tls_t *tls, bool server, unsigned roles, bl_error_t *err) {
  bl_tls_session_t *session;
  bl_status_t status = bl_tls_session_create(tls, fd, server, roles, &session, err);
  if (status == BL_OK) {
    *stream = (bl_stream_t){.ops = &tls_ops, .state = session, .fd = fd};
    bl_socket_enlarge_buffers(fd);
  }
  return status;
}

bl_status_t bl_stream_handshake(bl_stream_t *stream, bl_error_t *err) {
  if (stream->ops != &tls_ops || bl_tls_session_handshake(stream->state)) {
    return BL_OK;
  }
  return errno == EAGAIN
             ? bl_error_set(err, BL_DEADLINE, "the TLS handshake did not end in time; does the other end speak TLS?")
             : bl_stream_failure(stream, errno, err);
}

bool bl_stream_wants_writable(const bl_stream_t *stream) {
  return stream->ops != &tls_ops || bl_tls_session_wants_writable(stream->state);
}

bool bl_stream_is_up(const bl_stream_t *stream) {
  return stream->ops != &tls_ops || bl_tls_session_is_up(stream->state);
}

bl_status_t bl_stream_failure(const bl_stream_t *stream, int errno_value, bl_error_t *err) {
  const bl_error_t *more = stream->ops->failure != NULL ? stream->ops->failure(stream) : NULL;
  if (more != NULL && more->status != BL_OK) {
    return bl_error_set(err, more->status, "%s", more->text);
  }
  return bl_error_set(err, bl_status_from_errno(errno_value), "%s", strerror(errno_value));
}

bl_status_t bl_stream_explain_end(const bl_stream_t *stream, bl_error_t *err) {
  if (stream->ops == &tls_ops) {
    return bl_tls_session_explain_end(stream->state, err);
  }
  return bl_error_set(err, BL_UNAVAILABLE, "the other side closed the connection");
}

bool bl_stream_is_other_kind(bl_stream_t *stream, const uint8_t first[2]) {
  if (stream->ops != &tls_ops) {
    return !stream->is_unix && bl_tls_is_record(first);
  }
  if (!bl_tls_session_is_plaintext(stream->state)) {
    return false;
  }
  bl_tls_session_destroy(stream->state);
  bl_stream_plain(stream, stream->fd, false);
  return true;
}

void bl_stream_close(bl_stream_t *stream) {
  for (size_t i = 0; i < stream->passed_count; i++) {
    close(stream->passed[i]);
  }
  stream->passed_count = 0;
  if (stream->fd >= 0) {
    stream->ops->close(stream);
  }
  stream->fd = -1;
}

int bl_stream_take_descriptor(bl_stream_t *stream) {
  if (stream->passed_count == 0) {
    return -1;
  }
  int fd = stream->passed[0];
  stream->passed_count--;
  memmove(stream->passed, stream->passed + 1, stream->passed_count * sizeof fd);
  return fd;
}
