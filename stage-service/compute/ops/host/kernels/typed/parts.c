// SPDX-License-Identifier: Apache-2.0
// The sum over the parts of a layer. Compiled without -fassociative-math, so that the tree is evaluated as written and
// every compiler gives the same bits.
#include "compute/ops/host/kernels/functions.h"
#include "compute/ops/host/kernels/typed/element.h"

#define PIECE  128
#define LEVELS 7 // sums that wait, for at most 64 parts, and the last one

// Reads one part, adds as many waiting sums of earlier parts as a binary counter says (model/fold.h), and stores the
// result among them. Returns its address.
static float *add_part(uint32_t part, size_t count, const bl__element_t *x, float sums[LEVELS][PIECE]) {
  uint32_t level = 0;
  while ((part >> level & 1) != 0) {
    level++;
  }
  float *to = sums[level];
#pragma GCC ivdep
  for (size_t i = 0; i < count; i++) {
    to[i] = bl__float_of(x[i]);
  }
  for (uint32_t below = 0; below < level; below++) {
    const float *from = sums[below];
#pragma GCC ivdep
    for (size_t i = 0; i < count; i++) {
      to[i] = from[i] + to[i];
    }
  }
  return to;
}

void BL_KERNEL(sum_parts)(size_t first, size_t count, uint32_t parts, const void *const *x, const float *bias,
                          const void *residual, void *y) {
  const bl__element_t *rest = residual;
  bl__element_t *sum = (bl__element_t *)y + first;
  float sums[LEVELS][PIECE];
  for (size_t start = 0; start < count; start += PIECE) {
    const size_t left = count - start, length = left < PIECE ? left : PIECE;
    float *total = sums[0];
    for (uint32_t part = 0; part < parts; part++) {
      total = add_part(part, length, (const bl__element_t *)x[part] + first + start, sums);
    }
    for (size_t i = 0; bias && i < length; i++) {
      total[i] += bias[start + i];
    }
#pragma GCC ivdep
    for (size_t i = 0; rest && i < length; i++) {
      total[i] += bl__float_of(rest[first + start + i]);
    }
#pragma GCC ivdep
    for (size_t i = 0; i < length; i++) {
      sum[start + i] = bl__element_of(total[i]);
    }
  }
}
