// SPDX-License-Identifier: Apache-2.0
#include "datapath/block.h"

#include "base/copy.h"
#include "base/hash.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#define PAST_CACHES_BYTES (UINT64_C(4) << 20) // from here on blocks have left the caches when next needed
#define UNVERIFIED_BYTES  (UINT64_C(4) << 20) // copied between two checks of the flag

static size_t piece_bytes(uint64_t left) {
  return left < BL_BLOCK_PIECE_BYTES ? (size_t)left : BL_BLOCK_PIECE_BYTES;
}

uint64_t bl_block_checksum_more(uint64_t before, const void *bytes, uint64_t size_bytes) {
  const uint8_t *at = bytes;
  uint64_t hash = before;
  for (uint64_t done = 0; done < size_bytes;) {
    size_t piece = piece_bytes(size_bytes - done);
    hash = bl_hash64(at + done, piece, hash);
    done += piece;
  }
  return hash;
}

uint64_t bl_block_checksum(const void *bytes, uint64_t size_bytes) {
  return bl_block_checksum_more(0, bytes, size_bytes);
}

uint64_t bl_block_copy_part(void *to, const void *from, uint64_t size_bytes, uint64_t block_bytes, uint64_t before) {
  uint64_t hash = before;
  for (uint64_t done = 0; done < size_bytes;) {
    size_t piece = piece_bytes(size_bytes - done);
    hash = bl_hash64_copy((uint8_t *)to + done, (const uint8_t *)from + done, piece, hash,
                          block_bytes >= PAST_CACHES_BYTES);
    done += piece;
  }
  return hash;
}

void bl_block_copy_part_unverified(void *to, const void *from, uint64_t size_bytes, uint64_t block_bytes) {
  if (block_bytes >= PAST_CACHES_BYTES) {
    bl_copy_past_cache(to, from, size_bytes);
  } else {
    memcpy(to, from, size_bytes);
  }
}

static bool is_cancelled(const atomic_bool *cancelled) {
  return cancelled != NULL && atomic_load_explicit(cancelled, memory_order_relaxed);
}

bl_status_t bl_block_copy(void *to, const void *from, uint64_t size_bytes, const atomic_bool *cancelled,
                          uint64_t *checksum) {
  uint64_t hash = 0;
  for (uint64_t done = 0; done < size_bytes;) {
    if (is_cancelled(cancelled)) {
      return BL_CANCELLED;
    }
    size_t piece = piece_bytes(size_bytes - done);
    hash = bl_block_copy_part((uint8_t *)to + done, (const uint8_t *)from + done, piece, size_bytes, hash);
    done += piece;
  }
  *checksum = hash;
  return BL_OK;
}

bl_status_t bl_block_copy_unverified(void *to, const void *from, uint64_t size_bytes, const atomic_bool *cancelled) {
  for (uint64_t done = 0; done < size_bytes;) {
    if (is_cancelled(cancelled)) {
      return BL_CANCELLED;
    }
    uint64_t part = size_bytes - done < UNVERIFIED_BYTES ? size_bytes - done : UNVERIFIED_BYTES;
    bl_block_copy_part_unverified((uint8_t *)to + done, (const uint8_t *)from + done, part, size_bytes);
    done += part;
  }
  return BL_OK;
}
