// SPDX-License-Identifier: Apache-2.0
#include "datapath/frame.h"

#include "base/hash.h"
#include "datapath/wire.h"

#include <string.h>

#define MAGIC 0x46504c42u // "BLPF" in memory

// Offsets of header fields.
enum {
  AT_MAGIC = 0,
  AT_VERSION = 4,
  AT_KIND = 5,
  AT_STATUS = 6,
  AT_DIRECTION = 7,
  AT_BODY_BYTES = 8,
  AT_REGION = 12,
  AT_BYTES = 16,
  AT_OFFSET = 24,
  AT_CHECKSUM = 32,
  AT_ATTEMPT = 40,
  AT_BOUNDARY = 48,
  AT_MICRO_BATCH = 52, // of the key
  AT_PIECE = 56,
  AT_LOADED = 60,
  AT_SEQUENCE = 64,
  AT_ACKNOWLEDGED = 72,
  AT_ID = 80,
  AT_GENERATION = 88,
  AT_STEP = 96,
  AT_LABEL_CHUNK = 104,
  AT_LABEL_MICRO_BATCH = 108,
  AT_RETRY = 112,
  AT_ZERO = 116,
  AT_HEADER_CHECK = 120,
};

const char *bl_frame_kind_name(bl_frame_kind_t kind) {
  static const char *const names[] = {
      [BL_FRAME_GREET] = "GREET",
      [BL_FRAME_WELCOME] = "WELCOME",
      [BL_FRAME_READY] = "READY",
      [BL_FRAME_BYE] = "BYE",
      [BL_FRAME_RENDEZVOUS] = "RENDEZVOUS",
      [BL_FRAME_GO] = "GO",
      [BL_FRAME_DATA] = "DATA",
      [BL_FRAME_OFFER] = "OFFER",
      [BL_FRAME_ACK] = "ACK",
      [BL_FRAME_CREDIT] = "CREDIT",
      [BL_FRAME_REGISTER] = "REGISTER",
      [BL_FRAME_REGISTERED] = "REGISTERED",
      [BL_FRAME_UNREGISTER] = "UNREGISTER",
      [BL_FRAME_UNREGISTERED] = "UNREGISTERED",
      [BL_FRAME_EVICT] = "EVICT",
      [BL_FRAME_LOAD] = "LOAD",
      [BL_FRAME_RELEASE] = "RELEASE",
      [BL_FRAME_KEEP] = "KEEP",
      [BL_FRAME_ANSWER] = "ANSWER",
      [BL_FRAME_NOTE] = "NOTE",
  };
  return kind >= BL_FRAME_GREET && kind <= BL_FRAME_LAST ? names[kind] : "unknown";
}

uint32_t bl_frame_fixed_body_bytes(bl_frame_kind_t kind) {
  switch (kind) {
  case BL_FRAME_GREET:
  case BL_FRAME_WELCOME:
    return BL_FRAME_GREETING_BYTES;
  case BL_FRAME_RENDEZVOUS:
    return BL_FRAME_RENDEZVOUS_BYTES;
  case BL_FRAME_NOTE:
    return BL_FRAME_NOTE_BYTES;
  default:
    return 0;
  }
}

