// SPDX-License-Identifier: Apache-2.0
#include "base/random.h"

#include "base/hash.h"

#include <math.h>
#include <string.h>

// Constants of Philox4x32 from Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
#define PHILOX_MULTIPLIER_0 0xD2511F53u
#define PHILOX_MULTIPLIER_1 0xCD9E8D57u
#define PHILOX_WEYL_0       0x9E3779B9u
#define PHILOX_WEYL_1       0xBB67AE85u
#define PHILOX_ROUNDS       10

__extension__ typedef unsigned __int128 wide_t;

typedef struct {
  uint32_t word[4];
} block_t;

static block_t philox(uint64_t key, uint64_t index) {
  uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
  block_t c = {{(uint32_t)index, (uint32_t)(index >> 32), 0, 0}};
  for (int round = 0; round < PHILOX_ROUNDS; round++) {
    uint64_t p0 = (uint64_t)PHILOX_MULTIPLIER_0 * c.word[0];
    uint64_t p1 = (uint64_t)PHILOX_MULTIPLIER_1 * c.word[2];
    c = (block_t){
        {(uint32_t)(p1 >> 32) ^ c.word[1] ^ k0, (uint32_t)p1, (uint32_t)(p0 >> 32) ^ c.word[3] ^ k1, (uint32_t)p0}};
    k0 += PHILOX_WEYL_0;
    k1 += PHILOX_WEYL_1;
  }
  return c;
}

static uint64_t low_bits(block_t b) {
  return b.word[0] | (uint64_t)b.word[1] << 32;
}

static uint64_t high_bits(block_t b) {
  return b.word[2] | (uint64_t)b.word[3] << 32;
}

static double to_unit(uint64_t bits) {
  return (double)(bits >> 11) * 0x1p-53;
}

uint64_t bl_random_key(uint64_t seed, const char *name) {
  return bl_hash64(name, strlen(name), seed);
}

uint64_t bl_random_bits(uint64_t key, uint64_t index) {
  return low_bits(philox(key, index));
}

double bl_random_uniform(uint64_t key, uint64_t index) {
  return to_unit(bl_random_bits(key, index));
}

uint64_t bl_random_below(uint64_t key, uint64_t index, uint64_t bound) {
  return (uint64_t)(((wide_t)bl_random_bits(key, index) * bound) >> 64);
}

double bl_random_normal(uint64_t key, uint64_t index) {
  block_t b = philox(key, index);
  double radius = 1.0 - to_unit(low_bits(b)); // (0, 1], so that the logarithm is finite
  double angle = to_unit(high_bits(b));
  return sqrt(-2.0 * log(radius)) * cos(6.283185307179586476925286766559 * angle);
}
