// SPDX-License-Identifier: Apache-2.0
// Reads frames (block_frame.h) from a stream. Bodies of DATA go straight to where the caller points: on TCP never a byte
// passes through a buffer of ours.
//
//   switch (bl_inlet_next(&inlet)) {
//   case BL_INLET_FRAME: inlet.frame, inlet.text; for DATA say where to: bl_inlet_into(&inlet, to);   // NULL: skip it
//   case BL_INLET_BODY:  the body of that DATA is there
//   case BL_INLET_AGAIN: nothing more now
//   case BL_INLET_END, BL_INLET_BROKEN: inlet.reason
//   }
//
// Thread: one at a time. No allocation.
#ifndef BALLAST_DATAPATH_INLET_H
#define BALLAST_DATAPATH_INLET_H

#include "datapath/block_frame.h"
#include "datapath/stream.h"

typedef enum bl_inlet_event {
  BL_INLET_AGAIN,
  BL_INLET_FRAME,
  BL_INLET_BODY,
  BL_INLET_END,
  BL_INLET_BROKEN, // not a frame, or the connection failed
} bl_inlet_event_t;

#define BL_INLET_BUFFER_BYTES 4096u

typedef struct bl_inlet {
  bl_stream_t *stream;
  bl_block_frame_t frame;             // the last one
  char text[BL_BLOCK_TEXT_BYTES + 1]; // its body, unless DATA; with an end behind it
  const char *reason;
  bl_error_t failure;      // of the connection, for BL_INLET_BROKEN; BL_OK when it was the frame
  uint64_t buffered_bytes; // of DATA that passed through the buffer: 0 on TCP but for what skipped
  // Inside:
  uint8_t *into;
  uint32_t body_at;
  bool in_body;
  size_t begin, end;
  uint8_t buffer[BL_INLET_BUFFER_BYTES];
} bl_inlet_t;

void bl_inlet_init(bl_inlet_t *inlet, bl_stream_t *stream);
BL_MUST_USE bl_inlet_event_t bl_inlet_next(bl_inlet_t *inlet);
// After a DATA frame, before the next call: `to` has frame.body_bytes; NULL reads them away.
void bl_inlet_into(bl_inlet_t *inlet, void *to);

#endif
