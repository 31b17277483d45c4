// SPDX-License-Identifier: Apache-2.0
#include "formats/sampler.h"

#include "base/random.h"

#define FEISTEL_ROUNDS 4

uint64_t bl_sampler_window_count(uint64_t tokens, uint64_t seq) {
  return tokens == 0 ? 0 : (tokens - 1) / seq;
}

// Returns the bits of one half, at least 1: two halves hold every index below `windows`.
static unsigned half_bits(uint64_t windows) {
  unsigned bits = 1;
  while (bits < 32 && (windows - 1) >> (2 * bits) != 0) {
    bits++;
  }
  return bits;
}

uint64_t bl_sampler_permute(uint64_t seed, uint64_t epoch, uint64_t windows, uint64_t index) {
  unsigned bits = half_bits(windows);
  uint64_t mask = (UINT64_C(1) << bits) - 1;
  uint64_t stream = bl_random_key(seed, "data.order");
  uint64_t keys[FEISTEL_ROUNDS];
  for (unsigned round = 0; round < FEISTEL_ROUNDS; round++) {
    keys[round] = bl_random_bits(stream, epoch * FEISTEL_ROUNDS + round);
  }
  do {
    uint64_t left = index >> bits, right = index & mask;
    for (unsigned round = 0; round < FEISTEL_ROUNDS; round++) {
      uint64_t mixed = left ^ (bl_random_bits(keys[round], right) & mask);
      left = right;
      right = mixed;
    }
    index = left << bits | right;
  } while (index >= windows); // the domain has at most 4 * windows values, so a few rounds suffice
  return index;
}

uint64_t bl_sampler_number(const bl_sampler_t *sampler, uint64_t step, uint32_t micro_batch, uint32_t sequence) {
  return (step * sampler->micro_batches + micro_batch) * sampler->micro_batch + sequence;
}

uint64_t bl_sampler_window(const bl_sampler_t *sampler, uint64_t step, uint32_t micro_batch, uint32_t sequence) {
  uint64_t number = bl_sampler_number(sampler, step, micro_batch, sequence);
  uint64_t index = number % sampler->windows;
  if (!sampler->shuffled) {
    return index;
  }
  return bl_sampler_permute(sampler->seed, number / sampler->windows, sampler->windows, index);
}
