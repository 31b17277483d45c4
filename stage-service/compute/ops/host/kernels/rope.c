// SPDX-License-Identifier: Apache-2.0
// Rotary positions (Su et al. 2021) in the half-split convention of transformers' rotate_half.
#include "compute/ops/host/kernels/functions.h"

void BL_KERNEL(rope)(size_t heads, size_t head_dim, const float *restrict cosines, const float *restrict sines,
                     float sign, float *restrict row) {
  const size_t half = head_dim / 2;
  for (size_t head = 0; head < heads; head++, row += head_dim) {
    float *low = row, *high = row + half;
#pragma GCC ivdep
    for (size_t i = 0; i < half; i++) {
      float a = low[i], b = high[i], c = cosines[i], s = sign * sines[i];
      low[i] = a * c - b * s;
      high[i] = b * c + a * s;
    }
  }
}
