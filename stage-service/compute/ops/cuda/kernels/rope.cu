// SPDX-License-Identifier: Apache-2.0
// Rotary positions in place. A thread takes a pack of the first half of a head's rotating dimensions, and the pack of
// the second half that pairs with it. 2 elements moved per rotating element; the table stays in the L2 cache.
#include "compute/ops/cuda/kernels.h"
#include "compute/ops/cuda/kernels/device.h"

#define THREADS 256

template <typename E, bool Wide>
__global__ void __launch_bounds__(THREADS)
    rope(const bl__heads_t shape, bl_count half, const float *__restrict__ cosines, const float *__restrict__ sines,
         float sign, E *rows) {
  // A row and its tokens are counted with 32 bits, because a 64-bit division takes longer than moving a pack.
  const uint32_t packs = ((uint32_t)half + bl_pack<E>::WIDTH - 1) / bl_pack<E>::WIDTH;
  const uint32_t index = blockIdx.x * THREADS + threadIdx.x;
  const bl_count head = index / packs, at = (bl_count)(index % packs) * bl_pack<E>::WIDTH;
  if (head >= shape.heads) {
    return;
  }
  for (bl_count row = blockIdx.y; row < shape.batch * shape.seq; row += gridDim.y) {
    const bl_count position = (uint32_t)row % (uint32_t)shape.seq;
    E *first = rows + row * shape.row_stride + head * shape.head_dim, *second = first + half;
    const bl_pack<E> first_pack = bl_load<E, Wide>(first, at, half), second_pack = bl_load<E, Wide>(second, at, half);
    float a[bl_pack<E>::WIDTH], b[bl_pack<E>::WIDTH], c[bl_pack<E>::WIDTH], s[bl_pack<E>::WIDTH];
    bl_unpack<E>(first_pack, a);
    bl_unpack<E>(second_pack, b);
    bl_load_floats<E, Wide>(cosines + position * half, at, half, c);
    bl_load_floats<E, Wide>(sines + position * half, at, half, s);
#pragma unroll
    for (int i = 0; i < bl_pack<E>::WIDTH; i++) {
      const float x = a[i], y = b[i], sine = sign * s[i];
      a[i] = x * c[i] - y * sine;
      b[i] = y * c[i] + x * sine;
    }
    bl_store<E, Wide>(first, at, half, bl_repack<E>(a));
    bl_store<E, Wide>(second, at, half, bl_repack<E>(b));
  }
}

int bl__launch_rope(bl__stream_t stream, bool bf16, const bl__heads_t *shape, uint64_t dims, const float *cosines,
                    const float *sines, float sign, void *rows) {
  const bl_count width = bf16 ? 8 : 4, half = dims / 2;
  const bool wide = half % width == 0 && shape->head_dim % width == 0 && shape->row_stride % width == 0 &&
                    bl_is_wide(cosines) && bl_is_wide(sines) && bl_is_wide(rows);
  const bl_count across = bl_over(shape->heads * bl_over(half, width), THREADS);
  const dim3 grid((unsigned)across, (unsigned)bl_least(shape->batch * shape->seq, 65535));
  return BL_TYPED(bf16, wide,
                  BL_LAUNCH((rope<E, W>), grid, THREADS, stream, *shape, half, cosines, sines, sign, (E *)rows));
}
