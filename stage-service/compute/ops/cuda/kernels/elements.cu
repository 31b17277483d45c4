// SPDX-License-Identifier: Apache-2.0
// Loops over elements: a thread takes one pack of each operand. Bytes an element, against the bandwidth of a copy:
// add 3 elements, accumulate 12, fill 4, narrow 6, adamw 28, and 30 with the copy of the weights for products, which would
// be 34 if narrow made it.
#include "compute/ops/cuda/kernels.h"
#include "compute/ops/cuda/kernels/device.h"

#define THREADS 256

// The last pack of a line may be cut short, whatever the width of access.
template <typename E, bool Wide> static BL_DEVICE bl_pack<E> load_cut(const E *line, bl_count at, bl_count count) {
  if (Wide && at + bl_pack<E>::WIDTH <= count) {
    return bl_load<E, true>(line, at, count);
  }
  return bl_load<E, false>(line, at, count);
}

template <typename E, bool Wide>
static BL_DEVICE void store_cut(E *line, bl_count at, bl_count count, const bl_pack<E> &pack) {
  if (Wide && at + bl_pack<E>::WIDTH <= count) {
    bl_store<E, true>(line, at, count, pack);
  } else {
    bl_store<E, false>(line, at, count, pack);
  }
}

template <typename E> static BL_DEVICE bl_count first_of_thread() {
  return ((bl_count)blockIdx.x * THREADS + threadIdx.x) * bl_pack<E>::WIDTH;
}

template <typename E> static unsigned blocks_for(bl_count count) {
  return (unsigned)bl_over(count, (bl_count)THREADS * bl_pack<E>::WIDTH);
}

// a and y may be the same memory: no __restrict__.
template <typename E, bool Wide>
__global__ void __launch_bounds__(THREADS) add(bl_count count, const E *a, const E *b, E *y) {
  const bl_count at = first_of_thread<E>();
  if (at >= count) {
    return;
  }
  float left[bl_pack<E>::WIDTH], right[bl_pack<E>::WIDTH];
  const bl_pack<E> x = load_cut<E, Wide>(a, at, count), z = load_cut<E, Wide>(b, at, count);
  bl_unpack<E>(x, left);
  bl_unpack<E>(z, right);
#pragma unroll
  for (int i = 0; i < bl_pack<E>::WIDTH; i++) {
    left[i] += right[i];
  }
  store_cut<E, Wide>(y, at, count, bl_repack<E>(left));
}

template <bool Wide> __global__ void __launch_bounds__(THREADS) fill(bl_count count, float value, float *y) {
  const bl_count at = first_of_thread<float>();
  if (at < count) {
    const float values[4] = {value, value, value, value};
    store_cut<float, Wide>(y, at, count, bl_repack<float>(values));
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
  store_cut<bl_bf16, Wide>(y, at, count, bl_repack<bl_bf16>(values));
}

template <bool Wide, bool Packed>
__global__ void __launch_bounds__(THREADS)
    adamw(bl_count count, const bl__adamw_t options, const float *__restrict__ dw, float *__restrict__ w,
          float *__restrict__ m, float *__restrict__ v, bl_bf16 *__restrict__ packed) {
  const bl_count at = first_of_thread<float>();
  if (at >= count) {
    return;
  }
  float gradient[4], weight[4], first[4], second[4];
  const bl_pack<float> packs[4] = {load_cut<float, Wide>(dw, at, count), load_cut<float, Wide>(w, at, count),
                                   load_cut<float, Wide>(m, at, count), load_cut<float, Wide>(v, at, count)};
  bl_unpack<float>(packs[0], gradient);
  bl_unpack<float>(packs[1], weight);
  bl_unpack<float>(packs[2], first);
  bl_unpack<float>(packs[3], second);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float g = options.scale * gradient[i];
    first[i] = options.beta1 * first[i] + options.rest1 * g;
    second[i] = options.beta2 * second[i] + options.rest2 * g * g;
    weight[i] = options.keep * weight[i] -
                options.step * first[i] / (sqrtf(second[i]) * options.inverse_root2 + options.epsilon);
  }
  if constexpr (Packed) {
    if (Wide && at + 4 <= count) {
      bl_store_four<bl_bf16, true>(packed, at, count, weight);
    } else {
      bl_store_four<bl_bf16, false>(packed, at, count, weight);
    }
  }
  store_cut<float, Wide>(w, at, count, bl_repack<float>(weight));
  store_cut<float, Wide>(m, at, count, bl_repack<float>(first));
  store_cut<float, Wide>(v, at, count, bl_repack<float>(second));
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

int bl__launch_adamw(bl__stream_t stream, uint64_t count, const bl__adamw_t *options, const float *dw, float *w,
                     float *m, float *v, void *packed) {
  if (count == 0) {
    return 0;
  }
  const unsigned blocks = blocks_for<float>(count);
  const bool wide = bl_is_wide(dw) && bl_is_wide(w) && bl_is_wide(m) && bl_is_wide(v) && ((uintptr_t)packed & 7u) == 0;
#define ADAMW(WIDE, PACKED)                                                                                            \
  BL_LAUNCH((adamw<WIDE, PACKED>), blocks, THREADS, stream, count, *options, dw, w, m, v, (bl_bf16 *)packed)
  if (packed != NULL) {
    return wide ? ADAMW(true, true) : ADAMW(false, true);
  }
  return wide ? ADAMW(true, false) : ADAMW(false, false);
}
