// SPDX-License-Identifier: Apache-2.0
#include "datapath/inlet.h"

#include <errno.h>
#include <string.h>

#define SKIP_BYTES 16384

void bl_inlet_init(bl_inlet_t *inlet, bl_stream_t *stream) {
  memset(inlet, 0, sizeof *inlet);
  inlet->stream = stream;
}

void bl_inlet_into(bl_inlet_t *inlet, void *to) {
  inlet->into = to;
}

static bl_inlet_event_t read_ended(bl_inlet_t *inlet, ssize_t got) {
  if (got == 0) {
    inlet->reason = "the other side closed the connection";
    return BL_INLET_END;
  }
  if (errno == EAGAIN) {
    return BL_INLET_AGAIN;
  }
  (void)bl_stream_failure(inlet->stream, errno, &inlet->failure);
  inlet->reason = inlet->failure.text;
  return BL_INLET_BROKEN;
}

// Reads until the buffer has `need` bytes. On TCP not more: what follows may be a body that has its own place.
static bl_inlet_event_t fill(bl_inlet_t *inlet, size_t need) {
  if (inlet->begin > 0 && inlet->begin + need > sizeof inlet->buffer) {
    memmove(inlet->buffer, inlet->buffer + inlet->begin, inlet->end - inlet->begin);
    inlet->end -= inlet->begin;
    inlet->begin = 0;
  }
  while (inlet->end - inlet->begin < need) {
    size_t room = inlet->stream->is_unix ? sizeof inlet->buffer - inlet->end : need - (inlet->end - inlet->begin);
    struct iovec part = {.iov_base = inlet->buffer + inlet->end, .iov_len = room};
    ssize_t got = bl_stream_read(inlet->stream, &part, 1);
    if (got <= 0) {
      return read_ended(inlet, got);
    }
    inlet->end += (size_t)got;
  }
  return BL_INLET_FRAME;
}

static bl_inlet_event_t next_body(bl_inlet_t *inlet) {
  uint8_t skipped[SKIP_BYTES];
  while (inlet->body_at < inlet->frame.body_bytes) {
    size_t rest = inlet->frame.body_bytes - inlet->body_at, buffered = inlet->end - inlet->begin;
    if (buffered > 0) {
      size_t part = buffered < rest ? buffered : rest;
      if (inlet->into != NULL) {
        memcpy(inlet->into + inlet->body_at, inlet->buffer + inlet->begin, part);
      }
      inlet->buffered_bytes += part;
      inlet->begin += part;
      inlet->body_at += (uint32_t)part;
      continue;
    }
    inlet->begin = inlet->end = 0;
    // The header of the next frame comes with the rest of this body: one call per chunk.
    bool skips = inlet->into == NULL;
    size_t part = skips && rest > sizeof skipped ? sizeof skipped : rest;
    struct iovec parts[2] = {{.iov_base = skips ? skipped : inlet->into + inlet->body_at, .iov_len = part},
                             {.iov_base = inlet->buffer, .iov_len = BL_BLOCK_FRAME_BYTES}};
    ssize_t got = bl_stream_read(inlet->stream, parts, part == rest && !inlet->stream->is_unix ? 2 : 1);
    if (got <= 0) {
      return read_ended(inlet, got);
    }
    size_t beyond = (size_t)got > part ? (size_t)got - part : 0;
    inlet->body_at += (uint32_t)((size_t)got - beyond);
    inlet->end = beyond;
  }
  inlet->in_body = false;
  return BL_INLET_BODY;
}

bl_inlet_event_t bl_inlet_next(bl_inlet_t *inlet) {
  if (inlet->in_body) {
    return next_body(inlet);
  }
  bl_inlet_event_t event = fill(inlet, BL_BLOCK_FRAME_BYTES);
  if (event != BL_INLET_FRAME) {
    return event;
  }
  bl_block_frame_t frame;
  if (bl_block_frame_decode(inlet->buffer + inlet->begin, &frame, &inlet->reason) != BL_OK) {
    return BL_INLET_BROKEN;
  }
  if (frame.kind == BL_BLOCK_DATA) {
    inlet->begin += BL_BLOCK_FRAME_BYTES;
    inlet->in_body = true;
    inlet->body_at = 0;
    inlet->into = NULL;
    inlet->frame = frame;
    return BL_INLET_FRAME;
  }
  event = fill(inlet, BL_BLOCK_FRAME_BYTES + frame.body_bytes);
  if (event == BL_INLET_FRAME) {
    memcpy(inlet->text, inlet->buffer + inlet->begin + BL_BLOCK_FRAME_BYTES, frame.body_bytes);
    inlet->text[frame.body_bytes] = '\0';
    inlet->begin += BL_BLOCK_FRAME_BYTES + frame.body_bytes;
    inlet->frame = frame;
  }
  return event;
}
