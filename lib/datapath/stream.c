// SPDX-License-Identifier: Apache-2.0
#include "datapath/stream.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

// Some chunks may be under way while the other side hashes; the kernel takes less where its limits say so.
#define BUFFER_BYTES (4 << 20)

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

static ssize_t plain_write(bl_stream_t *stream, const struct iovec *parts, size_t part_count, int fd) {
  return bl_socket_send(stream->fd, parts, part_count, &fd, fd >= 0 ? 1 : 0);
}

static void plain_close(bl_stream_t *stream) {
  close(stream->fd);
}

void bl_stream_plain(bl_stream_t *stream, int fd, bool is_unix) {
  static const bl_stream_ops_t ops = {.read = plain_read, .write = plain_write, .close = plain_close};
  *stream = (bl_stream_t){.ops = &ops, .fd = fd, .is_unix = is_unix};
  if (!is_unix) {
    int bytes = BUFFER_BYTES;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes); // improvements only
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
  }
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
