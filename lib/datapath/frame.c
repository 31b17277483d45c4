// SPDX-License-Identifier: Apache-2.0
#include "datapath/frame.h"

#include "base/hash.h"
#include "datapath/nccl/meeting.h"
#include "datapath/wire.h"

#include <stdbool.h>
#include <string.h>

#define MAGIC 0x46504c42u // "BLPF" in memory

// Offsets of header fields.
enum {
  AT_MAGIC = 0,
  AT_VERSION = 4,
  AT_KIND = 5,
  AT_DIRECTION = 6,
  AT_ZERO = 7,
  AT_BODY_BYTES = 8,
  AT_BOUNDARY = 12,
  AT_SESSION = 16,
  AT_ATTEMPT = 24,
  AT_MICRO_BATCH = 32,
  AT_PIECE = 36,
  AT_OFFSET = 40,
  AT_BYTES = 48,
  AT_CHECKSUM = 56,
  AT_ARENA = 64,
  AT_ZERO_2 = 68,
  AT_HEADER_CHECK = 72,
};

const char *bl_frame_kind_name(bl_frame_kind_t kind) {
  static const char *const names[] = {
      [BL_FRAME_HELLO] = "HELLO",   [BL_FRAME_WELCOME] = "WELCOME", [BL_FRAME_READY] = "READY",
      [BL_FRAME_REFUSE] = "REFUSE", [BL_FRAME_OFFER] = "OFFER",     [BL_FRAME_ACK] = "ACK",
      [BL_FRAME_CREDIT] = "CREDIT", [BL_FRAME_DATA] = "DATA",       [BL_FRAME_GO] = "GO",
      [BL_FRAME_MEET] = "MEET",
  };
  return kind >= BL_FRAME_HELLO && kind <= BL_FRAME_MEET ? names[kind] : "unknown";
}

void bl_frame_encode(const bl_frame_t *frame, uint8_t header[BL_FRAME_HEADER_BYTES]) {
  memset(header, 0, BL_FRAME_HEADER_BYTES);
  bl_wire_put32(header + AT_MAGIC, MAGIC);
  header[AT_VERSION] = BL_FRAME_VERSION;
  header[AT_KIND] = (uint8_t)frame->kind;
  header[AT_DIRECTION] = (uint8_t)frame->key.direction;
  bl_wire_put32(header + AT_BODY_BYTES, frame->body_bytes);
  bl_wire_put32(header + AT_BOUNDARY, frame->key.boundary);
  bl_wire_put64(header + AT_SESSION, frame->session);
  bl_wire_put64(header + AT_ATTEMPT, frame->attempt);
  bl_wire_put32(header + AT_MICRO_BATCH, frame->key.micro_batch);
  bl_wire_put32(header + AT_PIECE, frame->key.piece);
  bl_wire_put64(header + AT_OFFSET, frame->offset);
  bl_wire_put64(header + AT_BYTES, frame->bytes);
  bl_wire_put64(header + AT_CHECKSUM, frame->checksum);
  bl_wire_put32(header + AT_ARENA, frame->arena);
  bl_wire_put64(header + AT_HEADER_CHECK, bl_hash64(header, AT_HEADER_CHECK, MAGIC));
}

static const char *check_tensor(const bl_frame_t *frame) {
  if (frame->attempt == 0) {
    return "attempt is 0";
  }
  if (frame->key.direction >= BL_DIRECTIONS) {
    return "unknown direction";
  }
  if (frame->kind != BL_FRAME_ACK && (frame->bytes == 0 || frame->bytes > BL_FRAME_MAX_TENSOR_BYTES)) {
    return "tensor size out of range";
  }
  if (frame->kind == BL_FRAME_OFFER &&
      (frame->arena >= BL_FRAME_MAX_ARENAS || frame->offset > BL_FRAME_MAX_TENSOR_BYTES)) {
    return "arena position out of range";
  }
  if (frame->kind != BL_FRAME_DATA) {
    return frame->body_bytes != 0 ? "unexpected body" : NULL;
  }
  if (frame->body_bytes == 0 || frame->body_bytes > BL_FRAME_MAX_CHUNK_BYTES) {
    return "chunk size out of range";
  }
  if (frame->offset > frame->bytes || frame->body_bytes > frame->bytes - frame->offset) {
    return "chunk beyond its tensor";
  }
  return NULL;
}

