// SPDX-License-Identifier: Apache-2.0
// XXH3 (64 bits, with a seed) in plain C, for a build without xxHash and without services (CMakeLists.txt). It returns
// the same values as the library, so that initial weights are the same everywhere. It is slower for large blocks, which
// such a build does not hash. Written after the description in xxHash's documentation. For little-endian machines.
#include "base/hash.h"

#include <string.h>

#define PRIME32_1 UINT64_C(0x9e3779b1)
#define PRIME32_2 UINT64_C(0x85ebca77)
#define PRIME32_3 UINT64_C(0xc2b2ae3d)
#define PRIME64_1 UINT64_C(0x9e3779b185ebca87)
#define PRIME64_2 UINT64_C(0xc2b2ae3d27d4eb4f)
#define PRIME64_3 UINT64_C(0x165667b19e3779f9)
#define PRIME64_4 UINT64_C(0x85ebca77c2b2ae63)
#define PRIME64_5 UINT64_C(0x27d4eb2f165667c5)
#define MIX_1     UINT64_C(0x165667919e3779f9)
#define MIX_2     UINT64_C(0x9fb21c651e98df25)
#define SECRET    192
#define STRIPE    64
#define STRIPES   ((SECRET - STRIPE) / 8) // stripes of a block
#define LANES     8

static const uint8_t secret[SECRET] = {
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

static uint64_t word(const uint8_t *at) {
  uint64_t value;
  memcpy(&value, at, sizeof value);
  return value;
}

static uint32_t half(const uint8_t *at) {
  uint32_t value;
  memcpy(&value, at, sizeof value);
  return value;
}

static uint64_t rotate(uint64_t x, int by) {
  return x << by | x >> (64 - by);
}

static uint64_t fold(uint64_t a, uint64_t b) { // XORs both halves of the product
  __extension__ const unsigned __int128 product = (unsigned __int128)a * b;
  return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t spread(uint64_t x) {
  x = (x ^ x >> 37) * MIX_1;
  return x ^ x >> 32;
}

static uint64_t spread_short(uint64_t x) {
  x = (x ^ x >> 33) * PRIME64_2;
  x = (x ^ x >> 29) * PRIME64_3;
  return x ^ x >> 32;
}

static uint64_t upto_16(const uint8_t *in, size_t size, uint64_t seed) {
  if (size > 8) {
    const uint64_t low = word(in) ^ ((word(secret + 24) ^ word(secret + 32)) + seed);
    const uint64_t high = word(in + size - 8) ^ ((word(secret + 40) ^ word(secret + 48)) - seed);
    return spread(size + __builtin_bswap64(low) + high + fold(low, high));
  }
  if (size >= 4) {
    seed ^= (uint64_t)__builtin_bswap32((uint32_t)seed) << 32;
    uint64_t x = half(in + size - 4) + ((uint64_t)half(in) << 32);
    x ^= (word(secret + 8) ^ word(secret + 16)) - seed;
    x = (x ^ rotate(x, 49) ^ rotate(x, 24)) * MIX_2;
    x = (x ^ ((x >> 35) + size)) * MIX_2;
    return x ^ x >> 28;
  }
  if (size > 0) {
    const uint64_t all = (uint64_t)in[0] << 16 | (uint64_t)in[size >> 1] << 24 | in[size - 1] | (uint64_t)size << 8;
    return spread_short(all ^ ((half(secret) ^ half(secret + 4)) + seed));
  }
  return spread_short(seed ^ word(secret + 56) ^ word(secret + 64));
}

static uint64_t mix_16(const uint8_t *in, const uint8_t *with, uint64_t seed) {
  return fold(word(in) ^ (word(with) + seed), word(in + 8) ^ (word(with + 8) - seed));
}

static uint64_t upto_128(const uint8_t *in, size_t size, uint64_t seed) {
  uint64_t sum = size * PRIME64_1;
  for (size_t i = (size - 1) / 32 + 1; i-- > 0;) { // from both ends
    sum += mix_16(in + 16 * i, secret + 32 * i, seed);
    sum += mix_16(in + size - 16 * (i + 1), secret + 32 * i + 16, seed);
  }
  return spread(sum);
}

static uint64_t upto_240(const uint8_t *in, size_t size, uint64_t seed) {
  uint64_t sum = size * PRIME64_1;
  for (size_t i = 0; i < 8; i++) {
    sum += mix_16(in + 16 * i, secret + 16 * i, seed);
  }
  sum = spread(sum);
  for (size_t i = 8; i < size / 16; i++) {
    sum += mix_16(in + 16 * i, secret + 16 * (i - 8) + 3, seed);
  }
  return spread(sum + mix_16(in + size - 16, secret + 136 - 17, seed));
}

static void add_stripe(uint64_t lanes[LANES], const uint8_t *in, const uint8_t *with) {
  for (size_t i = 0; i < LANES; i++) {
    const uint64_t value = word(in + 8 * i), key = value ^ word(with + 8 * i);
    lanes[i ^ 1] += value;
    lanes[i] += (key & 0xffffffffu) * (key >> 32);
  }
}

static uint64_t beyond_240(const uint8_t *in, size_t size, uint64_t seed) {
  uint64_t lanes[LANES] = {PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1};
  uint8_t own[SECRET];
  for (size_t i = 0; i < SECRET; i += 16) {
    const uint64_t pair[2] = {word(secret + i) + seed, word(secret + i + 8) - seed};
    memcpy(own + i, pair, sizeof pair);
  }
  const size_t stripes = (size - 1) / STRIPE;
  for (size_t i = 0; i < stripes; i++) {
    add_stripe(lanes, in + STRIPE * i, own + 8 * (i % STRIPES));
    for (size_t n = 0; i % STRIPES == STRIPES - 1 && n < LANES; n++) { // the end of a block
      lanes[n] = (lanes[n] ^ lanes[n] >> 47 ^ word(own + SECRET - STRIPE + 8 * n)) * PRIME32_1;
    }
  }
  add_stripe(lanes, in + size - STRIPE, own + SECRET - STRIPE - 7);
  uint64_t sum = size * PRIME64_1;
  for (size_t i = 0; i < LANES; i += 2) {
    sum += fold(lanes[i] ^ word(own + 11 + 8 * i), lanes[i + 1] ^ word(own + 11 + 8 * i + 8));
  }
  return spread(sum);
}

uint64_t bl_hash64(const void *bytes, size_t size_bytes, uint64_t seed) {
  return size_bytes <= 16    ? upto_16(bytes, size_bytes, seed)
         : size_bytes <= 128 ? upto_128(bytes, size_bytes, seed)
         : size_bytes <= 240 ? upto_240(bytes, size_bytes, seed)
                             : beyond_240(bytes, size_bytes, seed);
}

uint64_t bl_hash64_copy(void *restrict to, const void *restrict from, size_t size_bytes, uint64_t seed,
                        bool past_caches) {
  (void)past_caches;
  memcpy(to, from, size_bytes);
  return bl_hash64(to, size_bytes, seed);
}
