// SPDX-License-Identifier: Apache-2.0
// GELU, SwiGLU and GeGLU. A thread takes one pack of each operand. Elements moved per element of act, forward and
// backward: gelu 2 and 3, gated 3 and 5.
#include "compute/ops/cuda/kernels.h"
#include "compute/ops/cuda/kernels/device.h"

#define THREADS 256

// For GELU there is one row of `count` elements; for gates, grid.y counts rows of `width`. The last pack of a row may
// be partial.
template <typename E, bool Wide>
__global__ void __launch_bounds__(THREADS)
    gelu_forward(bl_count count, const E *__restrict__ pre, E *__restrict__ act) {
  const bl_count at = ((bl_count)blockIdx.x * THREADS + threadIdx.x) * bl_pack<E>::WIDTH;
  if (at >= count) {
    return;
  }
  float values[bl_pack<E>::WIDTH];
  bl_unpack<E>(bl_load<E, Wide>(pre, at, count), values);
#pragma unroll
  for (int i = 0; i < bl_pack<E>::WIDTH; i++) {
    values[i] = bl_gelu(values[i]);
  }
  bl_store<E, Wide>(act, at, count, bl_repack<E>(values));
}

// dpre may be pre or dact.
template <typename E, bool Wide>
__global__ void __launch_bounds__(THREADS) gelu_backward(bl_count count, const E *dact, const E *pre, E *dpre) {
  const bl_count at = ((bl_count)blockIdx.x * THREADS + threadIdx.x) * bl_pack<E>::WIDTH;
  if (at >= count) {
    return;
  }
  const bl_pack<E> gradient_pack = bl_load<E, Wide>(dact, at, count), pre_pack = bl_load<E, Wide>(pre, at, count);
  float gradient[bl_pack<E>::WIDTH], values[bl_pack<E>::WIDTH];
  bl_unpack<E>(gradient_pack, gradient);
  bl_unpack<E>(pre_pack, values);
#pragma unroll
  for (int i = 0; i < bl_pack<E>::WIDTH; i++) {
    gradient[i] *= bl_gelu_slope(values[i]);
  }
  bl_store<E, Wide>(dpre, at, count, bl_repack<E>(gradient));
}

// Gelu: the gate's function is GELU, otherwise SiLU.
template <typename E, bool Wide, bool Gelu>
__global__ void __launch_bounds__(THREADS)
    gated_forward(bl_count rows, bl_count width, const E *__restrict__ pre, E *__restrict__ act) {
  const bl_count at = ((bl_count)blockIdx.x * THREADS + threadIdx.x) * bl_pack<E>::WIDTH;
  if (at >= width) {
    return;
  }
  for (bl_count row = blockIdx.y; row < rows; row += gridDim.y) {
    const E *gates = pre + row * 2 * width;
    const bl_pack<E> gate_pack = bl_load<E, Wide>(gates, at, width);
    const bl_pack<E> up_pack = bl_load<E, Wide>(gates + width, at, width);
    float gate[bl_pack<E>::WIDTH], up[bl_pack<E>::WIDTH];
    bl_unpack<E>(gate_pack, gate);
    bl_unpack<E>(up_pack, up);
#pragma unroll
    for (int i = 0; i < bl_pack<E>::WIDTH; i++) {
      if constexpr (Gelu) {
        up[i] *= bl_gelu(gate[i]);
      } else {
        up[i] *= bl_quotient(gate[i], 1.0f + bl_exp_of_minus(gate[i]));
      }
    }
    bl_store<E, Wide>(act + row * width, at, width, bl_repack<E>(up));
  }
}

