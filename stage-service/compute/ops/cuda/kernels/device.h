// SPDX-License-Identifier: Apache-2.0
// What all kernels share: elements and 16-byte packs of them, arithmetic of one element, sums over a block.
//
// nvcc compiles the same file for the device, and tests/ops/emulation compiles it with the host's compiler, which runs
// the kernels thread by thread. Only this header depends on which of the two it is.
//
// Rules for a kernel: no atomics; sums run in an order that the shape fixes, never alignment, so that the same numbers
// at another address give the same bits; indices have 64 bits wherever rows and columns are multiplied; a thread reads
// what it overwrites.
#ifndef BALLAST_COMPUTE_OPS_CUDA_KERNELS_DEVICE_H
#define BALLAST_COMPUTE_OPS_CUDA_KERNELS_DEVICE_H

#include <math.h>
#include <stdint.h>

#ifdef __CUDACC__
#include <cuda_bf16.h>
#define BL_DEVICE __device__ __forceinline__
// Queues a kernel. Template arguments need parentheses: BL_LAUNCH((gelu<E, true>), blocks, threads, stream, ...).
#define BL_LAUNCH(kernel, blocks, threads, stream, ...)                                                                \
  (BL_UNBRACKET kernel<<<(blocks), (threads), 0, (cudaStream_t)(stream)>>>(__VA_ARGS__), (int)cudaGetLastError())
// The same for a kernel with BL_DYNAMIC_SHARED, of which it gets `bytes` bytes.
#define BL_LAUNCH_SHARED(kernel, blocks, threads, bytes, stream, ...)                                                  \
  ((void)cudaFuncSetAttribute((const void *)BL_UNBRACKET kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,          \
                              (int)(bytes)),                                                                           \
   (void)cudaFuncSetAttribute((const void *)BL_UNBRACKET kernel, cudaFuncAttributePreferredSharedMemoryCarveout,       \
                              (int)cudaSharedmemCarveoutMaxShared),                                                    \
   BL_UNBRACKET kernel<<<(blocks), (threads), (bytes), (cudaStream_t)(stream)>>>(__VA_ARGS__),                         \
   (int)cudaGetLastError())
#define BL_DYNAMIC_SHARED(type, name) extern __shared__ type name[]
#define BL_UNBRACKET(...)             __VA_ARGS__
#else
#include "ops/emulation/emulation.h"
#endif

typedef uint64_t bl_count;

// ---- elements -------------------------------------------------------------------------------------------------
struct bl_bf16 {
  uint16_t bits;
};

struct alignas(16) bl_words {
  uint32_t word[4];
};

BL_DEVICE float bl_bits_float(uint32_t bits) {
#ifdef __CUDACC__
  return __uint_as_float(bits);
#else
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
#endif
}

BL_DEVICE uint32_t bl_float_bits(float value) {
#ifdef __CUDACC__
  return __float_as_uint(value);
#else
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
#endif
}

BL_DEVICE float bl_to_float(float x) {
  return x;
}

BL_DEVICE float bl_to_float(bl_bf16 x) {
  return bl_bits_float((uint32_t)x.bits << 16);
}

// Rounds to nearest even; NaN stays NaN.
BL_DEVICE uint32_t bl_round_bf16(float x) {
#ifdef __CUDACC__
  return __bfloat16_as_ushort(__float2bfloat16_rn(x));
#else
  const uint32_t bits = bl_float_bits(x);
  return x != x ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
#endif
}

BL_DEVICE void bl_set(float *to, float x) {
  *to = x;
}

BL_DEVICE void bl_set(bl_bf16 *to, float x) {
  to->bits = (uint16_t)bl_round_bf16(x);
}

// A pack: 16 bytes of elements as they lie in memory, 4 floats or 8 bf16.
template <typename E> struct bl_pack {
  static constexpr int WIDTH = 16 / (int)sizeof(E);
  bl_words raw;
};

template <typename E> BL_DEVICE void bl_unpack(const bl_pack<E> &pack, float (&values)[bl_pack<E>::WIDTH]) {
  if constexpr (sizeof(E) == sizeof(float)) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      values[i] = bl_bits_float(pack.raw.word[i]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      values[2 * i] = bl_bits_float(pack.raw.word[i] << 16);
      values[2 * i + 1] = bl_bits_float(pack.raw.word[i] & 0xffff0000u);
    }
  }
}

