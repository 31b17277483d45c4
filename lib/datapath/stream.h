// SPDX-License-Identifier: Apache-2.0
// Streams: one end of a data connection, as bytes in both directions. A stream hides whether the connection is plain or
// encrypted. Everything above it (frame_reader.h, frame_writer.h) only reads and writes streams.
//
//   bl_stream_t stream;
//   bl_stream_plain(&stream, fd, is_unix);
//   bl_stream_read(&stream, parts, 2); ... bl_stream_write(&stream, parts, 1, NULL, 0); ...
//   bl_stream_close(&stream);
//
// Descriptors are passed over unix sockets only. A write attaches them to its first byte, and a read collects them in
// order.
//
// Thread: one thread may read while another writes. Close when neither does.
#ifndef BALLAST_DATAPATH_STREAM_H
#define BALLAST_DATAPATH_STREAM_H

#include "datapath/socket.h"
#include "tls/tls.h"

typedef struct bl_stream bl_stream_t;

// Texts sent to a peer that connects with the other kind of stream.
#define BL_STREAM_WANTS_TLS                                                                                            \
  "the data path there is TLS, and this program's is not: give --tls-ca, --tls-certificate and --tls-key"
#define BL_STREAM_HAS_NO_TLS "the data path there is plaintext: leave out --tls-*, or give that program certificates"

typedef struct bl_stream_ops {
  // As readv and sendmsg return: -1 with EAGAIN when it would block, 0 at the end of the stream.
  ssize_t (*read)(bl_stream_t *stream, const struct iovec *parts, size_t part_count);
  ssize_t (*write)(bl_stream_t *stream, const struct iovec *parts, size_t part_count, const int *fds, size_t fd_count);
  void (*close)(bl_stream_t *stream); // the descriptor too
  // Returns more detail than errno; BL_OK: none. May be NULL.
  const bl_error_t *(*failure)(const bl_stream_t *stream);
} bl_stream_ops_t;

struct bl_stream {
  const bl_stream_ops_t *ops;
  void *state; // of the ops
  int fd;      // -1: closed
  bool is_unix;
  // Descriptors that arrived and were not taken yet.
  int passed[BL_SOCKET_MAX_DESCRIPTORS];
  size_t passed_count;
};

// Takes ownership of a connected, non-blocking socket. TCP sockets get large buffers.
void bl_stream_plain(bl_stream_t *stream, int fd, bool is_unix);
// The same over TLS, for TCP (tls/session.h). `roles`: what the peer may be. The handshake happens in the first reads
// and writes, or in bl_stream_handshake. On failure (BL_EXHAUSTED) the socket stays the caller's.
BL_MUST_USE bl_status_t bl_stream_tls(bl_stream_t *stream, int fd, bl_tls_t *tls, bool server, unsigned roles,
                                      bl_error_t *err);
// Continues the handshake of a stream over TLS. Does nothing for a plain stream. BL_DEADLINE: it is not over yet;
// BL_UNAUTHENTICATED, ... with a message about the certificates.
BL_MUST_USE bl_status_t bl_stream_handshake(bl_stream_t *stream, bl_error_t *err);
// Called after EAGAIN of a write, or BL_DEADLINE of that handshake. Returns true if the stream waits until the socket
// is writable, false if it waits for bytes to arrive.
bool bl_stream_wants_writable(const bl_stream_t *stream);
// Returns whether the handshake of a stream over TLS is over. Always true for a plain stream.
bool bl_stream_is_up(const bl_stream_t *stream);
// Called after a read or write failed. Returns the status, and the cause as text.
bl_status_t bl_stream_failure(const bl_stream_t *stream, int errno_value, bl_error_t *err);
// Called if a peer closed the connection before its first message. Returns the cause: BL_UNAVAILABLE, or over TLS
// BL_UNAUTHENTICATED if it is known to refuse our certificate.
bl_status_t bl_stream_explain_end(const bl_stream_t *stream, bl_error_t *err);
// Called if a read failed before anything was understood. Returns whether the peer uses the other kind: plaintext on a
// stream over TLS, or TLS (`first`: the bytes that arrived) on a plain stream. The stream is plain from then on, so
// that the peer receives a message that it can read.
bool bl_stream_is_other_kind(bl_stream_t *stream, const uint8_t first[2]);
// Closes the stream and the descriptors that were not taken. A second call is allowed.
void bl_stream_close(bl_stream_t *stream);
// Returns the oldest descriptor that arrived, which the caller now owns. -1 if there is none.
int bl_stream_take_descriptor(bl_stream_t *stream);

static inline ssize_t bl_stream_read(bl_stream_t *stream, const struct iovec *parts, size_t part_count) {
  return stream->ops->read(stream, parts, part_count);
}
static inline ssize_t bl_stream_write(bl_stream_t *stream, const struct iovec *parts, size_t part_count, const int *fds,
                                      size_t fd_count) {
  return stream->ops->write(stream, parts, part_count, fds, fd_count);
}

#endif
