// SPDX-License-Identifier: Apache-2.0
#include "compute/ops/host/compute.h"

#include <string.h>

// Rows whose parameter and input gradients are computed together while the rows are in cache.
#define ROWS_TOGETHER 16

void bl__norm_forward(bl_compute_t *compute, const bl_norm_shape_t *shape, const void *x, const float *gain,
                      const float *bias, void *y, float *stats) {
  float *deviations = shape->rms ? stats : stats + shape->rows;
  BL__PARALLEL(compute, shape->rows, 1, rows) {
    const size_t offset = rows.first * shape->width;
    bl__typed(compute, shape->dtype)
        ->norm_forward(rows.last - rows.first, shape->width, shape->rms, shape->epsilon, shape->gain_offset,
                       bl__element(shape->dtype, x, offset), gain, bias, bl__element_to(shape->dtype, y, offset),
                       stats + rows.first, deviations + rows.first);
  }
}

// One thread's work for its rows of dx and, if it is the only thread, for the parameters as well.
static void backward_rows(bl_compute_t *compute, const bl_norm_shape_t *shape, bl__range_t rows, const void *dy,
                          const void *x, const float *gain, const float *stats, const void *residual_gradient,
                          void *dx) {
  const float *deviations = shape->rms ? stats : stats + shape->rows;
  const size_t offset = rows.first * shape->width;
  const bl_compute_dtype_t dtype = shape->dtype;
  bl__typed(compute, dtype)
      ->norm_backward(rows.last - rows.first, shape->width, shape->rms, shape->gain_offset,
                      bl__element(dtype, dy, offset), bl__element(dtype, x, offset), gain, stats + rows.first,
                      deviations + rows.first, bl__element(dtype, residual_gradient, offset),
                      bl__element_to(dtype, dx, offset));
}

// Every column is summed in row order by whichever thread, so that the thread count does not matter.
static void partial_columns(bl_compute_t *compute, const bl_norm_shape_t *shape, bl__range_t rows, bl__range_t columns,
                            const void *dy, const void *x, const float *stats, float *partials) {
  const float *deviations = shape->rms ? stats : stats + shape->rows;
  const size_t offset = rows.first * shape->width + columns.first;
  bl__typed(compute, shape->dtype)
      ->norm_partials(rows.last - rows.first, columns.last - columns.first, shape->width,
                      bl__element(shape->dtype, dy, offset), bl__element(shape->dtype, x, offset), stats + rows.first,
                      deviations + rows.first, partials + columns.first,
                      shape->rms ? NULL : partials + shape->width + columns.first);
}

void bl__norm_backward(bl_compute_t *compute, const bl_norm_shape_t *shape, const void *dy, const void *x,
                       const float *gain, const float *stats, const void *residual_gradient, void *dx,
                       float *partials) {
  if (partials) {
    memset(partials, 0, (shape->rms ? 1 : 2) * shape->width * sizeof(float));
  }
  if (compute->threads == 1) {
    const bl__range_t columns = {0, shape->width};
    for (size_t first = 0; first < shape->rows; first += ROWS_TOGETHER) {
      const size_t left = shape->rows - first;
      const bl__range_t rows = {first, first + (left < ROWS_TOGETHER ? left : ROWS_TOGETHER)};
      if (partials) {
        partial_columns(compute, shape, rows, columns, dy, x, stats, partials);
      }
      backward_rows(compute, shape, rows, dy, x, gain, stats, residual_gradient, dx);
    }
    return;
  }
  if (partials) { // first, because dx may be dy
    BL__PARALLEL(compute, shape->width, 16, columns) {
      partial_columns(compute, shape, (bl__range_t){0, shape->rows}, columns, dy, x, stats, partials);
    }
  }
  BL__PARALLEL(compute, shape->rows, 1, rows) {
    backward_rows(compute, shape, rows, dy, x, gain, stats, residual_gradient, dx);
  }
}
