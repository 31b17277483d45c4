// SPDX-License-Identifier: Apache-2.0
#include "compute/ops/host/compute.h"

#include <string.h>

// Gradients of gains are summed over ranges of rows, and the range sums are added in order. The number of ranges
// depends on the shape alone, so the thread count does not matter. If not even two fit, there is one range.
#define RANGES_MAX 32
#define SUMS       (16u << 10) // floats

void bl__head_norm_forward(bl_compute_t *compute, const bl_head_norm_shape_t *shape, const void *qkv,
                           const float *query_gain, const float *key_gain, void *y) {
  const size_t stride = (shape->heads + 2 * shape->kv_heads) * shape->head_dim;
  BL__PARALLEL(compute, shape->rows, 1, rows) {
    bl__typed(compute, shape->dtype)
        ->head_norm_forward(rows.last - rows.first, shape, bl__element(shape->dtype, qkv, rows.first * stride),
                            query_gain, key_gain, bl__element_to(shape->dtype, y, rows.first * stride));
  }
}

void bl__head_norm_backward(bl_compute_t *compute, const bl_head_norm_shape_t *shape, const void *dy, const void *qkv,
                            const float *query_gain, const float *key_gain, void *dqkv, float *partials) {
  const size_t stride = (shape->heads + 2 * shape->kv_heads) * shape->head_dim, gains = 2 * shape->head_dim;
  const size_t fit = SUMS / gains, count = fit < 2 ? 1 : fit < RANGES_MAX ? fit : RANGES_MAX;
  float sums[SUMS];
  if (count > 1) {
    memset(sums, 0, count * gains * sizeof *sums);
  }
  memset(partials, 0, gains * sizeof *partials);
  BL__PARALLEL(compute, count, 1, ranges) {
    for (size_t i = ranges.first; i < ranges.last; i++) {
      const bl__range_t rows = bl__share(shape->rows, 1, i, count);
      const size_t offset = rows.first * stride;
      bl__typed(compute, shape->dtype)
          ->head_norm_backward(rows.last - rows.first, shape, bl__element(shape->dtype, dy, offset),
                               bl__element(shape->dtype, qkv, offset), query_gain, key_gain,
                               bl__element_to(shape->dtype, dqkv, offset), count > 1 ? sums + i * gains : partials);
    }
  }
  for (size_t i = 0; count > 1 && i < count; i++) {
    compute->kernels->accumulate(gains, sums + i * gains, partials);
  }
}