template <typename E> BL_DEVICE bl_pack<E> bl_repack(const float (&values)[bl_pack<E>::WIDTH]) {
  bl_pack<E> pack;
  if constexpr (sizeof(E) == sizeof(float)) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      pack.raw.word[i] = bl_float_bits(values[i]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      pack.raw.word[i] = bl_round_bf16(values[2 * i]) | bl_round_bf16(values[2 * i + 1]) << 16;
    }
  }
  return pack;
}

// Loads elements [at, at + WIDTH) of a line of `count`; elements after its end are zeros. `Wide`: one 16-byte access,
// which requires that `count` is a multiple of WIDTH and the line is 16-byte aligned. Otherwise loads element by
// element.
template <typename E, bool Wide> BL_DEVICE bl_pack<E> bl_load(const E *line, bl_count at, bl_count count) {
  bl_pack<E> pack;
  if constexpr (Wide) {
    const uint4 four = *(const uint4 *)(line + at);
    pack.raw = {{four.x, four.y, four.z, four.w}};
  } else if constexpr (sizeof(E) == sizeof(float)) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      pack.raw.word[i] = at + i < count ? bl_float_bits(bl_to_float(line[at + i])) : 0u;
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const bl_count first = at + 2 * i;
      const uint32_t low = first < count ? bl_float_bits(bl_to_float(line[first])) >> 16 : 0u;
      const uint32_t high = first + 1 < count ? bl_float_bits(bl_to_float(line[first + 1])) & 0xffff0000u : 0u;
      pack.raw.word[i] = low | high;
    }
  }
  return pack;
}

// Stores 16 or 8 bytes at once. Without this the compiler sometimes stores word by word.
template <typename T> BL_DEVICE void bl_store_words(T *to, const T words) {
#ifdef __CUDACC__
  __stwb(to, words);
#else
  *to = words;
#endif
}

template <typename E, bool Wide> BL_DEVICE void bl_store(E *line, bl_count at, bl_count count, const bl_pack<E> &pack) {
  if constexpr (Wide) {
    bl_store_words((uint4 *)(line + at), {pack.raw.word[0], pack.raw.word[1], pack.raw.word[2], pack.raw.word[3]});
  } else {
    float values[bl_pack<E>::WIDTH];
    bl_unpack<E>(pack, values);
#pragma unroll
    for (int i = 0; i < bl_pack<E>::WIDTH; i++) {
      if (at + i < count) {
        bl_set(line + at + i, values[i]);
      }
    }
  }
}

// Prefetches the line of the L2 cache that holds this address, without waiting and without a register.
BL_DEVICE void bl_prefetch(const void *address) {
#ifdef __CUDACC__
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
#else
  (void)address;
#endif
}

// ---- asynchronous copies into shared memory
// Starts to copy a pack from memory to `place`, which only this thread reads, after a wait. `Wide` as in bl_load;
// otherwise the copy is complete on return.
template <typename E, bool Wide> BL_DEVICE void bl_fetch(bl_words *place, const E *line, bl_count at, bl_count count) {
  if constexpr (!Wide) {
    *place = bl_load<E, false>(line, at, count).raw;
  } else {
#ifdef __CUDACC__
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(place)),
                 "l"(line + at)
                 : "memory");
#else
    bl_emulated_fetch(place, line + at);
#endif
  }
}

// Makes one group, possibly empty, of the copies that this thread started since the last call.
BL_DEVICE void bl_fetch_group() {
#ifdef __CUDACC__
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  bl_emulated_fetch_group();
#endif
}

