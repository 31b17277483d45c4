// SPDX-License-Identifier: Apache-2.0
// The update, and the squares that clipping needs, for many tensors per launch: most are vectors of a few thousand
// numbers, whose kernels would run shorter than it takes to launch them. Bytes moved per element, compared with the
// bandwidth of a copy: adamw 28, or 30 with the copy of the weights for products (34 if a separate kernel made it);
// squares 4.
#include "compute/ops/cuda/kernels.h"
#include "compute/ops/cuda/kernels/device.h"

#define THREADS        256
#define BLOCK_ELEMENTS (THREADS * 4)
#define SQUARE_BLOCKS  1024 // maximum per tensor; fixed, so that the order depends on count alone

template <bool Wide> static BL_DEVICE void update(const bl__adamw_t &t, bl_count at) {
  float gradient[4], weight[4], first[4], second[4];
  const bl_pack<float> packs[4] = {
      bl_load_cut<float, Wide>(t.dw, at, t.count), bl_load_cut<float, Wide>(t.w, at, t.count),
      bl_load_cut<float, Wide>(t.m, at, t.count), bl_load_cut<float, Wide>(t.v, at, t.count)};
  bl_unpack<float>(packs[0], gradient);
  bl_unpack<float>(packs[1], weight);
  bl_unpack<float>(packs[2], first);
  bl_unpack<float>(packs[3], second);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float g = t.scale * gradient[i];
    first[i] = t.beta1 * first[i] + t.rest1 * g;
    second[i] = t.beta2 * second[i] + t.rest2 * g * g;
    weight[i] = t.keep * weight[i] - t.step * first[i] / (sqrtf(second[i]) * t.inverse_root2 + t.epsilon);
  }
  if (t.packed != NULL) {
    if (Wide && at + 4 <= t.count) {
      bl_store_four<bl_bf16, true>((bl_bf16 *)t.packed, at, t.count, weight);
    } else {
      bl_store_four<bl_bf16, false>((bl_bf16 *)t.packed, at, t.count, weight);
    }
  }
  bl_store_cut<float, Wide>(t.w, at, t.count, bl_repack<float>(weight));
  bl_store_cut<float, Wide>(t.m, at, t.count, bl_repack<float>(first));
  bl_store_cut<float, Wide>(t.v, at, t.count, bl_repack<float>(second));
}

__global__ void __launch_bounds__(THREADS) adamw(const __grid_constant__ bl__adamw_table_t table) {
  const bl__adamw_t &t = table.entries[bl_entry_of(table)];
  const bl_count at = ((bl_count)(blockIdx.x - t.first_block) * THREADS + threadIdx.x) * 4;
  if (at >= t.count) {
    return;
  }
  if (t.wide) {
    update<true>(t, at);
  } else {
    update<false>(t, at);
  }
}

// Returns the sum of the squares of this thread's groups of four, which are `step` elements apart.
template <bool Wide> static BL_DEVICE double squares_of(const bl__squares_t &t, bl_count first, bl_count step) {
  double sum = 0.0;
#pragma unroll 4
  for (bl_count at = first; at < t.count; at += step) {
    float values[4];
    bl_unpack<float>(bl_load_cut<float, Wide>(t.x, at, t.count), values);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      sum += (double)values[i] * (double)values[i];
    }
  }
  return sum;
}

// parts: one number per block.
__global__ void __launch_bounds__(THREADS)
    square_parts(const __grid_constant__ bl__squares_table_t table, double *__restrict__ parts) {
  __shared__ double shared[THREADS / 32];
  const bl__squares_t &t = table.entries[bl_entry_of(table)];
  const bl_count first = ((bl_count)(blockIdx.x - t.first_block) * THREADS + threadIdx.x) * 4;
  const bl_count step = (bl_count)t.blocks * BLOCK_ELEMENTS;
  const double sum =
      bl_block_all(t.wide ? squares_of<true>(t, first, step) : squares_of<false>(t, first, step), shared, bl_plus());
  if (threadIdx.x == 0) {
    parts[blockIdx.x] = sum;
  }
}

// One block per tensor.
__global__ void __launch_bounds__(THREADS)
    square_sums(const __grid_constant__ bl__squares_table_t table, const double *__restrict__ parts) {
  __shared__ double shared[THREADS / 32];
  const bl__squares_t &t = table.entries[blockIdx.x];
  double sum = 0.0;
  for (unsigned i = threadIdx.x; i < t.blocks; i += THREADS) {
    sum += parts[t.first_block + i];
  }
  sum = bl_block_all(sum, shared, bl_plus());
  if (threadIdx.x == 0) {
    *t.sum = sum;
  }
}

int bl__launch_adamw(bl__stream_t stream, unsigned count, const bl__adamw_t *tensors) {
  bl__adamw_table_t table = {};
  bl_count blocks = 0;
  for (unsigned i = 0; i < count; i++) {
    if (tensors[i].count == 0) {
      continue;
    }
    bl__adamw_t &t = table.entries[table.count++];
    t = tensors[i];
    t.first_block = (unsigned)blocks;
    t.wide =
        bl_is_wide(t.dw) && bl_is_wide(t.w) && bl_is_wide(t.m) && bl_is_wide(t.v) && ((uintptr_t)t.packed & 7u) == 0;
    blocks += bl_over(t.count, BLOCK_ELEMENTS);
  }
  if (blocks > INT32_MAX) {
    return BL_TOO_LARGE;
  }
  return blocks == 0 ? 0 : BL_LAUNCH((adamw), (unsigned)blocks, THREADS, stream, table);
}

int bl__launch_sum_squares(bl__stream_t stream, unsigned count, const bl__squares_t *tensors, double *scratch) {
  bl__squares_table_t table = {};
  unsigned blocks = 0;
  for (unsigned i = 0; i < count; i++) {
    bl__squares_t &t = table.entries[table.count++];
    t = tensors[i];
    t.first_block = blocks;
    t.wide = bl_is_wide(t.x);
    t.blocks = (unsigned)bl_least(bl_over(t.count + (t.count == 0), BLOCK_ELEMENTS), SQUARE_BLOCKS);
    blocks += t.blocks;
  }
  if (count == 0) {
    return 0;
  }
  const int result = BL_LAUNCH((square_parts), blocks, THREADS, stream, table, scratch);
  return result == 0 ? BL_LAUNCH((square_sums), count, THREADS, stream, table, scratch) : result;
}
