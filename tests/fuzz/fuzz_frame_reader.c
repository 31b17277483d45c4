// SPDX-License-Identifier: Apache-2.0
// Whatever comes over a data connection of a store or its client, the reader hands out frames whose fields are in range,
// writes nowhere but where it was told, and ends. The input: one byte that says how the stream cuts it into reads and
// whether it is a unix socket, then the bytes. With an odd second byte the headers get right checksums first, so that
// what lies behind them is reached.
#include "target.h"

#include "base/hash.h"
#include "datapath/frame_reader.h"
#include "datapath/greeting.h"

#include <errno.h>
#include <string.h>

#define INPUT_MAX 65536

typedef struct source {
  const uint8_t *bytes;
  size_t left, step;
} source_t;

static ssize_t read_some(bl_stream_t *stream, const struct iovec *parts, size_t part_count) {
  source_t *source = stream->state;
  size_t budget = source->step, moved = 0;
  if (source->left == 0) {
    return 0;
  }
  for (size_t i = 0; i < part_count && budget > 0 && source->left > 0; i++) {
    size_t part = parts[i].iov_len < budget ? parts[i].iov_len : budget;
    part = part < source->left ? part : source->left;
    memcpy(parts[i].iov_base, source->bytes, part);
    source->bytes += part;
    source->left -= part;
    budget -= part;
    moved += part;
  }
  return (ssize_t)moved;
}

static void check_frame(const bl_frame_reader_t *reader) {
  const bl_frame_t *frame = &reader->frame;
  FUZZ_CHECK(frame->kind >= BL_FRAME_GREET && frame->kind <= BL_FRAME_LAST);
  FUZZ_CHECK((unsigned)frame->status < BL_STATUS_COUNT);
  if (frame->kind != BL_FRAME_DATA) {
    const uint32_t fixed = bl_frame_fixed_body_bytes(frame->kind);
    FUZZ_CHECK(fixed != 0 ? frame->body_bytes == fixed
                          : frame->body_bytes <= BL_FRAME_TEXT_BYTES && reader->text[frame->body_bytes] == '\0');
  } else {
    FUZZ_CHECK(frame->body_bytes > 0 && frame->body_bytes <= BL_FRAME_CHUNK_BYTES);
    FUZZ_CHECK(frame->offset <= frame->bytes && frame->body_bytes <= frame->bytes - frame->offset);
  }
  if (frame->kind == BL_FRAME_GREET || frame->kind == BL_FRAME_WELCOME) {
    bl_greeting_t greeting;
    const char *reason = NULL;
    if (bl_greeting_decode(reader->body, &greeting, &reason) == BL_OK) {
      FUZZ_CHECK(memchr(greeting.reason, '\0', sizeof greeting.reason) != NULL);
    } else {
      FUZZ_CHECK(reason != NULL);
    }
  }
}

// Gives every header where one is expected its checksum, as a liar who knows the format would.
static void put_right(uint8_t *bytes, size_t size_bytes) {
  static const uint8_t magic[4] = {0x42, 0x4c, 0x50, 0x46};
  for (size_t at = 0; at + BL_FRAME_HEADER_BYTES <= size_bytes;) {
    uint8_t *header = bytes + at;
    memcpy(header, magic, sizeof magic);
    header[4] = BL_FRAME_VERSION;
    header[5] = (uint8_t)(1 + header[5] % BL_FRAME_LAST);
    uint64_t check = bl_hash64(header, BL_FRAME_HEADER_BYTES - 8, 0x46504c42u);
    for (int i = 0; i < 8; i++) {
      header[BL_FRAME_HEADER_BYTES - 8 + (size_t)i] = (uint8_t)(check >> (8 * i));
    }
    bl_frame_t frame;
    const char *reason;
    if (bl_frame_decode(header, &frame, &reason) != BL_OK) {
      return;
    }
    at += BL_FRAME_HEADER_BYTES + frame.body_bytes;
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes) {
  static uint8_t input[INPUT_MAX], body[BL_FRAME_CHUNK_BYTES + 16];
  static const bl_stream_ops_t ops = {.read = read_some};
  if (size_bytes < 2 || size_bytes > INPUT_MAX) {
    return 0;
  }
  memcpy(input, bytes + 2, size_bytes - 2);
  if (bytes[1] % 2 == 1) {
    put_right(input, size_bytes - 2);
  }
  source_t source = {.bytes = input, .left = size_bytes - 2, .step = 1 + (size_t)(bytes[0] >> 1) * 37};
  bl_stream_t stream = {.ops = &ops, .state = &source, .fd = -1, .is_unix = bytes[0] % 2 == 1};
  bl_frame_reader_t reader;
  bl_frame_reader_init(&reader, &stream);
  memset(body + BL_FRAME_CHUNK_BYTES, 0x77, 16);
  for (unsigned frames = 0;; frames++) {
    bl_frame_reader_event_t event = bl_frame_reader_next(&reader);
    if (event == BL_READER_END || event == BL_READER_BROKEN) {
      FUZZ_CHECK(reader.reason != NULL);
      break;
    }
    FUZZ_CHECK(event == BL_READER_FRAME || event == BL_READER_BODY);
    if (event == BL_READER_FRAME) {
      check_frame(&reader);
      if (reader.frame.kind == BL_FRAME_DATA && frames % 3 != 0) {
        bl_frame_reader_into(&reader, body);
      }
    }
  }
  for (int i = 0; i < 16; i++) {
    FUZZ_CHECK(body[BL_FRAME_CHUNK_BYTES + i] == 0x77);
  }
  return 0;
}
