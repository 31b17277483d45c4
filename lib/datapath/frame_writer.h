// SPDX-License-Identifier: Apache-2.0
// Writes frames (frame.h) to a stream. It has a small queue of frames. Tensors and blocks are sent as DATA directly
// from their memory, and queued frames are sent between the chunks.
//
//   bl_frame_writer_put(&writer, &frame, body, fds, fd_count);
//   bl_frame_sender_t sender = {.frame = {.sequence = 7, .bytes = n}, .from = at, .verified = true};
//   bl_frame_writer_send(&writer, &sender, 8);
//   while (bl_frame_writer_flush(&writer) == BL_WRITER_AGAIN) wait until the socket takes more;
//
// Thread: one at a time. No allocation.
#ifndef BALLAST_DATAPATH_FRAME_WRITER_H
#define BALLAST_DATAPATH_FRAME_WRITER_H

#include "datapath/frame.h"
#include "datapath/stream.h"

#define BL_WRITER_BUFFER_BYTES 32768u // more than all answers that a session may wait for
#define BL_WRITER_DESCRIPTORS  16u

typedef enum bl_frame_writer_result {
  BL_WRITER_DONE,   // nothing is left
  BL_WRITER_AGAIN,  // the stream takes no more now
  BL_WRITER_BROKEN, // errno
} bl_frame_writer_result_t;

// A tensor or block that is being sent. It must not change, and stays the caller's.
typedef struct bl_frame_sender {
  // Header of its DATA: the caller sets the identity and the `bytes` of the whole; the writer sets the rest.
  bl_frame_t frame;
  const uint8_t *from;
  // With checksums: every chunk carries that of all bytes so far. At the end `hash` is that of the whole.
  bool verified;
  uint64_t at, hash; // progress; 0 at first
} bl_frame_sender_t;

typedef struct bl_frame_writer {
  bl_stream_t *stream;
  size_t begin, end;
  uint8_t buffer[BL_WRITER_BUFFER_BYTES];
  struct {
    size_t at; // in the buffer
    int fd;
  } passed[BL_WRITER_DESCRIPTORS];
  size_t passed_count;
  uint8_t header[BL_FRAME_HEADER_BYTES]; // of the chunk in progress
  const uint8_t *chunk;
  uint32_t chunk_bytes, chunk_at; // including the header; chunk_bytes 0: none
} bl_frame_writer_t;

void bl_frame_writer_init(bl_frame_writer_t *writer, bl_stream_t *stream);
// Drops what was not sent. A zeroed writer, or a second call, is allowed.
void bl_frame_writer_cleanup(bl_frame_writer_t *writer);
// Queues a frame with its body and duplicates of descriptors, which stay the caller's. `body` is NULL for none,
// bl_frame_fixed_body_bytes if the kind has a fixed size, else a text, which is truncated at its limit (this sets
// frame->body_bytes). False: the queue is full, or the process has no descriptors left.
BL_MUST_USE bool bl_frame_writer_put(bl_frame_writer_t *writer, const bl_frame_t *frame, const void *body,
                                     const int *fds, size_t fd_count);
// Returns how many frames without a body fit now.
size_t bl_frame_writer_free_frames(const bl_frame_writer_t *writer);
// Returns whether something waits to be written.
static inline bool bl_frame_writer_is_busy(const bl_frame_writer_t *writer) {
  return writer->chunk_bytes > 0 || writer->begin < writer->end;
}
// Writes queued frames and the rest of a chunk.
BL_MUST_USE bl_frame_writer_result_t bl_frame_writer_flush(bl_frame_writer_t *writer);
// Writes queued frames, then up to `most` chunks of the sender. BL_WRITER_DONE: those are written. All is sent when
// sender->at == sender->frame.bytes.
BL_MUST_USE bl_frame_writer_result_t bl_frame_writer_send(bl_frame_writer_t *writer, bl_frame_sender_t *sender,
                                                          unsigned most);
// Returns how many bytes of a sender were written: all except a chunk in progress.
static inline uint64_t bl_frame_writer_sent(const bl_frame_writer_t *writer, const bl_frame_sender_t *sender) {
  // Before its first chunk, the chunk in progress belongs to another sender.
  return sender->at == 0 ? 0 : sender->at - writer->chunk_bytes;
}
// Releases the sender's memory: the rest of a chunk in progress is copied to `side`, which has BL_FRAME_CHUNK_BYTES,
// and sent from there. Returns the bytes copied.
uint32_t bl_frame_writer_let_go(bl_frame_writer_t *writer, uint8_t *side);

#endif
