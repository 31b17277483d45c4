// SPDX-License-Identifier: Apache-2.0
// Writes frames (frame.h) to a stream: a small queue of frames, and tensors and blocks as DATA straight from their memory,
// with queued frames between the chunks.
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

// A tensor or block on its way out. It must not change, and stays the caller's.
typedef struct bl_frame_sender {
  bl_frame_t frame; // of its DATA: whose they are, and `bytes` of the whole; the rest is set here
  const uint8_t *from;
  bool verified;     // with checksums: of all so far in every chunk, so in `hash` of the whole at the end
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
  uint8_t header[BL_FRAME_HEADER_BYTES]; // of the chunk under way
  const uint8_t *chunk;
  uint32_t chunk_bytes, chunk_at; // with the header; chunk_bytes 0: none
} bl_frame_writer_t;

void bl_frame_writer_init(bl_frame_writer_t *writer, bl_stream_t *stream);
void bl_frame_writer_cleanup(
    bl_frame_writer_t *writer); // what was not sent is dropped. A zeroed one, and twice, is fine
// Queues a frame with its body: NULL for none, bl_frame_fixed_body_bytes where the kind has a fixed size, else a text, cut at
// its limit (frame->body_bytes is set here); and with duplicates of descriptors, which stay the caller's. False: the queue is
// full, or the process has no descriptors left.
BL_MUST_USE bool bl_frame_writer_put(bl_frame_writer_t *writer, const bl_frame_t *frame, const void *body,
                                     const int *fds, size_t fd_count);
// How many frames without a body fit now.
size_t bl_frame_writer_room(const bl_frame_writer_t *writer);
// Whether something waits to be written.
static inline bool bl_frame_writer_is_busy(const bl_frame_writer_t *writer) {
  return writer->chunk_bytes > 0 || writer->begin < writer->end;
}
// Writes what is queued and the rest of a chunk.
BL_MUST_USE bl_frame_writer_result_t bl_frame_writer_flush(bl_frame_writer_t *writer);
// Writes what is queued, then up to `most` chunks of the sender. BL_WRITER_DONE: those are written; it is out when
// sender->at == sender->frame.bytes.
BL_MUST_USE bl_frame_writer_result_t bl_frame_writer_send(bl_frame_writer_t *writer, bl_frame_sender_t *sender,
                                                          unsigned most);
// How much of a sender's bytes has left: all but a chunk under way.
static inline uint64_t bl_frame_writer_sent(const bl_frame_writer_t *writer, const bl_frame_sender_t *sender) {
  return sender->at == 0 ? 0 : sender->at - writer->chunk_bytes; // before its first, the chunk is another's
}
// Its memory is to be let go of: a chunk under way goes on from a copy in `side`, which has BL_FRAME_CHUNK_BYTES. Gives the
// bytes copied.
uint32_t bl_frame_writer_let_go(bl_frame_writer_t *writer, uint8_t *side);

#endif
