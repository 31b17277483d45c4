// SPDX-License-Identifier: Apache-2.0
// XXH3 (64 bits, with a seed) in plain C, for a build without xxHash and without services (CMakeLists.txt). It returns
// the same values as the library, so that initial weights are the same everywhere. It is slower for large blocks, which
// such a build does not hash. Written after the description in xxHash's documentation, in its terms. For little-endian
// machines.
#include "base/hash.h"

#include <string.h>

#define PRIME32_1     UINT64_C(0x9e3779b1)
#define PRIME32_2     UINT64_C(0x85ebca77)
#define PRIME32_3     UINT64_C(0xc2b2ae3d)
#define PRIME64_1     UINT64_C(0x9e3779b185ebca87)
#define PRIME64_2     UINT64_C(0xc2b2ae3d27d4eb4f)
#define PRIME64_3     UINT64_C(0x165667b19e3779f9)
#define PRIME64_4     UINT64_C(0x85ebca77c2b2ae63)
#define PRIME64_5     UINT64_C(0x27d4eb2f165667c5)
#define PRIME_MX1     UINT64_C(0x165667919e3779f9)
#define PRIME_MX2     UINT64_C(0x9fb21c651e98df25)
#define SECRET_BYTES  192
#define STRIPE_BYTES  64
#define BLOCK_STRIPES ((SECRET_BYTES - STRIPE_BYTES) / 8) // stripes of a block
#define ACCUMULATORS  8

static const uint8_t default_secret[SECRET_BYTES] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4,
    0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e,
    0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43,
    0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb,
    0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19,
    0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7,
    0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78,
    0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16,
    0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f,
    0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

static uint64_t read64(const uint8_t *at) {
  uint64_t value;
  memcpy(&value, at, sizeof value);
  return value;
}

static uint32_t read32(const uint8_t *at) {
  uint32_t value;
  memcpy(&value, at, sizeof value);
  return value;
}

static uint64_t rotl64(uint64_t x, int by) {
  return x << by | x >> (64 - by);
}

