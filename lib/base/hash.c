// SPDX-License-Identifier: Apache-2.0
#include "base/hash.h"

#include "base/hash_dispatch.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

// Shorter inputs do not reach the loop that wide registers speed up.
#define WIDE_FROM_BYTES 1024

uint64_t bl__hash64_baseline(const void *bytes, size_t size_bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes, size_bytes, seed);
}

uint64_t bl_hash64(const void *bytes, size_t size_bytes, uint64_t seed) {
#if defined(__x86_64__)
  if (size_bytes >= WIDE_FROM_BYTES && __builtin_cpu_supports("avx2")) {
    return bl__hash64_avx2(bytes, size_bytes, seed);
  }
#endif
  return bl__hash64_baseline(bytes, size_bytes, seed);
}
