// SPDX-License-Identifier: Apache-2.0
// Rotary positions (Su et al. 2021) in the half-split convention of transformers' rotate_half.
#include "compute/ops/host/kernels/functions.h"
#include "compute/ops/host/kernels/typed/element.h"

void BL_KERNEL(rope)(size_t heads, size_t head_dim, size_t dims, const float *restrict cosines,
                     const float *restrict sines, float sign, void *heads_of_row) {
  bl__element_t *row = heads_of_row;
  const size_t half = dims / 2;
  for (size_t head = 0; head < heads; head++, row += head_dim) {
    bl__element_t *low = row, *high = row + half;
#pragma GCC ivdep
    for (size_t i = 0; i < half; i++) {
      float a = bl__float_of(low[i]), b = bl__float_of(high[i]), c = cosines[i], s = sign * sines[i];
      low[i] = bl__element_of(a * c - b * s);
      high[i] = bl__element_of(b * c + a * s);
    }
  }
}