void bl_frame_encode(const bl_frame_t *frame, uint8_t header[BL_FRAME_HEADER_BYTES]) {
  memset(header, 0, BL_FRAME_HEADER_BYTES);
  bl_wire_put32(header + AT_MAGIC, MAGIC);
  header[AT_VERSION] = BL_FRAME_VERSION;
  header[AT_KIND] = (uint8_t)frame->kind;
  header[AT_STATUS] = (uint8_t)frame->status;
  header[AT_DIRECTION] = (uint8_t)frame->key.direction;
  bl_wire_put32(header + AT_BODY_BYTES, frame->body_bytes);
  bl_wire_put32(header + AT_REGION, frame->region);
  bl_wire_put64(header + AT_BYTES, frame->bytes);
  bl_wire_put64(header + AT_OFFSET, frame->offset);
  bl_wire_put64(header + AT_CHECKSUM, frame->checksum);
  bl_wire_put64(header + AT_ATTEMPT, frame->attempt);
  bl_wire_put32(header + AT_BOUNDARY, frame->key.boundary);
  bl_wire_put32(header + AT_MICRO_BATCH, frame->key.micro_batch);
  bl_wire_put32(header + AT_PIECE, frame->key.piece);
  bl_wire_put32(header + AT_LOADED, frame->loaded ? 1 : 0);
  bl_wire_put64(header + AT_SEQUENCE, frame->sequence);
  bl_wire_put64(header + AT_ACKNOWLEDGED, frame->acknowledged);
  bl_wire_put64(header + AT_ID, frame->id);
  bl_wire_put64(header + AT_GENERATION, frame->generation);
  bl_wire_put64(header + AT_STEP, frame->step);
  bl_wire_put32(header + AT_LABEL_CHUNK, frame->chunk);
  bl_wire_put32(header + AT_LABEL_MICRO_BATCH, frame->micro_batch);
  bl_wire_put32(header + AT_RETRY, frame->retry_after_ms);
  bl_wire_put64(header + AT_HEADER_CHECK, bl_hash64(header, AT_HEADER_CHECK, MAGIC));
}

static const char *check_tensor(const bl_frame_t *frame) {
  if (frame->attempt == 0) {
    return "attempt is 0";
  }
  if (frame->key.direction >= BL_DIRECTIONS) {
    return "unknown direction";
  }
  if (frame->kind != BL_FRAME_ACK && (frame->bytes == 0 || frame->bytes > BL_FRAME_MAX_BYTES)) {
    return "tensor size out of range";
  }
  if (frame->kind == BL_FRAME_OFFER && (frame->region >= BL_FRAME_MAX_ARENAS || frame->offset > BL_FRAME_MAX_BYTES)) {
    return "arena position out of range";
  }
  return NULL;
}

static const char *check_block(const bl_frame_t *frame) {
  if (frame->sequence == 0) {
    return "sequence number is 0";
  }
  return frame->bytes > BL_FRAME_MAX_BYTES || frame->offset > BL_FRAME_MAX_BYTES ? "block size or offset out of range"
                                                                                 : NULL;
}

static const char *check_region(const bl_frame_t *frame) {
  if (frame->region >= BL_FRAME_REGIONS) {
    return "region out of range";
  }
  return frame->kind == BL_FRAME_REGISTER && (frame->bytes == 0 || frame->bytes > BL_FRAME_MAX_BYTES)
             ? "region size out of range"
             : NULL;
}

static const char *check_fields(const bl_frame_t *frame) {
  switch (frame->kind) {
  case BL_FRAME_GREET:
  case BL_FRAME_WELCOME:
  case BL_FRAME_READY:
  case BL_FRAME_RENDEZVOUS:
  case BL_FRAME_ANSWER:
    return NULL;
  case BL_FRAME_NOTE:
    return frame->attempt == 0 ? "attempt is 0" : NULL;
  case BL_FRAME_BYE:
    return frame->status == BL_OK ? "a goodbye without a cause" : NULL;
  case BL_FRAME_OFFER:
  case BL_FRAME_ACK:
  case BL_FRAME_CREDIT:
    return check_tensor(frame);
  case BL_FRAME_GO:
  case BL_FRAME_DATA: // of a tensor or of a block
    return frame->sequence == 0 ? check_tensor(frame) : check_block(frame);
  case BL_FRAME_REGISTER:
  case BL_FRAME_REGISTERED:
  case BL_FRAME_UNREGISTER:
  case BL_FRAME_UNREGISTERED:
    return check_region(frame);
  case BL_FRAME_EVICT:
  case BL_FRAME_LOAD:
  case BL_FRAME_RELEASE:
  case BL_FRAME_KEEP:
    return check_block(frame);
  }
  return "unknown kind of frame";
}

static const char *check_chunk(const bl_frame_t *frame) {
  if (frame->body_bytes == 0 || frame->body_bytes > BL_FRAME_CHUNK_BYTES) {
    return "chunk size out of range";
  }
  return frame->offset > frame->bytes || frame->body_bytes > frame->bytes - frame->offset
             ? "chunk beyond its tensor or block"
             : NULL;
}

