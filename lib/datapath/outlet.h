// SPDX-License-Identifier: Apache-2.0
// Writes frames (block_frame.h) to a stream: a small queue of frames, and blocks as DATA straight from their memory,
// with queued frames between the chunks.
//
//   bl_outlet_put(&outlet, &frame, text, fd);
//   bl_outlet_send(&outlet, &(bl_block_sender_t){.from = at, .bytes = n, .sequence = 7, .verified = true});
//   while (bl_outlet_flush(&outlet) == BL_OUTLET_AGAIN) wait until the socket takes more;
//
// Thread: one at a time. No allocation.
#ifndef BALLAST_DATAPATH_OUTLET_H
#define BALLAST_DATAPATH_OUTLET_H

#include "datapath/block_frame.h"
#include "datapath/stream.h"

#define BL_OUTLET_BUFFER_BYTES 32768u // more than all answers that a session may wait for
#define BL_OUTLET_DESCRIPTORS  16u

typedef enum bl_outlet_result {
  BL_OUTLET_DONE,   // nothing is left
  BL_OUTLET_AGAIN,  // the stream takes no more now
  BL_OUTLET_BROKEN, // errno
} bl_outlet_result_t;

// A block on its way out. It must not change, and stays the caller's.
typedef struct bl_block_sender {
  const uint8_t *from;
  uint64_t bytes, sequence;
  bool verified;     // with checksums: of the block so far in every chunk, so in `hash` of the whole at the end
  uint64_t at, hash; // progress; 0 at first
} bl_block_sender_t;

typedef struct bl_outlet {
  bl_stream_t *stream;
  size_t begin, end;
  uint8_t buffer[BL_OUTLET_BUFFER_BYTES];
  struct {
    size_t at; // in the buffer
    int fd;
  } passed[BL_OUTLET_DESCRIPTORS];
  size_t passed_count;
  uint8_t header[BL_BLOCK_FRAME_BYTES]; // of the chunk under way
  const uint8_t *chunk;
  uint32_t chunk_bytes, chunk_at; // with the header; chunk_bytes 0: none
} bl_outlet_t;

void bl_outlet_init(bl_outlet_t *outlet, bl_stream_t *stream);
// Queues a frame with a text body (NULL: none; frame->body_bytes is set here, except for GREET and JOIN, whose bodies
// have their fixed sizes) and a descriptor (-1: none), which stays the caller's and open until it is sent. False: the
// queue is full.
BL_MUST_USE bool bl_outlet_put(bl_outlet_t *outlet, const bl_block_frame_t *frame, const void *text, int fd);
// Writes what is queued and the rest of a chunk.
BL_MUST_USE bl_outlet_result_t bl_outlet_flush(bl_outlet_t *outlet);
// Writes what is queued, then up to `most` chunks of the block. BL_OUTLET_DONE: those are written; the block is out when
// sender->at == sender->bytes.
BL_MUST_USE bl_outlet_result_t bl_outlet_send(bl_outlet_t *outlet, bl_block_sender_t *sender, unsigned most);

#endif
