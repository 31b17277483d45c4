// SPDX-License-Identifier: Apache-2.0
// A checksum of a block: 64 bits, every byte read once. Each 8-byte word is mixed with its index by the finalizer of
// MurmurHash3. This is a bijection, so one changed word always changes the result. The mixed words are added, in any
// order.
#include "compute/ops/cuda/kernels.h"
#include "compute/ops/cuda/kernels/device.h"

#define THREADS    256
#define BLOCKS_MAX 1024

static BL_DEVICE uint64_t mix(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ull;
  return x ^ x >> 33;
}

static BL_DEVICE uint64_t mix_words(uint32_t low, uint32_t high, bl_count index) {
  return mix(((uint64_t)high << 32 | low) + (index + 1) * 0x9e3779b97f4a7c15ull);
}

__global__ void __launch_bounds__(THREADS)
    checksum_parts(bl_count packs, const bl_words *__restrict__ block, uint64_t *__restrict__ parts) {
  __shared__ uint64_t shared[THREADS / 32];
  uint64_t sum = 0;
#pragma unroll 4
  for (bl_count i = (bl_count)blockIdx.x * THREADS + threadIdx.x; i < packs; i += (bl_count)gridDim.x * THREADS) {
    const bl_words words = block[i];
    sum += mix_words(words.word[0], words.word[1], 2 * i) + mix_words(words.word[2], words.word[3], 2 * i + 1);
  }
  sum = bl_block_all(sum, shared, bl_plus());
  if (threadIdx.x == 0) {
    parts[blockIdx.x] = sum;
  }
}

__global__ void __launch_bounds__(THREADS)
    checksum_whole(int count, bl_count bytes, const uint64_t *__restrict__ parts, uint64_t *hash) {
  __shared__ uint64_t shared[THREADS / 32];
  uint64_t sum = 0;
  for (int i = (int)threadIdx.x; i < count; i += THREADS) {
    sum += parts[i];
  }
  sum = bl_block_all(sum, shared, bl_plus());
  if (threadIdx.x == 0) {
    *hash = mix(sum + bytes);
  }
}

int bl__launch_checksum(bl__stream_t stream, uint64_t bytes, const void *block, uint64_t *hash, uint64_t *scratch) {
  const bl_count packs = bytes / sizeof(bl_words), wanted = bl_over(packs, THREADS);
  const unsigned blocks = wanted == 0 ? 1 : (unsigned)bl_least(wanted, BLOCKS_MAX);
  const int result = BL_LAUNCH((checksum_parts), blocks, THREADS, stream, packs, (const bl_words *)block, scratch);
  if (result != 0) {
    return result;
  }
  return BL_LAUNCH((checksum_whole), 1, THREADS, stream, (int)blocks, bytes, scratch, hash);
}
