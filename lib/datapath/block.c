// SPDX-License-Identifier: Apache-2.0
#include "datapath/block.h"

#include "base/hash.h"

#include <stddef.h>
#include <string.h>

static size_t piece_bytes(uint64_t left) {
  return left < BL_BLOCK_PIECE_BYTES ? (size_t)left : BL_BLOCK_PIECE_BYTES;
}

uint64_t bl_block_checksum(const void *bytes, uint64_t size_bytes) {
  const uint8_t *at = bytes;
  uint64_t hash = 0;
  for (uint64_t done = 0; done < size_bytes;) {
    size_t piece = piece_bytes(size_bytes - done);
    hash = bl_hash64(at + done, piece, hash);
    done += piece;
  }
  return hash;
}

bl_status_t bl_block_copy(void *to, const void *from, uint64_t size_bytes, const atomic_bool *cancelled,
                          uint64_t *checksum) {
  uint8_t *out = to;
  const uint8_t *in = from;
  uint64_t hash = 0;
  for (uint64_t done = 0; done < size_bytes;) {
    if (cancelled != NULL && atomic_load_explicit(cancelled, memory_order_relaxed)) {
      return BL_CANCELLED;
    }
    size_t piece = piece_bytes(size_bytes - done);
    memcpy(out + done, in + done, piece);
    hash = bl_hash64(out + done, piece, hash);
    done += piece;
  }
  *checksum = hash;
  return BL_OK;
}
