// SPDX-License-Identifier: Apache-2.0
// Reads frames (frame.h) from a stream. Bodies of DATA are read directly into the caller's memory. On TCP none of their
// bytes passes through a buffer here.
//
//   switch (bl_frame_reader_next(&reader)) {
//   case BL_READER_FRAME: reader.frame, reader.body; for DATA set the destination: bl_frame_reader_into(&reader, to);
//   case BL_READER_BODY:  the body of that DATA has arrived
//   case BL_READER_AGAIN: nothing more now
//   case BL_READER_END, BL_READER_BROKEN: reader.reason
//   }
//
// Thread: one at a time. No allocation.
#ifndef BALLAST_DATAPATH_FRAME_READER_H
#define BALLAST_DATAPATH_FRAME_READER_H

#include "datapath/frame.h"
#include "datapath/stream.h"

typedef enum bl_frame_reader_event {
  BL_READER_AGAIN,
  BL_READER_FRAME,
  BL_READER_BODY,
  BL_READER_END,
  BL_READER_BROKEN, // not a frame, or the connection failed
} bl_frame_reader_event_t;

#define BL_READER_BUFFER_BYTES 4096u

typedef struct bl_frame_reader {
  bl_stream_t *stream;
  bl_frame_t frame; // the last one
  union {           // its body, unless DATA
    uint8_t body[BL_FRAME_MAX_BODY_BYTES];
    char text[BL_FRAME_TEXT_BYTES + 1]; // of the kinds that have a text: terminated, printable
  };
  const char *reason;
  bl_error_t failure;      // of the connection, for BL_READER_BROKEN; BL_OK if the frame was invalid
  int errno_value;         // of that failure
  uint64_t buffered_bytes; // of DATA that passed through the buffer: on TCP only bytes that were skipped
  // Private:
  uint8_t *into;
  uint32_t body_at;
  bool in_body;
  size_t begin, end;
  uint8_t buffer[BL_READER_BUFFER_BYTES];
} bl_frame_reader_t;

void bl_frame_reader_init(bl_frame_reader_t *reader, bl_stream_t *stream);
BL_MUST_USE bl_frame_reader_event_t bl_frame_reader_next(bl_frame_reader_t *reader);
// Called after a DATA frame, before the next call: `to` has frame.body_bytes; NULL skips them. Called within a body, it
// directs the rest to the same offset of `to`, or skips it.
void bl_frame_reader_into(bl_frame_reader_t *reader, void *to);

#endif
