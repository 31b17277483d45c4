// SPDX-License-Identifier: Apache-2.0
// One vector of floats of this compilation's instruction set, for loops that gcc does not vectorize by itself.
#ifndef BALLAST_COMPUTE_OPS_HOST_KERNELS_VECTOR_H
#define BALLAST_COMPUTE_OPS_HOST_KERNELS_VECTOR_H

#include <stddef.h>
#include <stdint.h>

#if defined(__SSE__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define BL__LANES 16
#elif defined(__AVX__)
#define BL__LANES 8
#else
#define BL__LANES 4
#endif

// aligned(4): rows start anywhere.
typedef float bl__vector_t __attribute__((vector_size(BL__LANES * sizeof(float)), aligned(4), may_alias));
typedef int32_t bl__mask_t __attribute__((vector_size(BL__LANES * sizeof(float))));

static inline bl__vector_t bl__load(const float *x) {
  return *(const bl__vector_t *)x;
}

// Lane by lane x > y ? x : y. y if x is NaN.
static inline bl__vector_t bl__larger(bl__vector_t x, bl__vector_t y) {
#if defined(__AVX512F__)
  return (bl__vector_t)_mm512_max_ps((__m512)x, (__m512)y);
#elif defined(__AVX__)
  return (bl__vector_t)_mm256_max_ps((__m256)x, (__m256)y);
#elif defined(__SSE__)
  return (bl__vector_t)_mm_max_ps((__m128)x, (__m128)y);
#else
  const bl__mask_t take = x > y;
  return (bl__vector_t)(((bl__mask_t)x & take) | ((bl__mask_t)y & ~take));
#endif
}

// Lane i of the result is lane (i + n) mod BL__LANES of v.
#if BL__LANES == 16
#define BL__ROTATE(v, n)                                                                                               \
  __builtin_shufflevector(v, v, (n), (n) + 1, (n) + 2, (n) + 3, (n) + 4, (n) + 5, (n) + 6, (n) + 7, (n) + 8, (n) + 9,  \
                          (n) + 10, (n) + 11, (n) + 12, (n) + 13, (n) + 14, (n) + 15)
#elif BL__LANES == 8
#define BL__ROTATE(v, n)                                                                                               \
  __builtin_shufflevector(v, v, (n), (n) + 1, (n) + 2, (n) + 3, (n) + 4, (n) + 5, (n) + 6, (n) + 7)
#else
#define BL__ROTATE(v, n) __builtin_shufflevector(v, v, (n), (n) + 1, (n) + 2, (n) + 3)
#endif

// Lanes of two vectors in turns: of their first halves, of their second halves.
#if BL__LANES == 16
#define BL__ZIP_LOW(a, b)  __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define BL__ZIP_HIGH(a, b) __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#elif BL__LANES == 8
#define BL__ZIP_LOW(a, b)  __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define BL__ZIP_HIGH(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#else
#define BL__ZIP_LOW(a, b)  __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define BL__ZIP_HIGH(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#endif

// The largest lane.
static inline float bl__largest_lane(bl__vector_t v) {
#if BL__LANES >= 16
  v = bl__larger(v, BL__ROTATE(v, 8));
#endif
#if BL__LANES >= 8
  v = bl__larger(v, BL__ROTATE(v, 4));
#endif
  v = bl__larger(v, BL__ROTATE(v, 2));
  v = bl__larger(v, BL__ROTATE(v, 1));
  return v[0];
}

// The largest of `start` and x[0..count). A NaN in x may hide other values; sums of powers relative to the result are
// then NaN, as they should be. gcc leaves this loop scalar if NaNs matter.
static inline float bl__largest(const float *x, size_t count, float start) {
  float largest = start;
  size_t i = 0;
  if (count >= BL__LANES) {
    bl__vector_t even = bl__load(x), odd = even;
    for (i = BL__LANES; i + 2 * (size_t)BL__LANES <= count; i += 2 * (size_t)BL__LANES) {
      even = bl__larger(bl__load(x + i), even);
      odd = bl__larger(bl__load(x + i + BL__LANES), odd);
    }
    for (; i + BL__LANES <= count; i += BL__LANES) {
      even = bl__larger(bl__load(x + i), even);
    }
    const float found = bl__largest_lane(bl__larger(even, odd));
    largest = found > largest ? found : largest;
  }
  for (; i < count; i++) {
    largest = x[i] > largest ? x[i] : largest;
  }
  return largest;
}

#endif
