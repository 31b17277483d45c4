// SPDX-License-Identifier: Apache-2.0
// bl_hash64 compiled for AVX2 (CMakeLists.txt sets the flag). Called only if the processor has AVX2.
#if defined(__x86_64__)
#include "base/hash_dispatch.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t bl__hash64_avx2(const void *bytes, size_t size_bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes, size_bytes, seed);
}
#endif