// Waits until all groups of this thread except the last `left` have arrived. `left` above 7 counts as 7.
BL_DEVICE void bl_fetch_wait(unsigned left) {
#ifdef __CUDACC__
#define BL_FETCH_WAIT(count)                                                                                           \
  case count:                                                                                                          \
    asm volatile("cp.async.wait_group " #count ";" ::: "memory");                                                      \
    break
  switch (left) {
    BL_FETCH_WAIT(0);
    BL_FETCH_WAIT(1);
    BL_FETCH_WAIT(2);
    BL_FETCH_WAIT(3);
    BL_FETCH_WAIT(4);
    BL_FETCH_WAIT(5);
    BL_FETCH_WAIT(6);
  default:
    BL_FETCH_WAIT(7);
  }
#undef BL_FETCH_WAIT
#else
  bl_emulated_fetch_wait(left < 7 ? left : 7);
#endif
}

// Loads four columns of a line of elements of any type; for bf16 these are half a pack. `Wide` requires a multiple of
// four columns and a line that is aligned to four of them.
template <typename E, bool Wide>
BL_DEVICE void bl_load_four(const E *line, bl_count at, bl_count count, float (&values)[4]) {
  if constexpr (sizeof(E) == sizeof(float)) {
    bl_unpack<float>(bl_load<float, Wide>(line, at, count), values);
  } else if constexpr (Wide) {
    const uint2 two = *(const uint2 *)(line + at);
    values[0] = bl_bits_float(two.x << 16);
    values[1] = bl_bits_float(two.x & 0xffff0000u);
    values[2] = bl_bits_float(two.y << 16);
    values[3] = bl_bits_float(two.y & 0xffff0000u);
  } else {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      values[i] = at + i < count ? bl_to_float(line[at + i]) : 0.0f;
    }
  }
}

template <typename E, bool Wide>
BL_DEVICE void bl_store_four(E *line, bl_count at, bl_count count, const float (&values)[4]) {
  if constexpr (sizeof(E) == sizeof(float)) {
    bl_store<float, Wide>(line, at, count, bl_repack<float>(values));
  } else if constexpr (Wide) {
    bl_store_words((uint2 *)(line + at), {bl_round_bf16(values[0]) | bl_round_bf16(values[1]) << 16,
                                          bl_round_bf16(values[2]) | bl_round_bf16(values[3]) << 16});
  } else {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (at + i < count) {
        bl_set(line + at + i, values[i]);
      }
    }
  }
}

// Loads WIDTH floats of a vector along the columns (gain, bias), for activations of any type.
template <typename E, bool Wide>
BL_DEVICE void bl_load_floats(const float *line, bl_count at, bl_count count, float (&values)[bl_pack<E>::WIDTH]) {
#pragma unroll
  for (int i = 0; i < bl_pack<E>::WIDTH; i += 4) {
    float four[4];
    bl_unpack<float>(bl_load<float, Wide>(line, at + i, count), four);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      values[i + j] = four[j];
    }
  }
}

template <typename E, bool Wide>
BL_DEVICE void bl_store_floats(float *line, bl_count at, bl_count count, const float (&values)[bl_pack<E>::WIDTH]) {
#pragma unroll
  for (int i = 0; i < bl_pack<E>::WIDTH; i += 4) {
    const float four[4] = {values[i], values[i + 1], values[i + 2], values[i + 3]};
    bl_store<float, Wide>(line, at + i, count, bl_repack<float>(four));
  }
}

// Loads a pack, of which the last of a line may be partial, for either width of access.
template <typename E, bool Wide> BL_DEVICE bl_pack<E> bl_load_cut(const E *line, bl_count at, bl_count count) {
  if (Wide && at + bl_pack<E>::WIDTH <= count) {
    return bl_load<E, true>(line, at, count);
  }
  return bl_load<E, false>(line, at, count);
}

template <typename E, bool Wide>
BL_DEVICE void bl_store_cut(E *line, bl_count at, bl_count count, const bl_pack<E> &pack) {
  if (Wide && at + bl_pack<E>::WIDTH <= count) {
    bl_store<E, true>(line, at, count, pack);
  } else {
    bl_store<E, false>(line, at, count, pack);
  }
}

// ---- arithmetic of one element ----------------------------------------------------------------------------------
#define BL_LOG2_E 1.44269504088896341f

// exp(x), computed as 2^(x log2 e) by one instruction. The relative error is |x| 2^-24 and 2 ulp; results below 2^-126
// are zero.
BL_DEVICE float bl_exp(float x) {
#ifdef __CUDACC__
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * BL_LOG2_E));
  return result;
#else
  return exp2f(x * BL_LOG2_E);
#endif
}

BL_DEVICE float bl_quotient(float a, float b) { // b up to 2^64
#ifdef __CUDACC__
  return __fdividef(a, b);
#else
  return a / b;
#endif
}

BL_DEVICE float bl_inverse_root(float x) {
#ifdef __CUDACC__
  return rsqrtf(x);
#else
  return 1.0f / sqrtf(x);
#endif
}

