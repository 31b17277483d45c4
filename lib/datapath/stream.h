// SPDX-License-Identifier: Apache-2.0
// One end of a data connection as bytes in both directions: the seam under which a connection is plain or encrypted.
// Everything above it (frame_reader.h, frame_writer.h) only reads and writes streams.
//
//   bl_stream_t stream;
//   bl_stream_plain(&stream, fd, is_unix);
//   bl_stream_read(&stream, parts, 2); ... bl_stream_write(&stream, parts, 1, NULL, 0); ...
//   bl_stream_close(&stream);
//
// Descriptors travel over unix sockets only: a write attaches some to its first byte, a read collects them in order.
// Thread: one thread may read while another writes; close when neither does.
#ifndef BALLAST_DATAPATH_STREAM_H
#define BALLAST_DATAPATH_STREAM_H

#include "datapath/socket.h"
#include "tls/tls.h"

typedef struct bl_stream bl_stream_t;

// What a peer is told that came with the other kind.
#define BL_STREAM_WANTS_TLS                                                                                            \
  "the data path there is TLS, and this program's is not: give --tls-ca, --tls-certificate and --tls-key"
#define BL_STREAM_HAS_NO_TLS "the data path there is plaintext: leave out --tls-*, or give that program certificates"

typedef struct bl_stream_ops {
  // As readv and sendmsg return: -1 with EAGAIN when it would block, 0 at the end of the stream.
  ssize_t (*read)(bl_stream_t *stream, const struct iovec *parts, size_t part_count);
  ssize_t (*write)(bl_stream_t *stream, const struct iovec *parts, size_t part_count, const int *fds, size_t fd_count);
  void (*close)(bl_stream_t *stream);                      // the descriptor too
  const bl_error_t *(*failure)(const bl_stream_t *stream); // more than errno says; BL_OK: nothing. May be NULL
} bl_stream_ops_t;

struct bl_stream {
  const bl_stream_ops_t *ops;
  void *state; // of the ops
  int fd;      // -1: closed
  bool is_unix;
  int passed[BL_SOCKET_MAX_DESCRIPTORS]; // came with what was read and were not taken yet
  size_t passed_count;
};

// Takes over a connected, non-blocking socket. TCP sockets get large buffers.
void bl_stream_plain(bl_stream_t *stream, int fd, bool is_unix);
// The same over TLS, for TCP (tls/session.h). `roles`: what the peer may be. The handshake happens inside the first reads
// and writes, or in bl_stream_handshake. On failure (BL_EXHAUSTED) the socket stays the caller's.
BL_MUST_USE bl_status_t bl_stream_tls(bl_stream_t *stream, int fd, bl_tls_t *tls, bool server, unsigned roles,
                                      bl_error_t *err);
// Waits for the handshake of a stream over TLS; nothing to do for a plain one. BL_DEADLINE; BL_UNAUTHENTICATED, ... with
// words about the certificates.
BL_MUST_USE bl_status_t bl_stream_handshake(bl_stream_t *stream, uint64_t deadline_ns, bl_error_t *err);
// After EAGAIN of a write, or BL_DEADLINE of that handshake: whether it waits until the socket takes more, and not for bytes
// to come.
bool bl_stream_wants_writable(const bl_stream_t *stream);
// Whether the handshake of a stream over TLS is over; of a plain one it is.
bool bl_stream_is_up(const bl_stream_t *stream);
// After a read or write failed: the status, and the cause in words.
bl_status_t bl_stream_failure(const bl_stream_t *stream, int errno_value, bl_error_t *err);
// A peer closed the connection before its first word: the cause, over TLS that it refuses our certificate.
bl_status_t bl_stream_explain_end(const bl_stream_t *stream, bl_error_t *err);
// After a read failed before anything was understood: what came was the other kind, plaintext on a stream over TLS, or
// TLS (`first`: the bytes that came) on a plain one. The stream is plain from then on, so that the peer can be told in
// words that it understands.
bool bl_stream_is_other_kind(bl_stream_t *stream, const uint8_t first[2]);
// Closes, together with descriptors that nobody took. Twice is fine.
void bl_stream_close(bl_stream_t *stream);
// The oldest descriptor that came, now the caller's; -1 when there is none.
int bl_stream_take_descriptor(bl_stream_t *stream);

static inline ssize_t bl_stream_read(bl_stream_t *stream, const struct iovec *parts, size_t part_count) {
  return stream->ops->read(stream, parts, part_count);
}
static inline ssize_t bl_stream_write(bl_stream_t *stream, const struct iovec *parts, size_t part_count, const int *fds,
                                      size_t fd_count) {
  return stream->ops->write(stream, parts, part_count, fds, fd_count);
}

#endif
