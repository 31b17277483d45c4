// SPDX-License-Identifier: Apache-2.0
// RMSNorm of the heads of queries and keys inside rows of qkv (Henry et al. 2020, arXiv 2010.04245, as in Qwen3 and
// Gemma 3): each head is a row of the RMSNorm of norm.c.
#include "base/minmax.h"
#include "compute/ops/host/kernels/functions.h"
#include "compute/ops/host/kernels/typed/element.h"

#include <math.h>

#define HEADS 32 // heads whose statistics are kept at a time

void BL_KERNEL(head_norm_forward)(size_t rows, const bl_head_norm_shape_t *shape, const void *qkv,
                                  const float *query_gain, const float *key_gain, void *y) {
  const size_t width = shape->head_dim, values = shape->kv_heads * width;
  const bl__element_t *from = qkv;
  bl__element_t *to = y;
  float unused[HEADS], deviations[HEADS];
  for (size_t row = 0; row < rows; row++) {
    for (size_t kind = 0; kind < 2; kind++) {
      size_t left = kind == 0 ? shape->heads : shape->kv_heads;
      while (left > 0) {
        const size_t count = bl_min_u64(left, HEADS);
        BL_KERNEL(norm_forward)
        (count, width, true, shape->epsilon, shape->gain_offset, from, kind == 0 ? query_gain : key_gain, NULL, to,
         unused, deviations);
        from += count * width;
        to += count * width;
        left -= count;
      }
    }
    memcpy(to, from, values * sizeof *to);
    from += values;
    to += values;
  }
}

// 1 / root mean squares, as in norm_forward.
static void deviations_of(size_t heads, size_t width, float epsilon, const bl__element_t *x, float *deviations) {
  const float inverse_width = 1.0f / (float)width;
  for (size_t head = 0; head < heads; head++, x += width) {
    float squares = 0.0f;
    for (size_t i = 0; i < width; i++) {
      squares += bl__float_of(x[i]) * bl__float_of(x[i]);
    }
    deviations[head] = 1.0f / sqrtf(squares * inverse_width + epsilon);
  }
}

void BL_KERNEL(head_norm_backward)(size_t rows, const bl_head_norm_shape_t *shape, const void *dy_rows, const void *qkv,
                                   const float *query_gain, const float *key_gain, void *dqkv, float *partials) {
  const size_t width = shape->head_dim, values = shape->kv_heads * width;
  const bl__element_t *x = qkv, *dy = dy_rows;
  bl__element_t *dx = dqkv;
  float deviations[HEADS];
  for (size_t row = 0; row < rows; row++) {
    for (size_t kind = 0; kind < 2; kind++) {
      size_t left = kind == 0 ? shape->heads : shape->kv_heads;
      while (left > 0) {
        const size_t count = bl_min_u64(left, HEADS);
        deviations_of(count, width, shape->epsilon, x, deviations);
        BL_KERNEL(norm_partials)(count, width, width, dy, x, NULL, deviations, partials + kind * width, NULL);
        BL_KERNEL(norm_backward)
        (count, width, true, shape->gain_offset, dy, x, kind == 0 ? query_gain : key_gain, NULL, deviations, NULL, dx);
        x += count * width;
        dy += count * width;
        dx += count * width;
        left -= count;
      }
    }
    memcpy(dx, dy, values * sizeof *dx);
    x += values;
    dy += values;
    dx += values;
  }
}