// exp(-x), at most 2^64, for sigmoid(x) = 1 / (1 + exp(-x)) = s and 1 - s = exp(-x) s.
BL_DEVICE float bl_exp_of_minus(float x) {
  x *= -BL_LOG2_E;
  return exp2f(x > 64.0f ? 64.0f : x);
}

// GELU in its tanh form (Hendrycks, Gimpel 2016): x sigmoid(2 u), u = sqrt(2/pi) (x + 0.044715 x^3).
#define BL_GELU_LINEAR 1.5957691216057308f // 2 sqrt(2/pi)
#define BL_GELU_CUBIC  0.0713548162726009f // 2 sqrt(2/pi) 0.044715

BL_DEVICE float bl_gelu(float x) {
  return bl_quotient(x, 1.0f + bl_exp_of_minus(x * (BL_GELU_LINEAR + BL_GELU_CUBIC * x * x)));
}

BL_DEVICE float bl_gelu_slope(float x) {
  const float e = bl_exp_of_minus(x * (BL_GELU_LINEAR + BL_GELU_CUBIC * x * x));
  const float s = bl_quotient(1.0f, 1.0f + e);
  return s * (1.0f + x * (BL_GELU_LINEAR + 3.0f * BL_GELU_CUBIC * x * x) * e * s);
}

// Bounds x softly by softcap: softcap tanh(x / softcap).
BL_DEVICE float bl_softcap(float x, float softcap, float inverse_softcap) {
  return softcap * tanhf(x * inverse_softcap);
}

// ---- sums over a block --------------------------------------------------------------------------------------------
// Every thread gets the result. `shared` is shared memory with one T per warp. All threads of the block make the call;
// their number is a multiple of 32. The next sum needs another array. An array may be reused once every thread has
// passed a __syncthreads() after the sum. The number of threads fixes the order: butterflies within warps, then warps
// one after the other.
struct bl_plus {
  template <typename T> BL_DEVICE T operator()(T a, T b) const {
    return a + b;
  }
};
struct bl_larger { // ignores NaN, as fmaxf does
  BL_DEVICE float operator()(float a, float b) const {
    return fmaxf(a, b);
  }
};

// Combines the values of groups of `lanes` neighbours, a power of two up to 32; all lanes of the warp make the call.
template <typename T, typename F> BL_DEVICE T bl_group_all(T value, int lanes, F combine) {
  for (int lane = lanes / 2; lane > 0; lane /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, lane));
  }
  return value;
}

template <typename T, typename F> BL_DEVICE T bl_warp_all(T value, F combine) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, lane));
  }
  return value;
}

template <typename T, typename F> BL_DEVICE T bl_block_all(T value, T *shared, F combine) {
  const int warps = (int)blockDim.x / 32, warp = (int)threadIdx.x / 32;
  value = bl_warp_all(value, combine);
  if (threadIdx.x % 32 == 0) {
    shared[warp] = value;
  }
  __syncthreads();
  value = shared[0];
  for (int i = 1; i < warps; i++) {
    value = combine(value, shared[i]);
  }
  return value;
}

// Computes two sums at once; `shared` holds two floats per warp. The caller alternates between two arrays in successive
// calls.
BL_DEVICE void bl_block_sums(float *a, float *b, float *shared) {
  const int warps = (int)blockDim.x / 32, warp = (int)threadIdx.x / 32;
  float x = bl_warp_all(*a, bl_plus()), y = bl_warp_all(*b, bl_plus());
  if (threadIdx.x % 32 == 0) {
    shared[2 * warp] = x;
    shared[2 * warp + 1] = y;
  }
  __syncthreads();
  x = shared[0];
  y = shared[1];
  for (int i = 1; i < warps; i++) {
    x += shared[2 * i];
    y += shared[2 * i + 1];
  }
  *a = x;
  *b = y;
}

// Mean and sum of squared deviations from it.
struct bl_moments {
  float mean, squares;
};

