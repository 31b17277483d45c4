// SPDX-License-Identifier: Apache-2.0
// Shared by the files of kernels/: the name of this compilation's instruction set, declarations of its functions, and
// the vectorizable exponential.
//
// Every function here is branch-free inside its loops, so that gcc vectorizes it for each instruction set.
#ifndef BALLAST_COMPUTE_OPS_HOST_KERNELS_KERNEL_H
#define BALLAST_COMPUTE_OPS_HOST_KERNELS_KERNEL_H

#include "compute/ops/host/kernels.h"

#ifndef BL_KERNEL_SET
#define BL_KERNEL_SET baseline
#endif
#define BL__PASTE2(a, b) bl__##a##_##b
#define BL__PASTE(a, b)  BL__PASTE2(a, b)
// BL_KERNEL(norm_forward) is bl__norm_forward_avx512; in kernels/typed for bf16 it is bl__norm_forward_avx512_bf16.
#define BL_KERNEL(name) BL__PASTE(name, BL_KERNEL_SET)
#define BL__TEXT2(a)    #a
#define BL__TEXT(a)     BL__TEXT2(a)
#define BL_KERNEL_NAME  BL__TEXT(BL_KERNEL_SET)

#define BL_LOG2_E 1.44269504088896341f
#define BL_LN_2   0.693147180559945309f

// 2^x with x clamped to [low, high], bounds from -126 to 127: relative error below 2^-22 (polynomial of Cephes' exp2f on
// [-1/2, 1/2]; tests/ops/exponential_test.c checks every 499th float). NaN gives NaN.
//
// exp(x) is computed as 2^(x log2 e). Rounding that product adds |x| 2^-24 to the relative error, no more than rounding
// of x itself does. There is deliberately no two-part reduction: -fassociative-math could undo it.
static inline float bl__exp2_within(float x, const float low, const float high) {
  x = x < low ? low : x;
  x = x > high ? high : x;
#if defined(__SSE4_1__) || !defined(__SSE2__)
  float whole = __builtin_rintf(x);
#else
  float whole = (float)(int)(x + (x < 0 ? -0.5f : 0.5f)); // no packed rounding before SSE 4.1
#endif
  float f = x - whole;
  float p = 1.535336188319500e-4f;
  p = p * f + 1.339887440266574e-3f;
  p = p * f + 9.618437357674640e-3f;
  p = p * f + 5.550332471162809e-2f;
  p = p * f + 2.402264791363012e-1f;
  p = p * f + 6.931472028550421e-1f;
  p = p * f + 1.0f;
  union {
    int32_t bits;
    float value;
  } power = {.bits = (int32_t)(((uint32_t)(int32_t)whole + 127u) << 23)};
  return p * power.value;
}

static inline float bl__exp2(float x) {
  return bl__exp2_within(x, -126.0f, 127.0f);
}

static inline float bl__exp(float x) {
  return bl__exp2(x * BL_LOG2_E);
}

// exp(-x) bounded by 2^64, for sigmoid(x) = 1 / (1 + exp(-x)) = s and 1 - s = exp(-x) s. Products of it and of x stay
// finite in any order of evaluation. Replacing a smaller sigmoid with 2^-64 is below every rounding error.
static inline float bl__exp_of_minus(float x) {
  return bl__exp2_within(x * -BL_LOG2_E, -126.0f, 64.0f);
}

// tanh(x): relative error below 2^-22, |result| at most 1, odd. Near 0, where 1 - exp(-2 |x|) would cancel, it is the
// polynomial of Cephes' tanhf. NaN gives NaN.
static inline float bl__tanh(float x) {
  const float size = __builtin_fabsf(x), square = x * x;
  float p = -5.70498872745e-3f;
  p = p * square + 2.06390887954e-2f;
  p = p * square - 5.37397155531e-2f;
  p = p * square + 1.33314422036e-1f;
  p = p * square - 3.33332819422e-1f;
  const float small = x + x * (square * p);
  const float e = bl__exp_of_minus(2.0f * size);
  const float large = __builtin_copysignf((1.0f - e) / (1.0f + e), x);
  return size < 0.625f ? small : large;
}

#endif