static const char *check_fields(const bl_frame_t *frame) {
  switch (frame->kind) {
  case BL_FRAME_HELLO:
  case BL_FRAME_WELCOME:
    return frame->body_bytes != BL_HELLO_BYTES ? "wrong body size of a greeting" : NULL;
  case BL_FRAME_REFUSE:
    return frame->body_bytes != BL_REFUSAL_BYTES ? "wrong body size of a refusal" : NULL;
  case BL_FRAME_READY:
    return frame->body_bytes != 0 ? "unexpected body" : NULL;
  case BL_FRAME_MEET:
    return frame->body_bytes != BL_MEET_BYTES ? "wrong body size of a word about communicators" : NULL;
  case BL_FRAME_OFFER:
  case BL_FRAME_ACK:
  case BL_FRAME_CREDIT:
  case BL_FRAME_DATA:
  case BL_FRAME_GO:
    return check_tensor(frame);
  }
  return "unknown kind of frame";
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
  if (header[AT_ZERO] != 0 || bl_wire_get32(header + AT_ZERO_2) != 0) {
    *reason = "reserved bytes are not zero";
    return BL_INVALID;
  }
  bl_frame_t read = {.kind = (bl_frame_kind_t)header[AT_KIND],
                     .body_bytes = bl_wire_get32(header + AT_BODY_BYTES),
                     .session = bl_wire_get64(header + AT_SESSION),
                     .attempt = bl_wire_get64(header + AT_ATTEMPT),
                     .key = {.boundary = bl_wire_get32(header + AT_BOUNDARY),
                             .direction = (bl_direction_t)header[AT_DIRECTION],
                             .micro_batch = bl_wire_get32(header + AT_MICRO_BATCH),
                             .piece = bl_wire_get32(header + AT_PIECE)},
                     .arena = bl_wire_get32(header + AT_ARENA),
                     .offset = bl_wire_get64(header + AT_OFFSET),
                     .bytes = bl_wire_get64(header + AT_BYTES),
                     .checksum = bl_wire_get64(header + AT_CHECKSUM)};
  const char *wrong = check_fields(&read);
  if (wrong != NULL) {
    *reason = wrong;
    return BL_INVALID;
  }
  *frame = read;
  return BL_OK;
}

// Text from a peer ends in a log line: it must be terminated and printable.
static bool text_is_clean(const char *text, size_t bytes) {
  for (size_t i = 0; i < bytes; i++) {
    if (text[i] == '\0') {
      return true;
    }
    if ((unsigned char)text[i] < 0x20 || (unsigned char)text[i] >= 0x7f) {
      return false;
    }
  }
  return false;
}

// Zero-fills behind the terminator, so that no stack bytes leave the process; unprintable bytes become '?'.
static void put_text(uint8_t *to, size_t bytes, const char *text) {
  memset(to, 0, bytes);
  for (size_t i = 0; i + 1 < bytes && text[i] != '\0'; i++) {
    unsigned char c = (unsigned char)text[i];
    to[i] = c < 0x20 || c >= 0x7f ? '?' : c;
  }
}

