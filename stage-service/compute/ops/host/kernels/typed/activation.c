// SPDX-License-Identifier: Apache-2.0
// GELU in its tanh form (Hendrycks, Gimpel 2016) and SwiGLU (Shazeer 2020).
//
// With tanh(u) = 2 sigmoid(2u) - 1, GELU is x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3): no cancellation for
// negative x, and one exponential.
#include "compute/ops/host/kernels/functions.h"
#include "compute/ops/host/kernels/typed/element.h"

// 2 sqrt(2/pi) and its product with 0.044715
#define GELU_LINEAR 1.5957691216057308f
#define GELU_CUBIC  0.0713548162726009f

void BL_KERNEL(gelu_forward)(size_t count, const void *pre_elements, void *act_elements) {
  const bl__element_t *restrict pre = pre_elements;
  bl__element_t *restrict act = act_elements;
  for (size_t i = 0; i < count; i++) {
    float x = bl__float_of(pre[i]);
    act[i] = bl__element_of(x / (1.0f + bl__exp_of_minus(x * (GELU_LINEAR + GELU_CUBIC * x * x))));
  }
}

void BL_KERNEL(gelu_backward)(size_t count, const void *dact_elements, const void *pre_elements, void *dpre_elements) {
  const bl__element_t *dact = dact_elements, *pre = pre_elements;
  bl__element_t *dpre = dpre_elements;
#pragma GCC ivdep
  for (size_t i = 0; i < count; i++) {
    float x = bl__float_of(pre[i]);
    float e = bl__exp_of_minus(x * (GELU_LINEAR + GELU_CUBIC * x * x));
    float s = 1.0f / (1.0f + e);
    float slope = GELU_LINEAR + 3.0f * GELU_CUBIC * x * x;
    dpre[i] = bl__element_of(bl__float_of(dact[i]) * s * (1.0f + x * slope * e * s)); // 1 - s = e s
  }
}

void BL_KERNEL(swiglu_forward)(size_t rows, size_t width, const void *pre_rows, void *act_rows) {
  const bl__element_t *restrict pre = pre_rows;
  bl__element_t *restrict act = act_rows;
  for (size_t row = 0; row < rows; row++, pre += 2 * width, act += width) {
    for (size_t i = 0; i < width; i++) {
      float gate = bl__float_of(pre[i]);
      act[i] = bl__element_of(gate / (1.0f + bl__exp_of_minus(gate)) * bl__float_of(pre[width + i]));
    }
  }
}

void BL_KERNEL(swiglu_backward)(size_t rows, size_t width, const void *dact_rows, const void *pre_rows,
                                void *dpre_rows) {
  const bl__element_t *restrict dact = dact_rows, *pre = pre_rows;
  bl__element_t *dpre = dpre_rows;
  for (size_t row = 0; row < rows; row++, pre += 2 * width, dpre += 2 * width, dact += width) {
    const bl__element_t *gates = pre, *ups = pre + width;
    bl__element_t *dgates = dpre, *dups = dpre + width;
#pragma GCC ivdep
    for (size_t i = 0; i < width; i++) {
      float gate = bl__float_of(gates[i]), up = bl__float_of(ups[i]), gradient = bl__float_of(dact[i]);
      float e = bl__exp_of_minus(gate);
      float s = 1.0f / (1.0f + e);
      dgates[i] = bl__element_of(gradient * up * s * (1.0f + gate * e * s));
      dups[i] = bl__element_of(gradient * gate * s);
    }
  }
}