static uint64_t mul128_fold64(uint64_t a, uint64_t b) { // XORs both halves of the product
  __extension__ const unsigned __int128 product = (unsigned __int128)a * b;
  return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t avalanche(uint64_t x) {
  x = (x ^ x >> 37) * PRIME_MX1;
  return x ^ x >> 32;
}

static uint64_t xxh64_avalanche(uint64_t x) {
  x = (x ^ x >> 33) * PRIME64_2;
  x = (x ^ x >> 29) * PRIME64_3;
  return x ^ x >> 32;
}

static uint64_t hash_0_to_16(const uint8_t *input, size_t size, uint64_t seed) {
  if (size > 8) {
    const uint64_t low = read64(input) ^ ((read64(default_secret + 24) ^ read64(default_secret + 32)) + seed);
    const uint64_t high =
        read64(input + size - 8) ^ ((read64(default_secret + 40) ^ read64(default_secret + 48)) - seed);
    return avalanche(size + __builtin_bswap64(low) + high + mul128_fold64(low, high));
  }
  if (size >= 4) {
    seed ^= (uint64_t)__builtin_bswap32((uint32_t)seed) << 32;
    uint64_t x = read32(input + size - 4) + ((uint64_t)read32(input) << 32);
    x ^= (read64(default_secret + 8) ^ read64(default_secret + 16)) - seed;
    x = (x ^ rotl64(x, 49) ^ rotl64(x, 24)) * PRIME_MX2;
    x = (x ^ ((x >> 35) + size)) * PRIME_MX2;
    return x ^ x >> 28;
  }
  if (size > 0) {
    const uint64_t combined =
        (uint64_t)input[0] << 16 | (uint64_t)input[size >> 1] << 24 | input[size - 1] | (uint64_t)size << 8;
    return xxh64_avalanche(combined ^ ((read32(default_secret) ^ read32(default_secret + 4)) + seed));
  }
  return xxh64_avalanche(seed ^ read64(default_secret + 56) ^ read64(default_secret + 64));
}

static uint64_t mix16(const uint8_t *input, const uint8_t *secret, uint64_t seed) {
  return mul128_fold64(read64(input) ^ (read64(secret) + seed), read64(input + 8) ^ (read64(secret + 8) - seed));
}

static uint64_t hash_17_to_128(const uint8_t *input, size_t size, uint64_t seed) {
  uint64_t sum = size * PRIME64_1;
  for (size_t i = (size - 1) / 32 + 1; i-- > 0;) { // from both ends
    sum += mix16(input + 16 * i, default_secret + 32 * i, seed);
    sum += mix16(input + size - 16 * (i + 1), default_secret + 32 * i + 16, seed);
  }
  return avalanche(sum);
}

static uint64_t hash_129_to_240(const uint8_t *input, size_t size, uint64_t seed) {
  uint64_t sum = size * PRIME64_1;
  for (size_t i = 0; i < 8; i++) {
    sum += mix16(input + 16 * i, default_secret + 16 * i, seed);
  }
  sum = avalanche(sum);
  for (size_t i = 8; i < size / 16; i++) {
    sum += mix16(input + 16 * i, default_secret + 16 * (i - 8) + 3, seed);
  }
  return avalanche(sum + mix16(input + size - 16, default_secret + 136 - 17, seed));
}

static void accumulate(uint64_t accumulators[ACCUMULATORS], const uint8_t *input, const uint8_t *secret) {
  for (size_t i = 0; i < ACCUMULATORS; i++) {
    const uint64_t value = read64(input + 8 * i), key = value ^ read64(secret + 8 * i);
    accumulators[i ^ 1] += value;
    accumulators[i] += (key & 0xffffffffu) * (key >> 32);
  }
}

static void scramble(uint64_t accumulators[ACCUMULATORS], const uint8_t *secret) {
  for (size_t i = 0; i < ACCUMULATORS; i++) {
    accumulators[i] = (accumulators[i] ^ accumulators[i] >> 47 ^ read64(secret + 8 * i)) * PRIME32_1;
  }
}

static uint64_t hash_long(const uint8_t *input, size_t size, uint64_t seed) {
  uint64_t accumulators[ACCUMULATORS] = {PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3,
                                         PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1};
  uint8_t secret[SECRET_BYTES];
  for (size_t i = 0; i < SECRET_BYTES; i += 16) {
    const uint64_t pair[2] = {read64(default_secret + i) + seed, read64(default_secret + i + 8) - seed};
    memcpy(secret + i, pair, sizeof pair);
  }
  const size_t stripes = (size - 1) / STRIPE_BYTES;
  for (size_t i = 0; i < stripes; i++) {
    accumulate(accumulators, input + STRIPE_BYTES * i, secret + 8 * (i % BLOCK_STRIPES));
    if (i % BLOCK_STRIPES == BLOCK_STRIPES - 1) { // the end of a block
      scramble(accumulators, secret + SECRET_BYTES - STRIPE_BYTES);
    }
  }
  accumulate(accumulators, input + size - STRIPE_BYTES, secret + SECRET_BYTES - STRIPE_BYTES - 7);
  uint64_t sum = size * PRIME64_1;
  for (size_t i = 0; i < ACCUMULATORS; i += 2) {
    sum += mul128_fold64(accumulators[i] ^ read64(secret + 11 + 8 * i),
                         accumulators[i + 1] ^ read64(secret + 11 + 8 * i + 8));
  }
  return avalanche(sum);
}

uint64_t bl_hash64(const void *bytes, size_t size_bytes, uint64_t seed) {
  return size_bytes <= 16    ? hash_0_to_16(bytes, size_bytes, seed)
         : size_bytes <= 128 ? hash_17_to_128(bytes, size_bytes, seed)
         : size_bytes <= 240 ? hash_129_to_240(bytes, size_bytes, seed)
                             : hash_long(bytes, size_bytes, seed);
}

uint64_t bl_hash64_copy(void *restrict to, const void *restrict from, size_t size_bytes, uint64_t seed,
                        bool past_caches) {
  (void)past_caches;
  memcpy(to, from, size_bytes);
  return bl_hash64(to, size_bytes, seed);
}