// Offsets in the body of a greeting.
enum {
  HELLO_STAGE = 0,
  HELLO_PEER = 4,
  HELLO_TOKEN = 8,
  HELLO_OWN_TOKEN = 24,
  HELLO_PATH = 40,
  HELLO_ARENAS = 44,
  HELLO_ARENA_BYTES = 48,
  HELLO_GPU = HELLO_ARENA_BYTES + 8 * BL_FRAME_MAX_ARENAS,
  HELLO_NCCL = HELLO_GPU + BL_FRAME_GPU_BYTES,
  HELLO_FLAGS = HELLO_NCCL + 4,
  HELLO_REASON = HELLO_FLAGS + 4,
  HELLO_END = HELLO_REASON + BL_FRAME_TEXT_BYTES,
};
enum { HELLO_SHARED_GPU = 1, HELLO_WANTS_NCCL = 2, HELLO_FLAGS_KNOWN = 3 };
_Static_assert(HELLO_END + 8 == BL_HELLO_BYTES, "8 reserved bytes end a greeting");

void bl_hello_encode(const bl_hello_t *hello, uint8_t body[BL_HELLO_BYTES]) {
  memset(body, 0, BL_HELLO_BYTES);
  bl_wire_put32(body + HELLO_STAGE, (uint32_t)hello->stage);
  bl_wire_put32(body + HELLO_PEER, (uint32_t)hello->peer);
  memcpy(body + HELLO_TOKEN, hello->token, BL_FRAME_TOKEN_BYTES);
  memcpy(body + HELLO_OWN_TOKEN, hello->own_token, BL_FRAME_TOKEN_BYTES);
  bl_wire_put32(body + HELLO_PATH, hello->path);
  bl_wire_put32(body + HELLO_ARENAS, hello->arena_count);
  for (size_t i = 0; i < BL_FRAME_MAX_ARENAS; i++) {
    bl_wire_put64(body + HELLO_ARENA_BYTES + 8 * i, hello->arena_bytes[i]);
  }
  put_text(body + HELLO_GPU, BL_FRAME_GPU_BYTES, hello->gpu);
  bl_wire_put32(body + HELLO_NCCL, (uint32_t)hello->nccl);
  bl_wire_put32(body + HELLO_FLAGS,
                (hello->shared_gpu ? HELLO_SHARED_GPU : 0u) | (hello->wants_nccl ? HELLO_WANTS_NCCL : 0u));
  put_text(body + HELLO_REASON, BL_FRAME_TEXT_BYTES, hello->reason);
}

bl_status_t bl_hello_decode(const uint8_t body[BL_HELLO_BYTES], bl_hello_t *hello, const char **reason) {
  bl_hello_t read = {.stage = (int32_t)bl_wire_get32(body + HELLO_STAGE),
                     .peer = (int32_t)bl_wire_get32(body + HELLO_PEER),
                     .path = bl_wire_get32(body + HELLO_PATH),
                     .arena_count = bl_wire_get32(body + HELLO_ARENAS),
                     .nccl = (int32_t)bl_wire_get32(body + HELLO_NCCL)};
  const uint32_t flags = bl_wire_get32(body + HELLO_FLAGS);
  read.shared_gpu = (flags & HELLO_SHARED_GPU) != 0;
  read.wants_nccl = (flags & HELLO_WANTS_NCCL) != 0;
  memcpy(read.token, body + HELLO_TOKEN, BL_FRAME_TOKEN_BYTES);
  memcpy(read.own_token, body + HELLO_OWN_TOKEN, BL_FRAME_TOKEN_BYTES);
  memcpy(read.reason, body + HELLO_REASON, BL_FRAME_TEXT_BYTES);
  memcpy(read.gpu, body + HELLO_GPU, BL_FRAME_GPU_BYTES);
  if (read.stage < 0 || read.peer < 0) {
    *reason = "negative stage number";
    return BL_INVALID;
  }
  if (read.arena_count > BL_FRAME_MAX_ARENAS) {
    *reason = "too many arenas";
    return BL_INVALID;
  }
  for (size_t i = 0; i < BL_FRAME_MAX_ARENAS; i++) {
    read.arena_bytes[i] = bl_wire_get64(body + HELLO_ARENA_BYTES + 8 * i);
    if (i < read.arena_count && (read.arena_bytes[i] == 0 || read.arena_bytes[i] > BL_FRAME_MAX_TENSOR_BYTES)) {
      *reason = "arena size out of range";
      return BL_INVALID;
    }
  }
  if (!text_is_clean(read.reason, sizeof read.reason) || !text_is_clean(read.gpu, sizeof read.gpu)) {
    *reason = "text is not printable";
    return BL_INVALID;
  }
  if (read.nccl < 0 || (flags & ~(uint32_t)HELLO_FLAGS_KNOWN) != 0) {
    *reason = "impossible version of NCCL, or unknown flags";
    return BL_INVALID;
  }
  *hello = read;
  return BL_OK;
}