// dpre may be pre: a thread reads two packs before it writes them.
template <typename E, bool Wide, bool Gelu>
__global__ void __launch_bounds__(THREADS)
    gated_backward(bl_count rows, bl_count width, const E *__restrict__ dact, const E *pre, E *dpre) {
  const bl_count at = ((bl_count)blockIdx.x * THREADS + threadIdx.x) * bl_pack<E>::WIDTH;
  if (at >= width) {
    return;
  }
  for (bl_count row = blockIdx.y; row < rows; row += gridDim.y) {
    const E *gates = pre + row * 2 * width;
    E *dgates = dpre + row * 2 * width;
    const bl_pack<E> gradient_pack = bl_load<E, Wide>(dact + row * width, at, width);
    const bl_pack<E> gate_pack = bl_load<E, Wide>(gates, at, width);
    const bl_pack<E> up_pack = bl_load<E, Wide>(gates + width, at, width);
    float gradient[bl_pack<E>::WIDTH], gate[bl_pack<E>::WIDTH], up[bl_pack<E>::WIDTH];
    bl_unpack<E>(gradient_pack, gradient);
    bl_unpack<E>(gate_pack, gate);
    bl_unpack<E>(up_pack, up);
#pragma unroll
    for (int i = 0; i < bl_pack<E>::WIDTH; i++) {
      const float g = gate[i];
      if constexpr (Gelu) {
        gate[i] = gradient[i] * up[i] * bl_gelu_slope(g);
        up[i] = gradient[i] * bl_gelu(g);
      } else {
        const float e = bl_exp_of_minus(g), s = bl_quotient(1.0f, 1.0f + e);
        gate[i] = gradient[i] * up[i] * s * (1.0f + g * e * s);
        up[i] = gradient[i] * g * s;
      }
    }
    bl_store<E, Wide>(dgates, at, width, bl_repack<E>(gate));
    bl_store<E, Wide>(dgates + width, at, width, bl_repack<E>(up));
  }
}

// True if a line has whole packs and all lines begin at 16-byte boundaries.
static bool lines_are_wide(bool bf16, bl_count width) {
  return width % (bf16 ? 8 : 4) == 0;
}

template <typename E> static unsigned blocks_for(bl_count width) {
  return (unsigned)bl_over(width, (bl_count)THREADS * bl_pack<E>::WIDTH);
}

template <typename E> static dim3 grid_for(bl_count rows, bl_count width) {
  return dim3(blocks_for<E>(width), (unsigned)bl_least(rows, 65535));
}

int bl__launch_gelu_forward(bl__stream_t stream, bool bf16, uint64_t count, const void *pre, void *act) {
  if (count == 0) {
    return 0;
  }
  const bool wide = lines_are_wide(bf16, count) && bl_is_wide(pre) && bl_is_wide(act);
  return BL_TYPED(
      bf16, wide,
      BL_LAUNCH((gelu_forward<E, W>), blocks_for<E>(count), THREADS, stream, count, (const E *)pre, (E *)act));
}

int bl__launch_gelu_backward(bl__stream_t stream, bool bf16, uint64_t count, const void *dact, const void *pre,
                             void *dpre) {
  if (count == 0) {
    return 0;
  }
  const bool wide = lines_are_wide(bf16, count) && bl_is_wide(dact) && bl_is_wide(pre) && bl_is_wide(dpre);
  return BL_TYPED(bf16, wide,
                  BL_LAUNCH((gelu_backward<E, W>), blocks_for<E>(count), THREADS, stream, count, (const E *)dact,
                            (const E *)pre, (E *)dpre));
}

template <bool Gelu>
static int forward_of(bl__stream_t stream, bool bf16, bl_count rows, bl_count width, const void *pre, void *act) {
  const bool wide = lines_are_wide(bf16, width) && bl_is_wide(pre) && bl_is_wide(act);
  return BL_TYPED(bf16, wide,
                  BL_LAUNCH((gated_forward<E, W, Gelu>), grid_for<E>(rows, width), THREADS, stream, rows, width,
                            (const E *)pre, (E *)act));
}

template <bool Gelu>
static int backward_of(bl__stream_t stream, bool bf16, bl_count rows, bl_count width, const void *dact, const void *pre,
                       void *dpre) {
  const bool wide = lines_are_wide(bf16, width) && bl_is_wide(dact) && bl_is_wide(pre) && bl_is_wide(dpre);
  return BL_TYPED(bf16, wide,
                  BL_LAUNCH((gated_backward<E, W, Gelu>), grid_for<E>(rows, width), THREADS, stream, rows, width,
                            (const E *)dact, (const E *)pre, (E *)dpre));
}

int bl__launch_gated_forward(bl__stream_t stream, bool bf16, bool gelu, uint64_t rows, uint64_t width, const void *pre,
                             void *act) {
  if (rows == 0 || width == 0) {
    return 0;
  }
  return gelu ? forward_of<true>(stream, bf16, rows, width, pre, act)
              : forward_of<false>(stream, bf16, rows, width, pre, act);
}

int bl__launch_gated_backward(bl__stream_t stream, bool bf16, bool gelu, uint64_t rows, uint64_t width,
                              const void *dact, const void *pre, void *dpre) {
  if (rows == 0 || width == 0) {
    return 0;
  }
  return gelu ? backward_of<true>(stream, bf16, rows, width, dact, pre, dpre)
              : backward_of<false>(stream, bf16, rows, width, dact, pre, dpre);
}
