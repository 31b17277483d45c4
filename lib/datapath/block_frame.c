// SPDX-License-Identifier: Apache-2.0
#include "datapath/block_frame.h"

#include "base/hash.h"
#include "datapath/wire.h"

#include <string.h>

#define MAGIC 0x42424c42u // "BLBB" in memory

// Offsets of header fields.
enum {
  AT_MAGIC = 0,
  AT_VERSION = 4,
  AT_KIND = 5,
  AT_STATUS = 6,
  AT_LOADED = 7,
  AT_BODY_BYTES = 8,
  AT_SOURCE = 12,
  AT_SEQUENCE = 16,
  AT_ACKNOWLEDGED = 24,
  AT_ID = 32,
  AT_GENERATION = 40,
  AT_BYTES = 48,
  AT_OFFSET = 56,
  AT_CHECKSUM = 64,
  AT_STEP = 72,
  AT_CHUNK = 80,
  AT_MICRO_BATCH = 84,
  AT_RETRY = 88,
  AT_ZERO = 92,
  AT_HEADER_CHECK = 96,
};

const char *bl_block_frame_kind_name(bl_block_frame_kind_t kind) {
  static const char *const names[] = {
      [BL_BLOCK_GREET] = "GREET", [BL_BLOCK_WELCOME] = "WELCOME", [BL_BLOCK_SHOW] = "SHOW",
      [BL_BLOCK_SHOWN] = "SHOWN", [BL_BLOCK_HIDE] = "HIDE",       [BL_BLOCK_HIDDEN] = "HIDDEN",
      [BL_BLOCK_EVICT] = "EVICT", [BL_BLOCK_LOAD] = "LOAD",       [BL_BLOCK_RELEASE] = "RELEASE",
      [BL_BLOCK_DATA] = "DATA",   [BL_BLOCK_ANSWER] = "ANSWER",   [BL_BLOCK_BYE] = "BYE",
      [BL_BLOCK_JOIN] = "JOIN",   [BL_BLOCK_BEGUN] = "BEGUN",
  };
  return kind >= BL_BLOCK_GREET && kind <= BL_BLOCK_LAST ? names[kind] : "unknown";
}

void bl_block_frame_encode(const bl_block_frame_t *frame, uint8_t header[BL_BLOCK_FRAME_BYTES]) {
  memset(header, 0, BL_BLOCK_FRAME_BYTES);
  bl_wire_put32(header + AT_MAGIC, MAGIC);
  header[AT_VERSION] = BL_BLOCK_FRAME_VERSION;
  header[AT_KIND] = (uint8_t)frame->kind;
  header[AT_STATUS] = (uint8_t)frame->status;
  header[AT_LOADED] = frame->loaded ? 1 : 0;
  bl_wire_put32(header + AT_BODY_BYTES, frame->body_bytes);
  bl_wire_put32(header + AT_SOURCE, frame->source);
  bl_wire_put64(header + AT_SEQUENCE, frame->sequence);
  bl_wire_put64(header + AT_ACKNOWLEDGED, frame->acknowledged);
  bl_wire_put64(header + AT_ID, frame->id);
  bl_wire_put64(header + AT_GENERATION, frame->generation);
  bl_wire_put64(header + AT_BYTES, frame->bytes);
  bl_wire_put64(header + AT_OFFSET, frame->offset);
  bl_wire_put64(header + AT_CHECKSUM, frame->checksum);
  bl_wire_put64(header + AT_STEP, frame->step);
  bl_wire_put32(header + AT_CHUNK, frame->chunk);
  bl_wire_put32(header + AT_MICRO_BATCH, frame->micro_batch);
  bl_wire_put32(header + AT_RETRY, frame->retry_after_ms);
  bl_wire_put64(header + AT_HEADER_CHECK, bl_hash64(header, AT_HEADER_CHECK, MAGIC));
}

static const char *check_block(const bl_block_frame_t *frame) {
  if (frame->sequence == 0) {
    return "sequence number is 0";
  }
  if (frame->bytes > BL_BLOCK_MAX_BYTES || frame->offset > BL_BLOCK_MAX_BYTES) {
    return "block size or offset out of range";
  }
  if (frame->kind != BL_BLOCK_DATA) {
    return frame->body_bytes != 0 ? "unexpected body" : NULL;
  }
  if (frame->body_bytes == 0 || frame->body_bytes > BL_BLOCK_CHUNK_BYTES) {
    return "chunk size out of range";
  }
  return frame->offset > frame->bytes || frame->body_bytes > frame->bytes - frame->offset ? "chunk beyond its block"
                                                                                          : NULL;
}

static const char *check_fields(const bl_block_frame_t *frame) {
  switch (frame->kind) {
  case BL_BLOCK_GREET:
    return frame->body_bytes != BL_BLOCK_GREETING_BYTES ? "wrong body size of a greeting" : NULL;
  case BL_BLOCK_SHOW:
  case BL_BLOCK_HIDE:
  case BL_BLOCK_SHOWN:
  case BL_BLOCK_HIDDEN:
    if (frame->source >= BL_BLOCK_SOURCES) {
      return "source out of range";
    }
    if (frame->kind == BL_BLOCK_SHOW && (frame->bytes == 0 || frame->bytes > BL_BLOCK_MAX_BYTES)) {
      return "source size out of range";
    }
    return frame->body_bytes > BL_BLOCK_TEXT_BYTES ? "text too long" : NULL;
  case BL_BLOCK_WELCOME:
  case BL_BLOCK_ANSWER:
  case BL_BLOCK_BYE:
    return frame->body_bytes > BL_BLOCK_TEXT_BYTES ? "text too long" : NULL;
  case BL_BLOCK_JOIN:
    return frame->source >= BL_BLOCK_WAYS || frame->body_bytes != BL_BLOCK_ID_BYTES ? "no way or id to join" : NULL;
  case BL_BLOCK_EVICT:
  case BL_BLOCK_LOAD:
  case BL_BLOCK_RELEASE:
  case BL_BLOCK_DATA:
  case BL_BLOCK_BEGUN:
    return check_block(frame);
  }
  return "unknown kind of frame";
}