void bl_refusal_encode(const bl_refusal_t *refusal, uint8_t body[BL_REFUSAL_BYTES]) {
  bl_wire_put32(body, (uint32_t)refusal->status);
  put_text(body + 4, BL_FRAME_TEXT_BYTES, refusal->text);
}

bl_status_t bl_refusal_decode(const uint8_t body[BL_REFUSAL_BYTES], bl_refusal_t *refusal, const char **reason) {
  bl_refusal_t read = {.status = (bl_status_t)bl_wire_get32(body)};
  memcpy(read.text, body + 4, BL_FRAME_TEXT_BYTES);
  if (read.status == BL_OK || (unsigned)read.status >= BL_STATUS_COUNT) {
    *reason = "unknown status in a refusal";
    return BL_INVALID;
  }
  if (!text_is_clean(read.text, sizeof read.text)) {
    *reason = "text is not printable";
    return BL_INVALID;
  }
  *refusal = read;
  return BL_OK;
}

// Offsets in the body of MEET.
enum {
  MEET_VERB = 0,
  MEET_GENERATION = 4,
  MEET_STATUS = 8,
  MEET_ZERO = 12,
  MEET_IDS = 16,
  MEET_TEXT = MEET_IDS + 2 * BL_FRAME_ID_BYTES,
};
_Static_assert(MEET_TEXT + BL_FRAME_TEXT_BYTES == BL_MEET_BYTES, "a text ends a word about communicators");

void bl_meet_encode(const bl_meet_t *meet, uint8_t body[BL_MEET_BYTES]) {
  bl_wire_put32(body + MEET_VERB, meet->verb);
  bl_wire_put32(body + MEET_GENERATION, meet->generation);
  bl_wire_put32(body + MEET_STATUS, (uint32_t)meet->status);
  bl_wire_put32(body + MEET_ZERO, 0);
  memcpy(body + MEET_IDS, meet->ids, sizeof meet->ids);
  put_text(body + MEET_TEXT, BL_FRAME_TEXT_BYTES, meet->text);
}

bl_status_t bl_meet_decode(const uint8_t body[BL_MEET_BYTES], bl_meet_t *meet, const char **reason) {
  bl_meet_t read = {.verb = bl_wire_get32(body + MEET_VERB),
                    .generation = bl_wire_get32(body + MEET_GENERATION),
                    .status = (bl_status_t)bl_wire_get32(body + MEET_STATUS)};
  memcpy(read.ids, body + MEET_IDS, sizeof read.ids);
  memcpy(read.text, body + MEET_TEXT, BL_FRAME_TEXT_BYTES);
  if (read.verb >= BL_NCCL_MEETING_VERBS || read.generation == 0 || (unsigned)read.status >= BL_STATUS_COUNT ||
      bl_wire_get32(body + MEET_ZERO) != 0) {
    *reason = "unknown verb, status or generation in a word about communicators";
    return BL_INVALID;
  }
  // A word that explains a failure names it.
  const bool explains = read.verb == BL_NCCL_MEETING_DROP || read.verb == BL_NCCL_MEETING_BROKE;
  if ((explains && read.status == BL_OK) || !text_is_clean(read.text, sizeof read.text)) {
    *reason = "a failure without a cause, or text that is not printable";
    return BL_INVALID;
  }
  *meet = read;
  return BL_OK;
}