// Returns the moments of `count` numbers, `here` of which belong to this warp. `sum` is the sum of this thread's
// numbers, and squares_from(point) the sum of their squared distances from a point. Each warp first computes the
// moments of its own numbers, so that one barrier is enough (Chan, Golub, LeVeque 1979). `shared` holds three floats
// per warp.
template <typename F>
BL_DEVICE bl_moments bl_block_moments(float sum, float here, float count, const F &squares_from, float *shared) {
  const int warps = (int)blockDim.x / 32, warp = (int)threadIdx.x / 32;
  const float centre = here > 0.0f ? bl_quotient(bl_warp_all(sum, bl_plus()), here) : 0.0f;
  const float squares = bl_warp_all(squares_from(centre), bl_plus());
  if (threadIdx.x % 32 == 0) {
    shared[3 * warp] = here;
    shared[3 * warp + 1] = centre;
    shared[3 * warp + 2] = squares;
  }
  __syncthreads();
  float away = 0.0f; // sum of the numbers' distances from the first warp's mean; `spread`: of their squares
  float spread = 0.0f;
#pragma unroll 1
  for (int i = 0; i < warps; i++) {
    const float step = shared[3 * i + 1] - shared[1], all = shared[3 * i] * step;
    away += all;
    spread += shared[3 * i + 2] + all * step;
  }
  away = bl_quotient(away, count);
  return {shared[1] + away, fmaxf(spread - count * away * away, 0.0f)};
}

// Returns the entry of a table to which this block belongs: the last entry whose first block is not above it.
template <typename Table> BL_DEVICE unsigned bl_entry_of(const Table &table) {
  unsigned low = 0, high = table.count;
  while (high - low > 1) {
    const unsigned middle = (low + high) / 2;
    if (blockIdx.x >= table.entries[middle].first_block) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// ---- launching ----------------------------------------------------------------------------------------------------
#define BL_TOO_LARGE 1 // cudaErrorInvalidValue: more than 32 bits can count, or than scratch has space for

static inline bool bl_is_wide(const void *pointer) {
  return ((uintptr_t)pointer & 15u) == 0;
}

// Number of multiprocessors, for kernels whose blocks take several rows one after the other. The rows do not affect
// each other's bits.
static inline unsigned bl_multiprocessors(void) {
#ifdef __CUDACC__
  int device = 0, count = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
                 cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) == cudaSuccess && count > 0
             ? (unsigned)count
             : 1;
#else
  return 2;
#endif
}

// Returns the bytes of shared memory available to each of `blocks` blocks on a multiprocessor.
static inline bl_count bl_shared_bytes(unsigned blocks) {
#ifdef __CUDACC__
  int device = 0, all = 0, kept = 0, most = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&all, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&kept, cudaDevAttrReservedSharedMemoryPerBlock, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess) {
    return 0;
  }
  const int space = all / (int)blocks - kept;
  return (bl_count)(space < 0 ? 0 : space < most ? space : most);
#else
  return bl_emulated_shared_bytes / blocks;
#endif
}

// Returns the maximum number of threads of a block that keeps its input in registers: `most`, or fewer in tests.
static inline bl_count bl_most_threads(bl_count most) {
#ifdef __CUDACC__
  return most;
#else
  return most < bl_emulated_threads ? most : bl_emulated_threads;
#endif
}

static inline bl_count bl_over(bl_count count, bl_count by) { // rounded up
  return (count + by - 1) / by;
}

static inline bl_count bl_least(bl_count a, bl_count b) {
  return a < b ? a : b;
}

static inline bl_count bl_most(bl_count a, bl_count b) {
  return a > b ? a : b;
}

// Makes the launch for the pair of element type and width of access that `bf16` and `wide` select at run time.
// BL_TYPED(bf16, wide, BL_LAUNCH((add<E, W>), ...)) uses them as E and W.
#define BL_TYPED(bf16, wide, launch)                                                                                   \
  [&]() -> int {                                                                                                       \
    if (bf16) {                                                                                                        \
      typedef bl_bf16 E;                                                                                               \
      if (wide) {                                                                                                      \
        constexpr bool W = true;                                                                                       \
        return launch;                                                                                                 \
      }                                                                                                                \
      constexpr bool W = false;                                                                                        \
      return launch;                                                                                                   \
    }                                                                                                                  \
    typedef float E;                                                                                                   \
    if (wide) {                                                                                                        \
      constexpr bool W = true;                                                                                         \
      return launch;                                                                                                   \
    }                                                                                                                  \
    constexpr bool W = false;                                                                                          \
    return launch;                                                                                                     \
  }()

#endif
