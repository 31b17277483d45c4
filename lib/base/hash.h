// SPDX-License-Identifier: Apache-2.0
// XXH3 64-bit hashes: checksums of activation blocks, digests of plans and jobs, keys of random streams.
// Not cryptographic. Thread: pure functions, any thread.
#ifndef BALLAST_BASE_HASH_H
#define BALLAST_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t bl_hash64(const void *bytes, size_t size_bytes, uint64_t seed);

#endif
