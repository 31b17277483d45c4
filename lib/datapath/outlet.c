// SPDX-License-Identifier: Apache-2.0
#include "datapath/outlet.h"

#include "datapath/block.h"

#include <errno.h>
#include <string.h>

void bl_outlet_init(bl_outlet_t *outlet, bl_stream_t *stream) {
  memset(outlet, 0, sizeof *outlet);
  outlet->stream = stream;
}

bool bl_outlet_put(bl_outlet_t *outlet, const bl_block_frame_t *frame, const void *text, int fd) {
  bl_block_frame_t own = *frame;
  if (frame->kind == BL_BLOCK_GREET) {
    own.body_bytes = BL_BLOCK_GREETING_BYTES;
  } else if (frame->kind == BL_BLOCK_JOIN) {
    own.body_bytes = BL_BLOCK_ID_BYTES;
  } else {
    own.body_bytes = text != NULL ? (uint32_t)strnlen(text, BL_BLOCK_TEXT_BYTES) : 0;
  }
  size_t need = BL_BLOCK_FRAME_BYTES + own.body_bytes;
  if (outlet->end + need > sizeof outlet->buffer && outlet->begin > 0) {
    memmove(outlet->buffer, outlet->buffer + outlet->begin, outlet->end - outlet->begin);
    for (size_t i = 0; i < outlet->passed_count; i++) {
      outlet->passed[i].at -= outlet->begin;
    }
    outlet->end -= outlet->begin;
    outlet->begin = 0;
  }
  if (outlet->end + need > sizeof outlet->buffer || (fd >= 0 && outlet->passed_count == BL_OUTLET_DESCRIPTORS)) {
    return false;
  }
  if (fd >= 0) {
    outlet->passed[outlet->passed_count].at = outlet->end;
    outlet->passed[outlet->passed_count++].fd = fd;
  }
  bl_block_frame_encode(&own, outlet->buffer + outlet->end);
  if (own.body_bytes > 0) {
    memcpy(outlet->buffer + outlet->end + BL_BLOCK_FRAME_BYTES, text, own.body_bytes);
  }
  outlet->end += need;
  return true;
}

static bl_outlet_result_t write_failed(void) {
  return errno == EAGAIN ? BL_OUTLET_AGAIN : BL_OUTLET_BROKEN;
}

static bl_outlet_result_t flush_chunk(bl_outlet_t *outlet) {
  while (outlet->chunk_bytes > 0) {
    struct iovec parts[2];
    size_t count = 0, header_left = 0;
    if (outlet->chunk_at < BL_BLOCK_FRAME_BYTES) {
      header_left = BL_BLOCK_FRAME_BYTES - outlet->chunk_at;
      parts[count++] = (struct iovec){.iov_base = outlet->header + outlet->chunk_at, .iov_len = header_left};
    }
    size_t body_at = outlet->chunk_at + header_left - BL_BLOCK_FRAME_BYTES;
    parts[count++] =
        (struct iovec){.iov_base = (uint8_t *)outlet->chunk + body_at, .iov_len = outlet->chunk_bytes - body_at};
    ssize_t sent = bl_stream_write(outlet->stream, parts, count, -1);
    if (sent <= 0) {
      return write_failed();
    }
    outlet->chunk_at += (uint32_t)sent;
    if (outlet->chunk_at == BL_BLOCK_FRAME_BYTES + outlet->chunk_bytes) {
      outlet->chunk_bytes = 0;
    }
  }
  return BL_OUTLET_DONE;
}

bl_outlet_result_t bl_outlet_flush(bl_outlet_t *outlet) {
  bl_outlet_result_t result = flush_chunk(outlet);
  while (result == BL_OUTLET_DONE && outlet->begin < outlet->end) {
    // A descriptor goes with the first byte of its frame: a write ends before it or begins with it.
    int fd = -1;
    size_t until = outlet->end, next = 0;
    if (outlet->passed_count > 0 && outlet->passed[0].at == outlet->begin) {
      fd = outlet->passed[0].fd;
      next = 1;
    }
    if (outlet->passed_count > next) {
      until = outlet->passed[next].at;
    }
    struct iovec part = {.iov_base = outlet->buffer + outlet->begin, .iov_len = until - outlet->begin};
    ssize_t sent = bl_stream_write(outlet->stream, &part, 1, fd);
    if (sent <= 0) {
      return write_failed();
    }
    if (fd >= 0) {
      outlet->passed_count--;
      memmove(outlet->passed, outlet->passed + 1, outlet->passed_count * sizeof outlet->passed[0]);
    }
    outlet->begin += (size_t)sent;
  }
  if (result == BL_OUTLET_DONE) {
    outlet->begin = outlet->end = 0;
  }
  return result;
}

bl_outlet_result_t bl_outlet_send(bl_outlet_t *outlet, bl_block_sender_t *sender, unsigned most) {
  bl_outlet_result_t result = bl_outlet_flush(outlet);
  while (result == BL_OUTLET_DONE && sender->at < sender->bytes && most-- > 0) {
    uint64_t rest = sender->bytes - sender->at;
    uint32_t bytes = rest < BL_BLOCK_CHUNK_BYTES ? (uint32_t)rest : BL_BLOCK_CHUNK_BYTES;
    if (sender->verified) { // now, so that the kernel's copy finds it in the cache
      sender->hash = bl_block_checksum_more(sender->hash, sender->from + sender->at, bytes);
    }
    bl_block_frame_t frame = {.kind = BL_BLOCK_DATA,
                              .sequence = sender->sequence,
                              .bytes = sender->bytes,
                              .offset = sender->at,
                              .body_bytes = bytes,
                              .checksum = sender->hash};
    bl_block_frame_encode(&frame, outlet->header);
    outlet->chunk = sender->from + sender->at;
    outlet->chunk_bytes = bytes;
    outlet->chunk_at = 0;
    sender->at += bytes;
    result = bl_outlet_flush(outlet);
  }
  return result;
}
