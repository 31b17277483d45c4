// SPDX-License-Identifier: Apache-2.0
// The hash of a build without xxHash and without services (CMakeLists.txt): other bits than XXH3, as well mixed.
#include "base/hash.h"

#include <string.h>

static uint64_t mix(uint64_t x) { // splitmix64's finalizer
  x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
  return x ^ x >> 31;
}

uint64_t bl_hash64(const void *bytes, size_t size_bytes, uint64_t seed) {
  uint64_t hash = mix(seed ^ UINT64_C(0x9e3779b97f4a7c15) * (size_bytes + 1));
  for (size_t at = 0; at < size_bytes; at += sizeof hash) {
    uint64_t word = 0;
    memcpy(&word, (const uint8_t *)bytes + at, size_bytes - at < sizeof word ? size_bytes - at : sizeof word);
    hash = mix(hash ^ word) + UINT64_C(0x9e3779b97f4a7c15);
  }
  return mix(hash);
}

uint64_t bl_hash64_copy(void *restrict to, const void *restrict from, size_t size_bytes, uint64_t seed,
                        bool past_caches) {
  (void)past_caches;
  memcpy(to, from, size_bytes);
  return bl_hash64(to, size_bytes, seed);
}
