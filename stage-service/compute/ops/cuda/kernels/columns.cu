// SPDX-License-Identifier: Apache-2.0
// Column sums (gradients of biases) in two steps without atomics: groups of rows leave a line each in scratch, and the
// lines are added in order. x is read once; scratch adds 8 bytes x GROUPS_MAX per column.
#include "compute/ops/cuda/kernels.h"
#include "compute/ops/cuda/kernels/device.h"

#define LANES      32 // packs across
#define SLICES     8  // rows at once
#define GROUPS_MAX 64

template <typename E, bool Wide>
__global__ void __launch_bounds__(LANES *SLICES) column_groups(bl_count rows, bl_count columns, bl_count stride,
                                                               const E *__restrict__ x, float *__restrict__ lines) {
  __shared__ float parts[SLICES][LANES][bl_pack<E>::WIDTH + 1];
  const int lane = (int)threadIdx.x % LANES, slice = (int)threadIdx.x / LANES;
  const bl_count at = ((bl_count)blockIdx.x * LANES + lane) * bl_pack<E>::WIDTH;
  float sums[bl_pack<E>::WIDTH] = {};
  if (at < columns) {
    for (bl_count row = (bl_count)blockIdx.y * SLICES + slice; row < rows; row += (bl_count)gridDim.y * SLICES) {
      float values[bl_pack<E>::WIDTH];
      bl_unpack<E>(bl_load<E, Wide>(x + row * stride, at, columns), values);
#pragma unroll
      for (int i = 0; i < bl_pack<E>::WIDTH; i++) {
        sums[i] += values[i];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < bl_pack<E>::WIDTH; i++) {
    parts[slice][lane][i] = sums[i];
  }
  __syncthreads();
  if (slice == 0) {
#pragma unroll
    for (int i = 0; i < bl_pack<E>::WIDTH; i++) {
      float sum = parts[0][lane][i];
      for (int s = 1; s < SLICES; s++) {
        sum += parts[s][lane][i];
      }
      if (at + i < columns) {
        lines[(bl_count)blockIdx.y * columns + at + i] = sum;
      }
    }
  }
}

__global__ void __launch_bounds__(256)
    column_lines(bl_count count, bl_count columns, const float *__restrict__ lines, bool accumulate, float *sums) {
  const bl_count column = (bl_count)blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= columns) {
    return;
  }
  float sum = 0.0f;
#pragma unroll 8
  for (bl_count i = 0; i < count; i++) {
    sum += lines[i * columns + column];
  }
  sums[column] = accumulate ? sums[column] + sum : sum;
}

int bl__launch_column_sums(bl__stream_t stream, bool bf16, uint64_t rows, uint64_t columns, uint64_t stride,
                           const void *x, bool accumulate, float *sums, float *scratch) {
  if (columns == 0) {
    return 0;
  }
  const bl_count width = bf16 ? 8 : 4;
  const bool wide = columns % width == 0 && stride % width == 0 && bl_is_wide(x);
  // At least one group fits: columns are far fewer than the floats of scratch (4 million), which the caller has checked.
  const bl_count room = BL__SCRATCH_BYTES / (columns * sizeof(float));
  const unsigned groups = (unsigned)bl_least(bl_least(bl_over(rows, SLICES), GROUPS_MAX), room);
  const unsigned across = (unsigned)bl_over(columns, LANES * width);
  const int result = BL_TYPED(bf16, wide,
                              BL_LAUNCH((column_groups<E, W>), dim3(across, groups), LANES * SLICES, stream, rows,
                                        columns, stride, (const E *)x, scratch));
  if (result != 0) {
    return result;
  }
  return BL_LAUNCH((column_lines), (unsigned)bl_over(columns, 256), 256, stream, (bl_count)groups, columns, scratch,
                   accumulate, sums);
}
