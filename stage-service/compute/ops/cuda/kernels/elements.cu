// SPDX-License-Identifier: Apache-2.0
// Loops over elements: a thread takes one pack of each operand. Bytes moved per element, compared with a plain copy's
// bandwidth: add 3 elements, accumulate 12, fill 4, narrow 6, a sum of n parts n + 1 (with a residual n + 2).
#include "compute/ops/cuda/kernels.h"
#include "compute/ops/cuda/kernels/device.h"

#define THREADS 256

template <typename E> static BL_DEVICE bl_count first_of_thread() {
  return ((bl_count)blockIdx.x * THREADS + threadIdx.x) * bl_pack<E>::WIDTH;
}

template <typename E> static unsigned blocks_for(bl_count count) {
  return (unsigned)bl_over(count, (bl_count)THREADS * bl_pack<E>::WIDTH);
}

// No __restrict__, because a and y may be the same memory.
template <typename E, bool Wide>
__global__ void __launch_bounds__(THREADS) add(bl_count count, const E *a, const E *b, E *y) {
  const bl_count at = first_of_thread<E>();
  if (at >= count) {
    return;
  }
  float left[bl_pack<E>::WIDTH], right[bl_pack<E>::WIDTH];
  const bl_pack<E> x = bl_load_cut<E, Wide>(a, at, count), z = bl_load_cut<E, Wide>(b, at, count);
  bl_unpack<E>(x, left);
  bl_unpack<E>(z, right);
#pragma unroll
  for (int i = 0; i < bl_pack<E>::WIDTH; i++) {
    left[i] += right[i];
  }
  bl_store_cut<E, Wide>(y, at, count, bl_repack<E>(left));
}

template <bool Wide> __global__ void __launch_bounds__(THREADS) fill(bl_count count, float value, float *y) {
  const bl_count at = first_of_thread<float>();
  if (at < count) {
    const float values[4] = {value, value, value, value};
    bl_store_cut<float, Wide>(y, at, count, bl_repack<float>(values));
  }
}

template <bool Wide> __global__ void __launch_bounds__(THREADS) narrow(bl_count count, const float *x, bl_bf16 *y) {
  const bl_count at = first_of_thread<bl_bf16>();
  if (at >= count) {
    return;
  }
  float values[8];
  if (Wide && at + 8 <= count) {
    bl_load_floats<bl_bf16, true>(x, at, count, values);
  } else {
    bl_load_floats<bl_bf16, false>(x, at, count, values);
  }
  bl_store_cut<bl_bf16, Wide>(y, at, count, bl_repack<bl_bf16>(values));
}

// Sets sum = the sum of the Count parts from `first` on, as a binary tree, neighbours first. Count is a power of two.
template <typename E, bool Wide, int Count>
static BL_DEVICE void sum_tree(const bl__parts_table_t &parts, unsigned first, bl_count line, bl_count at,
                               bl_count width, float (&sum)[bl_pack<E>::WIDTH]) {
  if constexpr (Count == 1) {
    bl_unpack<E>(bl_load<E, Wide>((const E *)parts.entries[first] + line, at, width), sum);
  } else {
    float right[bl_pack<E>::WIDTH];
    sum_tree<E, Wide, Count / 2>(parts, first, line, at, width, sum);
    sum_tree<E, Wide, Count / 2>(parts, first + Count / 2, line, at, width, right);
#pragma unroll
    for (int i = 0; i < bl_pack<E>::WIDTH; i++) {
      sum[i] += right[i];
    }
  }
}

// sum = before + sum, or `before` takes the sum, which waits there for its neighbour. Returns whether it was added.
template <int Width> static BL_DEVICE bool add_or_wait(bool add, float (&before)[Width], float (&sum)[Width]) {
#pragma unroll
  for (int i = 0; i < Width; i++) {
    sum[i] = add ? before[i] + sum[i] : sum[i];
    before[i] = add ? before[i] : sum[i];
  }
  return add;
}

