// SPDX-License-Identifier: Apache-2.0
#include "datapath/greeting.h"

#include "datapath/wire.h"

// Offsets in the body.
enum {
  AT_STAGE = 0,
  AT_PEER = 4,
  AT_SESSION = 8,
  AT_TOKEN = 16,
  AT_OWN_TOKEN = AT_TOKEN + BL_FRAME_TOKEN_BYTES,
  AT_PATH = AT_OWN_TOKEN + BL_FRAME_TOKEN_BYTES,
  AT_ARENAS = AT_PATH + 4,
  AT_ARENA_BYTES = AT_ARENAS + 4,
  AT_GPU = AT_ARENA_BYTES + 8 * BL_FRAME_MAX_ARENAS,
  AT_NCCL = AT_GPU + BL_GREETING_GPU_BYTES,
  AT_FLAGS = AT_NCCL + 4,
  AT_REASON = AT_FLAGS + 4,
  AT_END = AT_REASON + BL_GREETING_REASON_BYTES,
};
enum { SHARED_GPU = 1, WANTS_NCCL = 2, UNVERIFIED = 4, NOTES_ONLY = 8, FLAGS_KNOWN = 15 };
_Static_assert(AT_END + 8 == BL_FRAME_GREETING_BYTES, "8 reserved bytes end a greeting");

void bl_greeting_encode(const bl_greeting_t *greeting, uint8_t body[BL_FRAME_GREETING_BYTES]) {
  memset(body, 0, BL_FRAME_GREETING_BYTES);
  bl_wire_put32(body + AT_STAGE, (uint32_t)greeting->stage);
  bl_wire_put32(body + AT_PEER, (uint32_t)greeting->peer);
  bl_wire_put64(body + AT_SESSION, greeting->session);
  memcpy(body + AT_TOKEN, greeting->token, BL_FRAME_TOKEN_BYTES);
  memcpy(body + AT_OWN_TOKEN, greeting->own_token, BL_FRAME_TOKEN_BYTES);
  bl_wire_put32(body + AT_PATH, greeting->path);
  bl_wire_put32(body + AT_ARENAS, greeting->arena_count);
  for (size_t i = 0; i < BL_FRAME_MAX_ARENAS; i++) {
    bl_wire_put64(body + AT_ARENA_BYTES + 8 * i, greeting->arena_bytes[i]);
  }
  bl_wire_put_text(body + AT_GPU, BL_GREETING_GPU_BYTES, greeting->gpu);
  bl_wire_put32(body + AT_NCCL, (uint32_t)greeting->nccl);
  bl_wire_put32(body + AT_FLAGS, (greeting->shared_gpu ? SHARED_GPU : 0u) | (greeting->wants_nccl ? WANTS_NCCL : 0u) |
                                     (greeting->unverified ? UNVERIFIED : 0u) |
                                     (greeting->notes_only ? NOTES_ONLY : 0u));
  bl_wire_put_text(body + AT_REASON, BL_GREETING_REASON_BYTES, greeting->reason);
}

static const char *check(const bl_greeting_t *greeting, uint32_t flags) {
  if (greeting->stage < 0 || greeting->peer < 0) {
    return "negative stage number";
  }
  if (greeting->path == BL_PATH_AUTO || greeting->path >= BL_PATHS) {
    return "a greeting names no path";
  }
  if (greeting->arena_count > BL_FRAME_MAX_ARENAS) {
    return "too many arenas";
  }
  for (size_t i = 0; i < greeting->arena_count; i++) {
    if (greeting->arena_bytes[i] == 0 || greeting->arena_bytes[i] > BL_FRAME_MAX_BYTES) {
      return "arena size out of range";
    }
  }
  if (!bl_wire_text_is_clean(greeting->reason, sizeof greeting->reason) ||
      !bl_wire_text_is_clean(greeting->gpu, sizeof greeting->gpu)) {
    return "text is not printable";
  }
  return greeting->nccl < 0 || (flags & ~(uint32_t)FLAGS_KNOWN) != 0 ? "impossible version of NCCL, or unknown flags"
                                                                     : NULL;
}

bl_status_t bl_greeting_decode(const uint8_t body[BL_FRAME_GREETING_BYTES], bl_greeting_t *greeting,
                               const char **reason) {
  const uint32_t flags = bl_wire_get32(body + AT_FLAGS);
  bl_greeting_t read = {.stage = (int32_t)bl_wire_get32(body + AT_STAGE),
                        .peer = (int32_t)bl_wire_get32(body + AT_PEER),
                        .session = bl_wire_get64(body + AT_SESSION),
                        .path = (bl_path_t)bl_wire_get32(body + AT_PATH),
                        .arena_count = bl_wire_get32(body + AT_ARENAS),
                        .nccl = (int32_t)bl_wire_get32(body + AT_NCCL),
                        .shared_gpu = (flags & SHARED_GPU) != 0,
                        .wants_nccl = (flags & WANTS_NCCL) != 0,
                        .notes_only = (flags & NOTES_ONLY) != 0,
                        .unverified = (flags & UNVERIFIED) != 0};
  memcpy(read.token, body + AT_TOKEN, BL_FRAME_TOKEN_BYTES);
  memcpy(read.own_token, body + AT_OWN_TOKEN, BL_FRAME_TOKEN_BYTES);
  memcpy(read.reason, body + AT_REASON, BL_GREETING_REASON_BYTES);
  memcpy(read.gpu, body + AT_GPU, BL_GREETING_GPU_BYTES);
  for (size_t i = 0; i < BL_FRAME_MAX_ARENAS; i++) {
    read.arena_bytes[i] = bl_wire_get64(body + AT_ARENA_BYTES + 8 * i);
  }
  const char *wrong = check(&read, flags);
  if (wrong != NULL) {
    *reason = wrong;
    return BL_INVALID;
  }
  *greeting = read;
  return BL_OK;
}

bool bl_token_equal(const uint8_t a[BL_FRAME_TOKEN_BYTES], const uint8_t b[BL_FRAME_TOKEN_BYTES]) {
  unsigned different = 0;
  for (size_t i = 0; i < BL_FRAME_TOKEN_BYTES; i++) {
    different |= a[i] ^ b[i];
  }
  return different == 0;
}
