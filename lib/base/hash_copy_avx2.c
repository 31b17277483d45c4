// SPDX-License-Identifier: Apache-2.0
// bl_hash64_copy compiled for AVX2 (CMakeLists.txt sets the flag). Called only if the processor has AVX2.
//
// XXH3 of long inputs, in the terms of its specification. Eight 64-bit accumulators accumulate stripes of 64 bytes.
// Stripe i of a block of 16 uses the secret from byte 8 i on. After each block the accumulators are scrambled. The last
// 64 bytes are accumulated once more, and the accumulators are merged. Here each stripe is stored from the registers
// that it was loaded into.
#if defined(__x86_64__)
#include "base/hash_dispatch.h"

#define XXH_STATIC_LINKING_ONLY
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <immintrin.h>
#include <string.h>

#define STRIPE_BYTES  64u
#define BLOCK_STRIPES ((size_t)16)
#define BLOCK_BYTES   (BLOCK_STRIPES * STRIPE_BYTES)
#define SECRET_BYTES  192u // BLOCK_STRIPES steps of 8 bytes, and 64 bytes for the scramble

typedef struct accumulators {
  __m256i low, high;
} accumulators_t;

static inline __attribute__((always_inline)) __m256i accumulate(__m256i accumulator, __m256i data,
                                                                const uint8_t *secret) {
  __m256i key = _mm256_xor_si256(data, _mm256_loadu_si256((const __m256i *)(const void *)secret));
  __m256i product = _mm256_mul_epu32(key, _mm256_srli_epi64(key, 32));
  __m256i neighbour = _mm256_shuffle_epi32(data, _MM_SHUFFLE(1, 0, 3, 2));
  return _mm256_add_epi64(product, _mm256_add_epi64(accumulator, neighbour));
}

static inline __attribute__((always_inline)) __m256i scramble(__m256i accumulator, const uint8_t *secret) {
  const __m256i prime = _mm256_set1_epi32((int)XXH_PRIME32_1);
  __m256i mixed = _mm256_xor_si256(accumulator, _mm256_srli_epi64(accumulator, 47));
  mixed = _mm256_xor_si256(mixed, _mm256_loadu_si256((const __m256i *)(const void *)secret));
  __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(mixed, 32), prime);
  return _mm256_add_epi64(_mm256_mul_epu32(mixed, prime), _mm256_slli_epi64(high, 32));
}

static inline __attribute__((always_inline)) void accumulate_stripes(accumulators_t *accumulators, uint8_t *to,
                                                                     const uint8_t *from, size_t count,
                                                                     const uint8_t *secret, bool streams) {
  for (size_t i = 0; i < count; i++) {
    const __m256i *in = (const __m256i *)(const void *)(from + i * STRIPE_BYTES);
    __m256i *out = (__m256i *)(void *)(to + i * STRIPE_BYTES);
    __m256i low = _mm256_loadu_si256(in), high = _mm256_loadu_si256(in + 1);
    if (streams) {
      _mm256_stream_si256(out, low);
      _mm256_stream_si256(out + 1, high);
    } else {
      _mm256_storeu_si256(out, low);
      _mm256_storeu_si256(out + 1, high);
    }
    accumulators->low = accumulate(accumulators->low, low, secret + i * 8);
    accumulators->high = accumulate(accumulators->high, high, secret + i * 8 + 32);
  }
}

static inline __attribute__((always_inline)) uint64_t copy(uint8_t *to, const uint8_t *from, size_t size_bytes,
                                                           const uint8_t *secret, bool streams) {
  _Alignas(32) uint64_t start[8] = XXH3_INIT_ACC;
  accumulators_t accumulators = {.low = _mm256_load_si256((const __m256i *)(const void *)start),
                                 .high = _mm256_load_si256((const __m256i *)(const void *)(start + 4))};
  const uint8_t *last_secret = secret + SECRET_BYTES - STRIPE_BYTES;
  size_t at = 0;
  for (; at + BLOCK_BYTES < size_bytes; at += BLOCK_BYTES) {
    accumulate_stripes(&accumulators, to + at, from + at, BLOCK_STRIPES, secret, streams);
    accumulators.low = scramble(accumulators.low, last_secret);
    accumulators.high = scramble(accumulators.high, last_secret + 32);
  }
  size_t count = (size_bytes - at - 1) / STRIPE_BYTES;
  accumulate_stripes(&accumulators, to + at, from + at, count, secret, streams);
  at += count * STRIPE_BYTES;
  memcpy(to + at, from + at, size_bytes - at); // 1 to 64 bytes
  const __m256i *last = (const __m256i *)(const void *)(to + size_bytes - STRIPE_BYTES);
  accumulators.low = accumulate(accumulators.low, _mm256_loadu_si256(last), last_secret - 7);
  accumulators.high = accumulate(accumulators.high, _mm256_loadu_si256(last + 1), last_secret - 7 + 32);
  _mm256_store_si256((__m256i *)(void *)start, accumulators.low);
  _mm256_store_si256((__m256i *)(void *)(start + 4), accumulators.high);
  return XXH3_mergeAccs(start, secret + 11, size_bytes * XXH_PRIME64_1);
}

uint64_t bl__hash64_copy_avx2(void *restrict to, const void *restrict from, size_t size_bytes, uint64_t seed,
                              bool past_caches) {
  uint8_t secret[SECRET_BYTES];
  XXH3_generateSecret_fromSeed(secret, seed);
  if (!past_caches || (uintptr_t)to % sizeof(__m256i) != 0) {
    return copy(to, from, size_bytes, secret, false);
  }
  uint64_t hash = copy(to, from, size_bytes, secret, true);
  _mm_sfence(); // streaming stores are not ordered by the store that publishes the copy
  return hash;
}
#endif
