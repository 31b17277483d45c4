// SPDX-License-Identifier: Apache-2.0
// Loss over rows of logits, and drawing a token from one row.
#include "compute/ops/host/compute.h"

#include <math.h>

void bl__cross_entropy(bl_compute_t *compute, uint64_t rows, uint64_t vocab, bl_compute_dtype_t dtype,
                       const int32_t *labels, float scale, float *logits, double *row_losses) {
  BL__PARALLEL(compute, rows, 1, part) {
    for (size_t row = part.first; row < part.last; row++) {
      row_losses[row] =
          bl__typed(compute, dtype)->cross_entropy(vocab, (size_t)labels[row], scale, logits + row * vocab);
    }
  }
}

void bl__loss_sum(bl_compute_t *compute, uint64_t rows, const double *row_losses, double *loss,
                  int64_t *first_bad_row) {
  (void)compute;
  double sum = 0.0;
  int64_t bad = -1;
  for (uint64_t row = 0; row < rows; row++) {
    sum += row_losses[row];
    if (bad < 0 && !isfinite(row_losses[row])) {
      bad = (int64_t)row;
    }
  }
  *loss = sum;
  *first_bad_row = bad;
}

int32_t bl__draw(bl_compute_t *compute, uint64_t vocab, const float *row, float temperature, double uniform) {
  (void)compute;
  uint64_t largest = 0;
  for (uint64_t i = 0; i < vocab; i++) {
    if (!isfinite(row[i])) {
      return -1;
    }
    if (row[i] > row[largest]) {
      largest = i;
    }
  }
  if (temperature <= 0.0f) {
    return (int32_t)largest;
  }
  // Two passes instead of a buffer: the sum, then the token at which the running sum passes its share.
  const double inverse = 1.0 / (double)temperature;
  double total = 0.0;
  for (uint64_t i = 0; i < vocab; i++) {
    total += exp(((double)row[i] - (double)row[largest]) * inverse);
  }
  double running = 0.0;
  for (uint64_t i = 0; i < vocab; i++) {
    running += exp(((double)row[i] - (double)row[largest]) * inverse);
    if (running > uniform * total) {
      return (int32_t)i;
    }
  }
  return (int32_t)largest; // rounding left the last sum below uniform
}
