// SPDX-License-Identifier: Apache-2.0
// Checksums of activation blocks, and copies that compute them in the same pass.
//
// The checksum is XXH3 over pieces of BL_BLOCK_PIECE_BYTES. Each is seeded with the hash of the piece before (the first
// with 0), so that a piece is hashed while it is still in the cache. An empty block has checksum 0.
// Thread: any.
#ifndef BALLAST_DATAPATH_BLOCK_H
#define BALLAST_DATAPATH_BLOCK_H

#include "base/status.h"

#include <stdatomic.h>
#include <stdint.h>

#define BL_BLOCK_PIECE_BYTES (128u << 10) // half of a small second-level cache

uint64_t bl_block_checksum(const void *bytes, uint64_t size_bytes);
// Returns the checksum of a block that starts with bytes whose checksum is `before` (0: none) and continues with
// `bytes`. The start must be a whole number of pieces.
uint64_t bl_block_checksum_more(uint64_t before, const void *bytes, uint64_t size_bytes);

// Copies a block and returns the checksum of the bytes then at `to`, in one pass. Stops between pieces with
// BL_CANCELLED once *cancelled (may be NULL) is set. No memory is touched after the return.
BL_MUST_USE bl_status_t bl_block_copy(void *to, const void *from, uint64_t size_bytes, const atomic_bool *cancelled,
                                      uint64_t *checksum);
// The same without a checksum.
BL_MUST_USE bl_status_t bl_block_copy_unverified(void *to, const void *from, uint64_t size_bytes,
                                                 const atomic_bool *cancelled);

// Copies one part of a block of `block_bytes`: `size_bytes`, after a start with the checksum `before` (0: none) that is
// a whole number of pieces. Returns the checksum including this part.
uint64_t bl_block_copy_part(void *to, const void *from, uint64_t size_bytes, uint64_t block_bytes, uint64_t before);
void bl_block_copy_part_unverified(void *to, const void *from, uint64_t size_bytes, uint64_t block_bytes);

#endif
