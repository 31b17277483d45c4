// SPDX-License-Identifier: Apache-2.0
#include "datapath/frame_reader.h"

#include "datapath/wire.h"

#include <errno.h>
#include <string.h>

#define SKIP_BYTES 16384

void bl_frame_reader_init(bl_frame_reader_t *reader, bl_stream_t *stream) {
  memset(reader, 0, sizeof *reader);
  reader->stream = stream;
}

void bl_frame_reader_into(bl_frame_reader_t *reader, void *to) {
  reader->into = to;
}

static bl_frame_reader_event_t read_ended(bl_frame_reader_t *reader, ssize_t got) {
  if (got == 0) {
    reader->reason = "the other side closed the connection";
    return BL_READER_END;
  }
  if (errno == EAGAIN) {
    return BL_READER_AGAIN;
  }
  reader->errno_value = errno;
  (void)bl_stream_failure(reader->stream, errno, &reader->failure);
  reader->reason = reader->failure.text;
  return BL_READER_BROKEN;
}

// Reads until the buffer has `need` bytes. On TCP it reads no more than that, because a body may follow that is read
// directly into place.
static bl_frame_reader_event_t fill(bl_frame_reader_t *reader, size_t need) {
  if (reader->begin > 0 && reader->begin + need > sizeof reader->buffer) {
    memmove(reader->buffer, reader->buffer + reader->begin, reader->end - reader->begin);
    reader->end -= reader->begin;
    reader->begin = 0;
  }
  while (reader->end - reader->begin < need) {
    size_t room = reader->stream->is_unix ? sizeof reader->buffer - reader->end : need - (reader->end - reader->begin);
    struct iovec part = {.iov_base = reader->buffer + reader->end, .iov_len = room};
    ssize_t got = bl_stream_read(reader->stream, &part, 1);
    if (got <= 0) {
      return read_ended(reader, got);
    }
    reader->end += (size_t)got;
  }
  return BL_READER_FRAME;
}

static bl_frame_reader_event_t next_body(bl_frame_reader_t *reader) {
  uint8_t skipped[SKIP_BYTES];
  while (reader->body_at < reader->frame.body_bytes) {
    size_t rest = reader->frame.body_bytes - reader->body_at, buffered = reader->end - reader->begin;
    if (buffered > 0) {
      size_t part = buffered < rest ? buffered : rest;
      if (reader->into != NULL) {
        memcpy(reader->into + reader->body_at, reader->buffer + reader->begin, part);
      }
      reader->buffered_bytes += part;
      reader->begin += part;
      reader->body_at += (uint32_t)part;
      continue;
    }
    reader->begin = reader->end = 0;
    // The same call also reads the header of the next frame: one call per chunk.
    bool skips = reader->into == NULL;
    size_t part = skips && rest > sizeof skipped ? sizeof skipped : rest;
    struct iovec parts[2] = {{.iov_base = skips ? skipped : reader->into + reader->body_at, .iov_len = part},
                             {.iov_base = reader->buffer, .iov_len = BL_FRAME_HEADER_BYTES}};
    ssize_t got = bl_stream_read(reader->stream, parts, part == rest && !reader->stream->is_unix ? 2 : 1);
    if (got <= 0) {
      return read_ended(reader, got);
    }
    size_t beyond = (size_t)got > part ? (size_t)got - part : 0;
    reader->body_at += (uint32_t)((size_t)got - beyond);
    reader->end = beyond;
  }
  reader->in_body = false;
  return BL_READER_BODY;
}

// The body is complete in the buffer.
static void take_body(bl_frame_reader_t *reader, const bl_frame_t *frame) {
  memcpy(reader->body, reader->buffer + reader->begin + BL_FRAME_HEADER_BYTES, frame->body_bytes);
  if (bl_frame_fixed_body_bytes(frame->kind) == 0) {
    reader->text[frame->body_bytes] = '\0';
    for (char *byte = reader->text; *byte != '\0'; byte++) {
      *byte = bl_wire_printable(*byte);
    }
  }
  reader->begin += BL_FRAME_HEADER_BYTES + frame->body_bytes;
  reader->frame = *frame;
}

bl_frame_reader_event_t bl_frame_reader_next(bl_frame_reader_t *reader) {
  if (reader->in_body) {
    return next_body(reader);
  }
  bl_frame_reader_event_t event = fill(reader, BL_FRAME_HEADER_BYTES);
  if (event == BL_READER_AGAIN && !bl_frame_may_begin(reader->buffer + reader->begin, reader->end - reader->begin)) {
    reader->reason = "not a ballast frame";
    return BL_READER_BROKEN;
  }
  if (event != BL_READER_FRAME) {
    return event;
  }
  bl_frame_t frame;
  if (bl_frame_decode(reader->buffer + reader->begin, &frame, &reader->reason) != BL_OK) {
    return BL_READER_BROKEN;
  }
  if (frame.kind == BL_FRAME_DATA) {
    reader->begin += BL_FRAME_HEADER_BYTES;
    reader->in_body = true;
    reader->body_at = 0;
    reader->into = NULL;
    reader->frame = frame;
    return BL_READER_FRAME;
  }
  event = fill(reader, BL_FRAME_HEADER_BYTES + frame.body_bytes);
  if (event == BL_READER_FRAME) {
    take_body(reader, &frame);
  }
  return event;
}
