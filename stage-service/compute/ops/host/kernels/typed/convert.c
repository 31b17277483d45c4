// SPDX-License-Identifier: Apache-2.0
// Loops over elements: sums, and conversions from and to float.
#include "compute/ops/host/kernels/functions.h"
#include "compute/ops/host/kernels/typed/element.h"

void BL_KERNEL(add)(size_t count, const void *a_elements, const void *b_elements, void *y_elements) {
  const bl__element_t *a = a_elements, *b = b_elements;
  bl__element_t *y = y_elements;
#pragma GCC ivdep
  for (size_t i = 0; i < count; i++) {
    y[i] = bl__element_of(bl__float_of(a[i]) + bl__float_of(b[i]));
  }
}

void BL_KERNEL(embed)(size_t count, float scale, const float *restrict token, const float *restrict position,
                      void *x_elements) {
  bl__element_t *restrict x = x_elements;
  for (size_t i = 0; position && i < count; i++) {
    x[i] = bl__element_of(scale * token[i] + position[i]);
  }
  for (size_t i = 0; !position && i < count; i++) {
    x[i] = bl__element_of(scale * token[i]);
  }
}

void BL_KERNEL(accumulate_gradient)(size_t count, float scale, const void *x_elements, float *restrict y) {
  const bl__element_t *restrict x = x_elements;
  for (size_t i = 0; i < count; i++) {
    y[i] += scale * bl__float_of(x[i]);
  }
}

void BL_KERNEL(widen)(size_t count, const void *x_elements, float *restrict y) {
  const bl__element_t *restrict x = x_elements;
  for (size_t i = 0; i < count; i++) {
    y[i] = bl__float_of(x[i]);
  }
}

void BL_KERNEL(narrow)(size_t count, const float *restrict x, void *y_elements) {
  bl__element_t *restrict y = y_elements;
  for (size_t i = 0; i < count; i++) {
    y[i] = bl__element_of(x[i]);
  }
}