static const char *check_body(const bl_frame_t *frame) {
  switch (frame->kind) {
  case BL_FRAME_DATA:
    return check_chunk(frame);
  case BL_FRAME_GREET:
  case BL_FRAME_WELCOME:
  case BL_FRAME_RENDEZVOUS:
  case BL_FRAME_NOTE:
    return frame->body_bytes != bl_frame_fixed_body_bytes(frame->kind) ? "wrong body size" : NULL;
  case BL_FRAME_BYE:
  case BL_FRAME_REGISTERED:
  case BL_FRAME_UNREGISTERED:
  case BL_FRAME_ANSWER:
    return frame->body_bytes > BL_FRAME_TEXT_BYTES ? "text too long" : NULL;
  default:
    return frame->body_bytes != 0 ? "unexpected body" : NULL;
  }
}

bool bl_frame_may_begin(const uint8_t *bytes, size_t count) {
  uint8_t magic[4];
  bl_wire_put32(magic, MAGIC);
  return memcmp(bytes, magic, count < sizeof magic ? count : sizeof magic) == 0;
}

bl_status_t bl_frame_decode(const uint8_t header[BL_FRAME_HEADER_BYTES], bl_frame_t *frame, const char **reason) {
  if (bl_wire_get32(header + AT_MAGIC) != MAGIC) {
    *reason = "not a ballast frame";
    return BL_INVALID;
  }
  if (header[AT_VERSION] != BL_FRAME_VERSION) {
    *reason = "another version of the data path";
    return BL_INVALID;
  }
  if (bl_wire_get64(header + AT_HEADER_CHECK) != bl_hash64(header, AT_HEADER_CHECK, MAGIC)) {
    *reason = "header checksum does not match";
    return BL_INVALID;
  }
  if (header[AT_STATUS] >= BL_STATUS_COUNT || bl_wire_get32(header + AT_LOADED) > 1 ||
      bl_wire_get32(header + AT_ZERO) != 0) {
    *reason = "status or flag out of range, or reserved bytes that are not zero";
    return BL_INVALID;
  }
  const bl_frame_t read = {.kind = (bl_frame_kind_t)header[AT_KIND],
                           .status = (bl_status_t)header[AT_STATUS],
                           .body_bytes = bl_wire_get32(header + AT_BODY_BYTES),
                           .region = bl_wire_get32(header + AT_REGION),
                           .bytes = bl_wire_get64(header + AT_BYTES),
                           .offset = bl_wire_get64(header + AT_OFFSET),
                           .checksum = bl_wire_get64(header + AT_CHECKSUM),
                           .attempt = bl_wire_get64(header + AT_ATTEMPT),
                           .key = {.boundary = bl_wire_get32(header + AT_BOUNDARY),
                                   .direction = (bl_direction_t)header[AT_DIRECTION],
                                   .micro_batch = bl_wire_get32(header + AT_MICRO_BATCH),
                                   .piece = bl_wire_get32(header + AT_PIECE)},
                           .sequence = bl_wire_get64(header + AT_SEQUENCE),
                           .acknowledged = bl_wire_get64(header + AT_ACKNOWLEDGED),
                           .id = bl_wire_get64(header + AT_ID),
                           .generation = bl_wire_get64(header + AT_GENERATION),
                           .step = bl_wire_get64(header + AT_STEP),
                           .chunk = bl_wire_get32(header + AT_LABEL_CHUNK),
                           .micro_batch = bl_wire_get32(header + AT_LABEL_MICRO_BATCH),
                           .retry_after_ms = bl_wire_get32(header + AT_RETRY),
                           .loaded = bl_wire_get32(header + AT_LOADED) != 0};
  const char *wrong = check_fields(&read);
  wrong = wrong == NULL ? check_body(&read) : wrong;
  if (wrong != NULL) {
    *reason = wrong;
    return BL_INVALID;
  }
  *frame = read;
  return BL_OK;
}
