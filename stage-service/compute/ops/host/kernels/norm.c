// SPDX-License-Identifier: Apache-2.0
// LayerNorm (Ba, Kiros, Hinton 2016) and RMSNorm (Zhang, Sennrich 2019).
//
//   normalized = (x - mean) r,  r = 1 / sqrt(var + epsilon)          y = normalized gain + bias
//   dx = r (g - mean(g) - normalized mean(g normalized)),  g = dy gain; RMSNorm has neither mean nor mean(g)
#include "compute/ops/host/kernels/functions.h"

#include <math.h>

void BL_KERNEL(norm_forward)(size_t rows, size_t width, bool rms, float epsilon, const float *x, const float *gain,
                             const float *bias, float *y, float *means, float *deviations) {
  const float inverse_width = 1.0f / (float)width;
  for (size_t row = 0; row < rows; row++, x += width, y += width) {
    float mean = 0.0f;
    if (!rms) {
      for (size_t i = 0; i < width; i++) {
        mean += x[i];
      }
      mean *= inverse_width;
      means[row] = mean;
    }
    float squares = 0.0f;
    for (size_t i = 0; i < width; i++) {
      float centered = x[i] - mean;
      squares += centered * centered;
    }
    float r = 1.0f / sqrtf(squares * inverse_width + epsilon);
    deviations[row] = r;
    if (rms) {
      for (size_t i = 0; i < width; i++) {
        y[i] = x[i] * r * gain[i];
      }
    } else {
      for (size_t i = 0; i < width; i++) {
        y[i] = (x[i] - mean) * r * gain[i] + bias[i];
      }
    }
  }
}

void BL_KERNEL(norm_backward)(size_t rows, size_t width, bool rms, const float *dy, const float *x, const float *gain,
                              const float *means, const float *deviations, const float *residual_gradient, float *dx) {
  const float inverse_width = 1.0f / (float)width;
  for (size_t row = 0; row < rows; row++, x += width, dy += width, dx += width) {
    const float mean = rms ? 0.0f : means[row];
    const float r = deviations[row];
    float sum = 0.0f, dot = 0.0f;
    for (size_t i = 0; i < width; i++) {
      float g = dy[i] * gain[i];
      sum += g;
      dot += g * (x[i] - mean);
    }
    sum = rms ? 0.0f : sum * inverse_width;
    dot *= r * r * inverse_width; // times (x - mean) gives normalized mean(g normalized)
    if (residual_gradient) {
#pragma GCC ivdep // dx may be x, dy or the residual: the same element
      for (size_t i = 0; i < width; i++) {
        dx[i] = r * (dy[i] * gain[i] - sum - (x[i] - mean) * dot) + residual_gradient[i];
      }
      residual_gradient += width;
    } else {
#pragma GCC ivdep
      for (size_t i = 0; i < width; i++) {
        dx[i] = r * (dy[i] * gain[i] - sum - (x[i] - mean) * dot);
      }
    }
  }
}

void BL_KERNEL(norm_partials)(size_t rows, size_t columns, size_t stride, const float *dy, const float *x,
                              const float *means, const float *deviations, float *restrict dgain,
                              float *restrict dbias) {
  for (size_t row = 0; row < rows; row++, dy += stride, x += stride) {
    const float r = deviations[row];
    if (dbias) {
      const float mean = means[row];
      for (size_t i = 0; i < columns; i++) {
        dgain[i] += dy[i] * (x[i] - mean) * r;
        dbias[i] += dy[i];
      }
    } else {
      for (size_t i = 0; i < columns; i++) {
        dgain[i] += dy[i] * x[i] * r;
      }
    }
  }
}

void BL_KERNEL(column_sums)(size_t rows, size_t columns, size_t stride, const float *x, float *sums) {
  // Four rows at a time: a quarter of the traffic on `sums`.
  size_t row = 0;
  for (; row + 4 <= rows; row += 4, x += 4 * stride) {
    const float *a = x, *b = x + stride, *c = x + 2 * stride, *d = x + 3 * stride;
    for (size_t i = 0; i < columns; i++) {
      sums[i] += (a[i] + b[i]) + (c[i] + d[i]);
    }
  }
  for (; row < rows; row++, x += stride) {
    for (size_t i = 0; i < columns; i++) {
      sums[i] += x[i];
    }
  }
}
