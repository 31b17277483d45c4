// SPDX-License-Identifier: Apache-2.0
// LayerNorm (Ba, Kiros, Hinton 2016) and RMSNorm (Zhang, Sennrich 2019).
//
//   normalized = (x - mean) r,  r = 1 / sqrt(var + epsilon)          y = normalized gain + bias
//   dx = r (g - mean(g) - normalized mean(g normalized)),  g = dy gain; RMSNorm has neither mean nor mean(g)
#include "compute/ops/host/kernels/functions.h"
#include "compute/ops/host/kernels/typed/element.h"

#include <math.h>

void BL_KERNEL(norm_forward)(size_t rows, size_t width, bool rms, float epsilon, float gain_offset, const void *x_rows,
                             const float *gain, const float *bias, void *y_rows, float *means, float *deviations) {
  const bl__element_t *x = x_rows;
  bl__element_t *y = y_rows;
  const float inverse_width = 1.0f / (float)width;
  for (size_t row = 0; row < rows; row++, x += width, y += width) {
    float mean = 0.0f;
    if (!rms) {
      for (size_t i = 0; i < width; i++) {
        mean += bl__float_of(x[i]);
      }
      mean *= inverse_width;
      means[row] = mean;
    }
    float squares = 0.0f;
    for (size_t i = 0; i < width; i++) {
      float centered = bl__float_of(x[i]) - mean;
      squares += centered * centered;
    }
    float r = 1.0f / sqrtf(squares * inverse_width + epsilon);
    deviations[row] = r;
    if (rms) {
      for (size_t i = 0; i < width; i++) {
        y[i] = bl__element_of(bl__float_of(x[i]) * r * (gain[i] + gain_offset));
      }
    } else {
      for (size_t i = 0; i < width; i++) {
        y[i] = bl__element_of((bl__float_of(x[i]) - mean) * r * (gain[i] + gain_offset) + bias[i]);
      }
    }
  }
}

void BL_KERNEL(norm_backward)(size_t rows, size_t width, bool rms, float gain_offset, const void *dy_rows,
                              const void *x_rows, const float *gain, const float *means, const float *deviations,
                              const void *residual_rows, void *dx_rows) {
  const bl__element_t *dy = dy_rows, *x = x_rows, *residual_gradient = residual_rows;
  bl__element_t *dx = dx_rows;
  const float inverse_width = 1.0f / (float)width;
  for (size_t row = 0; row < rows; row++, x += width, dy += width, dx += width) {
    const float mean = rms ? 0.0f : means[row];
    const float r = deviations[row];
    float sum = 0.0f, dot = 0.0f;
    for (size_t i = 0; i < width; i++) {
      float g = bl__float_of(dy[i]) * (gain[i] + gain_offset);
      sum += g;
      dot += g * (bl__float_of(x[i]) - mean);
    }
    sum = rms ? 0.0f : sum * inverse_width;
    dot *= r * r * inverse_width; // times (x - mean) gives normalized mean(g normalized)
    if (residual_gradient) {
#pragma GCC ivdep // dx may be x, dy or the residual gradient: always the same element
      for (size_t i = 0; i < width; i++) {
        dx[i] = bl__element_of(
            r * (bl__float_of(dy[i]) * (gain[i] + gain_offset) - sum - (bl__float_of(x[i]) - mean) * dot) +
            bl__float_of(residual_gradient[i]));
      }
      residual_gradient += width;
    } else {
#pragma GCC ivdep
      for (size_t i = 0; i < width; i++) {
        dx[i] = bl__element_of(
            r * (bl__float_of(dy[i]) * (gain[i] + gain_offset) - sum - (bl__float_of(x[i]) - mean) * dot));
      }
    }
  }
}

void BL_KERNEL(norm_partials)(size_t rows, size_t columns, size_t stride, const void *dy_rows, const void *x_rows,
                              const float *means, const float *deviations, float *restrict dgain,
                              float *restrict dbias) {
  const bl__element_t *dy = dy_rows, *x = x_rows;
  for (size_t row = 0; row < rows; row++, dy += stride, x += stride) {
    const float r = deviations[row];
    if (dbias) {
      const float mean = means[row];
      for (size_t i = 0; i < columns; i++) {
        const float gradient = bl__float_of(dy[i]);
        dgain[i] += gradient * (bl__float_of(x[i]) - mean) * r;
        dbias[i] += gradient;
      }
    } else {
      for (size_t i = 0; i < columns; i++) {
        dgain[i] += bl__float_of(dy[i]) * bl__float_of(x[i]) * r;
      }
    }
  }
}

void BL_KERNEL(column_sums)(size_t rows, size_t columns, size_t stride, const void *x_rows, float *restrict sums) {
  const bl__element_t *x = x_rows;
  // Four rows at a time: a quarter of the traffic on `sums`.
  size_t row = 0;
  for (; row + 4 <= rows; row += 4, x += 4 * stride) {
    const bl__element_t *a = x, *b = x + stride, *c = x + 2 * stride, *d = x + 3 * stride;
    for (size_t i = 0; i < columns; i++) {
      sums[i] += (bl__float_of(a[i]) + bl__float_of(b[i])) + (bl__float_of(c[i]) + bl__float_of(d[i]));
    }
  }
  for (; row < rows; row++, x += stride) {
    for (size_t i = 0; i < columns; i++) {
      sums[i] += bl__float_of(x[i]);
    }
  }
}
