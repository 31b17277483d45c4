// SPDX-License-Identifier: Apache-2.0
// Loops over floats, independent of the type of activations: optimizer, sums, tiles of packed keys.
#include "compute/ops/host/kernels/functions.h"
#include "compute/ops/host/kernels/vector.h"

#include <math.h>

void BL_KERNEL(adamw)(size_t count, const bl_adamw_t *options, const float *restrict dw, float *restrict w,
                      float *restrict m, float *restrict v) {
  const float beta1 = options->beta1, beta2 = options->beta2;
  const float rest1 = 1.0f - beta1, rest2 = 1.0f - beta2;
  const float keep = 1.0f - options->rate * options->weight_decay;
  const float step = options->rate / options->correction1;
  const float inverse_root2 = 1.0f / sqrtf(options->correction2);
  const float epsilon = options->epsilon, scale = options->gradient_scale;
  for (size_t i = 0; i < count; i++) {
    float g = scale * dw[i];
    float first = beta1 * m[i] + rest1 * g;
    float second = beta2 * v[i] + rest2 * g * g;
    m[i] = first;
    v[i] = second;
    w[i] = keep * w[i] - step * first / (sqrtf(second) * inverse_root2 + epsilon);
  }
}

double BL_KERNEL(sum_squares)(size_t count, const float *x) {
  double sum = 0.0;
  for (size_t i = 0; i < count; i++) {
    sum += (double)x[i] * (double)x[i];
  }
  return sum;
}

void BL_KERNEL(accumulate)(size_t count, const float *restrict x, float *restrict y) {
  for (size_t i = 0; i < count; i++) {
    y[i] += x[i];
  }
}

void BL_KERNEL(softcap)(size_t count, float softcap, float *x) {
  const float inverse = 1.0f / softcap;
  for (size_t i = 0; i < count; i++) {
    x[i] = softcap * bl__tanh(x[i] * inverse);
  }
}

void BL_KERNEL(fill)(size_t count, float value, float *y) {
  for (size_t i = 0; i < count; i++) {
    y[i] = value;
  }
}

void BL_KERNEL(softmax_statistics)(size_t vocab, const float *logits, float *largest, float *sum) {
  const float top = bl__largest(logits, vocab, -INFINITY);
  double total = 0.0; // as in cross_entropy
  for (size_t start = 0; start < vocab; start += 1024) {
    const size_t end = vocab - start < 1024 ? vocab : start + 1024;
    float piece = 0.0f;
    for (size_t i = start; i < end; i++) {
      piece += bl__exp(logits[i] - top);
    }
    total += (double)piece;
  }
  *largest = top;
  *sum = (float)total;
}

// Square blocks of BL__LANES rows in registers. Each round interleaves the first half of the vectors with the second,
// which rotates the bits of an element's index (row, column) by one place; after all bits of a row, rows are columns.
static inline void transpose_block(size_t width, const float *packed, float *transposed) {
  bl__vector_t lines[BL__LANES], zipped[BL__LANES];
#pragma GCC unroll 16
  for (size_t i = 0; i < BL__LANES; i++) {
    lines[i] = bl__load(packed + i * width);
  }
#pragma GCC unroll 4
  for (size_t bit = 1; bit < BL__LANES; bit *= 2) {
#pragma GCC unroll 16
    for (size_t i = 0; i < BL__LANES; i++) {
      zipped[i] = lines[i];
    }
#pragma GCC unroll 8
    for (size_t i = 0; i < BL__LANES / 2; i++) {
      lines[2 * i] = BL__ZIP_LOW(zipped[i], zipped[i + BL__LANES / 2]);
      lines[2 * i + 1] = BL__ZIP_HIGH(zipped[i], zipped[i + BL__LANES / 2]);
    }
  }
#pragma GCC unroll 16
  for (size_t i = 0; i < BL__LANES; i++) {
    *(bl__vector_t *)(transposed + i * BL_TILE) = lines[i];
  }
}

void BL_KERNEL(transpose)(size_t seq, size_t width, const float *packed, float *transposed) {
  for (size_t tile = 0; tile < bl__tiles(seq); tile++) {
    for (size_t row = 0; row < BL_TILE; row += BL__LANES) {
      for (size_t i = 0; i < width; i += BL__LANES) {
        transpose_block(width, packed + row * width + i, transposed + i * BL_TILE + row);
      }
    }
    packed += BL_TILE * width;
    transposed += BL_TILE * width;
  }
}
