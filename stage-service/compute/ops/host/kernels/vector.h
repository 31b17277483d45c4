// SPDX-License-Identifier: Apache-2.0
// One vector of floats of this compilation's instruction set, for what gcc does not vectorize by itself.
#ifndef BALLAST_COMPUTE_OPS_HOST_KERNELS_VECTOR_H
#define BALLAST_COMPUTE_OPS_HOST_KERNELS_VECTOR_H

#include <stddef.h>
#include <stdint.h>

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

// Lane by lane x > y ? x : y; y where x is NaN.
static inline bl__vector_t bl__larger(bl__vector_t x, bl__vector_t y) {
  const bl__mask_t take = x > y;
  return (bl__vector_t)(((bl__mask_t)x & take) | ((bl__mask_t)y & ~take));
}

// The largest of `start` and x[0..count). A NaN in x may hide others: sums of powers relative to the result are NaN
// then, as they should be. gcc leaves this loop scalar where NaNs count.
static inline float bl__largest(const float *x, size_t count, float start) {
  float largest = start;
  size_t i = 0;
  if (count >= 2 * BL__LANES) {
    bl__vector_t even = bl__load(x), odd = bl__load(x + BL__LANES);
    for (i = 2 * BL__LANES; i + 2 * BL__LANES <= count; i += 2 * BL__LANES) {
      even = bl__larger(bl__load(x + i), even);
      odd = bl__larger(bl__load(x + i + BL__LANES), odd);
    }
    even = bl__larger(even, odd);
    for (size_t lane = 0; lane < BL__LANES; lane++) {
      largest = even[lane] > largest ? even[lane] : largest;
    }
  }
  for (; i < count; i++) {
    largest = x[i] > largest ? x[i] : largest;
  }
  return largest;
}

#endif
