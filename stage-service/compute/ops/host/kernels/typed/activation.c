// SPDX-License-Identifier: Apache-2.0
// GELU in its tanh form (Hendrycks, Gimpel 2016) and the gated forms SwiGLU and GeGLU (Shazeer 2020).
//
// With tanh(u) = 2 sigmoid(2u) - 1, GELU is x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3). This needs one
// exponential and does not cancel for negative x.
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

// Both kinds of gate have the form f(x) = x s(v) with s = sigmoid and v = x (SiLU) or the argument of GELU, so that
// f'(x) = s (1 + x v' (1 - s)) and 1 - s = exp(-v) s. `gate` is a constant in each call, which gives one loop per kind.
__attribute__((always_inline)) static inline float argument(const bl_gate_t gate, float x) {
  return gate == BL_GATE_SILU ? x : x * (GELU_LINEAR + GELU_CUBIC * x * x);
}

__attribute__((always_inline)) static inline float argument_slope(const bl_gate_t gate, float x) {
  return gate == BL_GATE_SILU ? 1.0f : GELU_LINEAR + 3.0f * GELU_CUBIC * x * x;
}

__attribute__((always_inline)) static inline void forward(const bl_gate_t gate, size_t rows, size_t width,
                                                          const bl__element_t *restrict pre,
                                                          bl__element_t *restrict act) {
  for (size_t row = 0; row < rows; row++, pre += 2 * width, act += width) {
    for (size_t i = 0; i < width; i++) {
      float x = bl__float_of(pre[i]);
      act[i] = bl__element_of(x / (1.0f + bl__exp_of_minus(argument(gate, x))) * bl__float_of(pre[width + i]));
    }
  }
}

__attribute__((always_inline)) static inline void backward(const bl_gate_t gate, size_t rows, size_t width,
                                                           const bl__element_t *restrict dact, const bl__element_t *pre,
                                                           bl__element_t *dpre) {
  for (size_t row = 0; row < rows; row++, pre += 2 * width, dpre += 2 * width, dact += width) {
    const bl__element_t *gates = pre, *ups = pre + width;
    bl__element_t *dgates = dpre, *dups = dpre + width;
#pragma GCC ivdep
    for (size_t i = 0; i < width; i++) {
      float x = bl__float_of(gates[i]), up = bl__float_of(ups[i]), gradient = bl__float_of(dact[i]);
      float e = bl__exp_of_minus(argument(gate, x));
      float s = 1.0f / (1.0f + e);
      dgates[i] = bl__element_of(gradient * up * s * (1.0f + x * argument_slope(gate, x) * e * s));
      dups[i] = bl__element_of(gradient * x * s);
    }
  }
}

void BL_KERNEL(gated_forward)(bl_gate_t gate, size_t rows, size_t width, const void *pre, void *act) {
  if (gate == BL_GATE_SILU) {
    forward(BL_GATE_SILU, rows, width, pre, act);
  } else {
    forward(BL_GATE_GELU, rows, width, pre, act);
  }
}

void BL_KERNEL(gated_backward)(bl_gate_t gate, size_t rows, size_t width, const void *dact, const void *pre,
                               void *dpre) {
  if (gate == BL_GATE_SILU) {
    backward(BL_GATE_SILU, rows, width, dact, pre, dpre);
  } else {
    backward(BL_GATE_GELU, rows, width, dact, pre, dpre);
  }
}
