// SPDX-License-Identifier: Apache-2.0
// GELU in its tanh form (Hendrycks, Gimpel 2016) and SwiGLU (Shazeer 2020).
//
// With tanh(u) = 2 sigmoid(2u) - 1, GELU is x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3): no cancellation for
// negative x, and one exponential.
#include "compute/ops/host/kernels/functions.h"

// 2 sqrt(2/pi) and its product with 0.044715
#define GELU_LINEAR 1.5957691216057308f
#define GELU_CUBIC  0.0713548162726009f

void BL_KERNEL(gelu_forward)(size_t count, const float *restrict pre, float *restrict act) {
  for (size_t i = 0; i < count; i++) {
    float x = pre[i];
    act[i] = x / (1.0f + bl__exp_of_minus(x * (GELU_LINEAR + GELU_CUBIC * x * x)));
  }
}

void BL_KERNEL(gelu_backward)(size_t count, const float *dact, const float *pre, float *dpre) {
#pragma GCC ivdep
  for (size_t i = 0; i < count; i++) {
    float x = pre[i];
    float e = bl__exp_of_minus(x * (GELU_LINEAR + GELU_CUBIC * x * x));
    float s = 1.0f / (1.0f + e);
    float slope = GELU_LINEAR + 3.0f * GELU_CUBIC * x * x;
    dpre[i] = dact[i] * s * (1.0f + x * slope * e * s); // 1 - s = e s
  }
}

void BL_KERNEL(swiglu_forward)(size_t rows, size_t width, const float *restrict pre, float *restrict act) {
  for (size_t row = 0; row < rows; row++, pre += 2 * width, act += width) {
    for (size_t i = 0; i < width; i++) {
      float gate = pre[i];
      act[i] = gate / (1.0f + bl__exp_of_minus(gate)) * pre[width + i];
    }
  }
}

void BL_KERNEL(swiglu_backward)(size_t rows, size_t width, const float *restrict dact, const float *pre, float *dpre) {
  for (size_t row = 0; row < rows; row++, pre += 2 * width, dpre += 2 * width, dact += width) {
    const float *gates = pre, *ups = pre + width;
    float *dgates = dpre, *dups = dpre + width;
#pragma GCC ivdep
    for (size_t i = 0; i < width; i++) {
      float gate = gates[i], up = ups[i];
      float e = bl__exp_of_minus(gate);
      float s = 1.0f / (1.0f + e);
      dgates[i] = dact[i] * up * s * (1.0f + gate * e * s);
      dups[i] = dact[i] * gate * s;
    }
  }
}
