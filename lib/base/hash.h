// SPDX-License-Identifier: Apache-2.0
// XXH3 64-bit hashes: checksums of activation blocks, digests of plans and jobs, keys of random streams.
// Not cryptographic. Thread: pure functions, any thread.
#ifndef BALLAST_BASE_HASH_H
#define BALLAST_BASE_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

uint64_t bl_hash64(const void *bytes, size_t size_bytes, uint64_t seed);

// Copies `size_bytes` and gives bl_hash64 of what then is at `to`, in one pass: each byte of `from` is read once, even
// when another process writes there meanwhile. `past_caches`: for parts of something much larger than a cache: writes go
// to memory without reading it first (where `to` is aligned to 32 bytes and the processor can). Must not overlap.
uint64_t bl_hash64_copy(void *restrict to, const void *restrict from, size_t size_bytes, uint64_t seed,
                        bool past_caches);

#endif
