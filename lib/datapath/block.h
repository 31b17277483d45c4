// SPDX-License-Identifier: Apache-2.0
// Checksums of activation blocks, and copying that computes them on the way.
//
// The checksum is XXH3 over pieces of BL_BLOCK_PIECE_BYTES, each seeded with the hash of the one before (the first with
// 0), so that a piece is hashed while it is still in the cache. An empty block has checksum 0.
// Thread: any.
#ifndef BALLAST_DATAPATH_BLOCK_H
#define BALLAST_DATAPATH_BLOCK_H

#include "base/status.h"

#include <stdatomic.h>
#include <stdint.h>

#define BL_BLOCK_PIECE_BYTES (128u << 10) // half of a small second-level cache

uint64_t bl_block_checksum(const void *bytes, uint64_t size_bytes);
// The checksum of a block whose beginning has the checksum `before` (0 for none): `bytes` come next. The beginning must be
// whole pieces.
uint64_t bl_block_checksum_more(uint64_t before, const void *bytes, uint64_t size_bytes);

// Copies a block and gives the checksum of what then is at `to`, in one pass over its bytes. Stops between pieces with
// BL_CANCELLED once *cancelled (may be NULL) is set; nothing is touched after it returned.
BL_MUST_USE bl_status_t bl_block_copy(void *to, const void *from, uint64_t size_bytes, const atomic_bool *cancelled,
                                      uint64_t *checksum);
// The same without a checksum.
BL_MUST_USE bl_status_t bl_block_copy_unverified(void *to, const void *from, uint64_t size_bytes,
                                                 const atomic_bool *cancelled);

// A part of such a copy: `size_bytes` of a block of `block_bytes`, after a beginning with the checksum `before` (0 for none)
// that is whole pieces. Gives the checksum with this part.
uint64_t bl_block_copy_part(void *to, const void *from, uint64_t size_bytes, uint64_t block_bytes, uint64_t before);
void bl_block_copy_part_unverified(void *to, const void *from, uint64_t size_bytes, uint64_t block_bytes);

#endif
