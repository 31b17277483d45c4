// SPDX-License-Identifier: Apache-2.0
// XXH3 64-bit hashes: checksums of activation blocks, digests of plans and jobs, keys of random streams.
// Not cryptographic. Thread: pure functions, any thread.
#ifndef BALLAST_BASE_HASH_H
#define BALLAST_BASE_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

uint64_t bl_hash64(const void *bytes, size_t size_bytes, uint64_t seed);

// Copies `size_bytes` and returns bl_hash64 of the bytes at `to`, in one pass. Each byte of `from` is read once, even
// while another process writes there. The ranges must not overlap. `past_caches` is for parts of data that is much
// larger than a cache: writes go to memory without reading it first (if `to` is aligned to 32 bytes and the processor
// has AVX2).
uint64_t bl_hash64_copy(void *restrict to, const void *restrict from, size_t size_bytes, uint64_t seed,
                        bool past_caches);

#endif