// A block sums THREADS packs of one row. Parts are added in groups of Count, at most 8 groups, and the groups as a
// binary counter says: bits of a group's number are the levels of the tree at which the sum before it waits. No
// __restrict__, because y may be the residual or a part.
template <typename E, bool Wide, int Count>
__global__ void __launch_bounds__(THREADS) sum_parts(bl_count width, const __grid_constant__ bl__parts_table_t parts,
                                                     const float *bias, const E *residual, E *y) {
  const bl_count line = (bl_count)blockIdx.x * width;
  const bl_count at = ((bl_count)blockIdx.y * THREADS + threadIdx.x) * bl_pack<E>::WIDTH;
  if (at >= width) {
    return;
  }
  float sum[bl_pack<E>::WIDTH], pairs[bl_pack<E>::WIDTH] = {}, fours[bl_pack<E>::WIDTH] = {},
                                eights[bl_pack<E>::WIDTH] = {};
  const unsigned groups = Count < 8 ? 1 : parts.count / Count;
#pragma unroll 1
  for (unsigned group = 0; group < groups; group++) {
    sum_tree<E, Wide, Count>(parts, group * Count, line, at, width, sum);
    if (add_or_wait(group % 2 == 1, pairs, sum) && add_or_wait(group % 4 == 3, fours, sum)) {
      (void)add_or_wait(group % 8 == 7, eights, sum);
    }
  }
  float more[bl_pack<E>::WIDTH];
  if (bias != NULL) {
    bl_load_floats<E, Wide>(bias, at, width, more);
#pragma unroll
    for (int i = 0; i < bl_pack<E>::WIDTH; i++) {
      sum[i] += more[i];
    }
  }
  if (residual != NULL) {
    bl_unpack<E>(bl_load<E, Wide>(residual + line, at, width), more);
#pragma unroll
    for (int i = 0; i < bl_pack<E>::WIDTH; i++) {
      sum[i] += more[i];
    }
  }
  bl_store<E, Wide>(y + line, at, width, bl_repack<E>(sum));
}

int bl__launch_add(bl__stream_t stream, bool bf16, uint64_t count, const void *a, const void *b, void *y) {
  if (count == 0) {
    return 0;
  }
  const bool wide = bl_is_wide(a) && bl_is_wide(b) && bl_is_wide(y);
  return BL_TYPED(
      bf16, wide,
      BL_LAUNCH((add<E, W>), blocks_for<E>(count), THREADS, stream, count, (const E *)a, (const E *)b, (E *)y));
}

int bl__launch_accumulate(bl__stream_t stream, uint64_t count, const float *x, float *y) {
  return bl__launch_add(stream, false, count, y, x, y);
}

int bl__launch_fill(bl__stream_t stream, uint64_t count, float value, float *y) {
  if (count == 0) {
    return 0;
  }
  return bl_is_wide(y) ? BL_LAUNCH((fill<true>), blocks_for<float>(count), THREADS, stream, count, value, y)
                       : BL_LAUNCH((fill<false>), blocks_for<float>(count), THREADS, stream, count, value, y);
}

int bl__launch_narrow(bl__stream_t stream, uint64_t count, const float *x, void *y) {
  if (count == 0) {
    return 0;
  }
  const unsigned blocks = blocks_for<bl_bf16>(count);
  return bl_is_wide(x) && bl_is_wide(y) ? BL_LAUNCH((narrow<true>), blocks, THREADS, stream, count, x, (bl_bf16 *)y)
                                        : BL_LAUNCH((narrow<false>), blocks, THREADS, stream, count, x, (bl_bf16 *)y);
}

template <typename E, bool Wide>
static int launch_sum(bl__stream_t stream, bl_count rows, bl_count width, const bl__parts_table_t *parts,
                      const float *bias, const void *residual, void *y) {
  const dim3 grid((unsigned)rows, (unsigned)bl_over(width, (bl_count)THREADS * bl_pack<E>::WIDTH));
  switch (parts->count) {
  case 2:
    return BL_LAUNCH((sum_parts<E, Wide, 2>), grid, THREADS, stream, width, *parts, bias, (const E *)residual, (E *)y);
  case 4:
    return BL_LAUNCH((sum_parts<E, Wide, 4>), grid, THREADS, stream, width, *parts, bias, (const E *)residual, (E *)y);
  default:
    return BL_LAUNCH((sum_parts<E, Wide, 8>), grid, THREADS, stream, width, *parts, bias, (const E *)residual, (E *)y);
  }
}

int bl__launch_sum_parts(bl__stream_t stream, bool bf16, uint64_t rows, uint64_t width, const bl__parts_table_t *parts,
                         const float *bias, const void *residual, void *y) {
  if (rows == 0 || width == 0) {
    return 0;
  }
  bool wide = width % (bf16 ? 8 : 4) == 0 && bl_is_wide(bias) && bl_is_wide(residual) && bl_is_wide(y);
  for (unsigned i = 0; i < parts->count; i++) {
    wide = wide && bl_is_wide(parts->entries[i]);
  }
  return BL_TYPED(bf16, wide, (launch_sum<E, W>(stream, rows, width, parts, bias, residual, y)));
}