bl_status_t bl_block_frame_decode(const uint8_t header[BL_BLOCK_FRAME_BYTES], bl_block_frame_t *frame,
                                  const char **reason) {
  if (bl_wire_get32(header + AT_MAGIC) != MAGIC) {
    *reason = "not a frame of this protocol";
    return BL_INVALID;
  }
  if (header[AT_VERSION] != BL_BLOCK_FRAME_VERSION) {
    *reason = "another version of the protocol";
    return BL_INVALID;
  }
  if (bl_wire_get64(header + AT_HEADER_CHECK) != bl_hash64(header, AT_HEADER_CHECK, MAGIC)) {
    *reason = "header checksum is wrong";
    return BL_INVALID;
  }
  if (header[AT_STATUS] >= BL_STATUS_COUNT || header[AT_LOADED] > 1 || bl_wire_get32(header + AT_ZERO) != 0) {
    *reason = "status or flag out of range";
    return BL_INVALID;
  }
  const bl_block_frame_t read = {.kind = (bl_block_frame_kind_t)header[AT_KIND],
                                 .status = (bl_status_t)header[AT_STATUS],
                                 .loaded = header[AT_LOADED] != 0,
                                 .body_bytes = bl_wire_get32(header + AT_BODY_BYTES),
                                 .source = bl_wire_get32(header + AT_SOURCE),
                                 .retry_after_ms = bl_wire_get32(header + AT_RETRY),
                                 .sequence = bl_wire_get64(header + AT_SEQUENCE),
                                 .acknowledged = bl_wire_get64(header + AT_ACKNOWLEDGED),
                                 .id = bl_wire_get64(header + AT_ID),
                                 .generation = bl_wire_get64(header + AT_GENERATION),
                                 .bytes = bl_wire_get64(header + AT_BYTES),
                                 .offset = bl_wire_get64(header + AT_OFFSET),
                                 .checksum = bl_wire_get64(header + AT_CHECKSUM),
                                 .step = bl_wire_get64(header + AT_STEP),
                                 .chunk = bl_wire_get32(header + AT_CHUNK),
                                 .micro_batch = bl_wire_get32(header + AT_MICRO_BATCH)};
  const char *wrong = check_fields(&read);
  if (wrong != NULL) {
    *reason = wrong;
    return BL_INVALID;
  }
  *frame = read;
  return BL_OK;
}

// ---- greeting ----------------------------------------------------------------------------------------------------------

enum { GREET_SESSION = 0, GREET_KEY = 8, GREET_INCARNATION = 24, GREET_FLAGS = 40, GREET_PATH = 41, GREET_REASON = 48 };

void bl_block_greeting_encode(const bl_block_greeting_t *greeting, uint8_t body[BL_BLOCK_GREETING_BYTES]) {
  memset(body, 0, BL_BLOCK_GREETING_BYTES);
  bl_wire_put64(body + GREET_SESSION, greeting->session);
  memcpy(body + GREET_KEY, greeting->key, BL_BLOCK_KEY_BYTES);
  memcpy(body + GREET_INCARNATION, greeting->incarnation, BL_BLOCK_KEY_BYTES);
  body[GREET_FLAGS] = (uint8_t)((greeting->shm ? 1 : 0) | (greeting->unverified ? 2 : 0));
  bl_path_t by_socket = greeting->shm ? BL_PATH_SHM : BL_PATH_TCP;
  body[GREET_PATH] = (uint8_t)(greeting->path == BL_PATH_AUTO ? by_socket : greeting->path);
  memcpy(body + GREET_REASON, greeting->reason, sizeof greeting->reason);
}

bl_status_t bl_block_greeting_decode(const uint8_t body[BL_BLOCK_GREETING_BYTES], bl_block_greeting_t *greeting,
                                     const char **reason) {
  bl_block_greeting_t read = {.session = bl_wire_get64(body + GREET_SESSION),
                              .shm = (body[GREET_FLAGS] & 1) != 0,
                              .path = (bl_path_t)body[GREET_PATH],
                              .unverified = (body[GREET_FLAGS] & 2) != 0};
  memcpy(read.key, body + GREET_KEY, sizeof read.key);
  memcpy(read.incarnation, body + GREET_INCARNATION, sizeof read.incarnation);
  memcpy(read.reason, body + GREET_REASON, sizeof read.reason);
  if (body[GREET_FLAGS] > 3) {
    *reason = "unknown flags in a greeting";
    return BL_INVALID;
  }
  if (read.path == BL_PATH_AUTO || read.path >= BL_PATHS || bl_path_is_unix(read.path) != read.shm) {
    *reason = "a greeting names no path of its socket";
    return BL_INVALID;
  }
  if (memchr(read.reason, '\0', sizeof read.reason) == NULL) {
    *reason = "a text without its end in a greeting";
    return BL_INVALID;
  }
  *greeting = read;
  return BL_OK;
}
