// SPDX-License-Identifier: Apache-2.0
#include "base/hash.h"

#include "base/hash_dispatch.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <string.h>

// Shorter inputs do not reach the loop that wide registers accelerate.
#define WIDE_FROM_BYTES 1024
#define HOT_BYTES       4096 // copied and then hashed while they are in the first-level cache

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

uint64_t bl__hash64_copy_baseline(void *restrict to, const void *restrict from, size_t size_bytes, uint64_t seed) {
  XXH3_state_t state;
  XXH3_INITSTATE(&state);
  (void)XXH3_64bits_reset_withSeed(&state, seed);
  for (size_t at = 0; at < size_bytes;) {
    size_t part = size_bytes - at < HOT_BYTES ? size_bytes - at : HOT_BYTES;
    memcpy((uint8_t *)to + at, (const uint8_t *)from + at, part);
    (void)XXH3_64bits_update(&state, (uint8_t *)to + at, part);
    at += part;
  }
  return XXH3_64bits_digest(&state);
}

uint64_t bl_hash64_copy(void *restrict to, const void *restrict from, size_t size_bytes, uint64_t seed,
                        bool past_caches) {
#if defined(__x86_64__)
  if (size_bytes >= WIDE_FROM_BYTES && __builtin_cpu_supports("avx2")) {
    return bl__hash64_copy_avx2(to, from, size_bytes, seed, past_caches);
  }
#endif
  (void)past_caches;
  return bl__hash64_copy_baseline(to, from, size_bytes, seed);
}
