// SPDX-License-Identifier: Apache-2.0
#include "compute/ops/host/compute.h"

#include <string.h>

// Rows whose parameter and input gradients are computed together while the rows are in cache.
#define ROWS_TOGETHER 16
// Gradients of parameters are summed over ranges of rows, and the range sums are added in order. The number of ranges
// depends on the shape alone, so the thread count does not matter.
#define RANGES_MAX 16
#define SUMS       (16u << 10) // floats

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

// Adds the gradients of the parameters of `columns` to sums [1 or 2, width].
static void add_columns(bl_compute_t *compute, const bl_norm_shape_t *shape, bl__range_t rows, bl__range_t columns,
                        const void *dy, const void *x, const float *stats, float *sums) {
  const float *deviations = shape->rms ? stats : stats + shape->rows;
  const size_t offset = rows.first * shape->width + columns.first;
  bl__typed(compute, shape->dtype)
      ->norm_partials(rows.last - rows.first, columns.last - columns.first, shape->width,
                      bl__element(shape->dtype, dy, offset), bl__element(shape->dtype, x, offset), stats + rows.first,
                      deviations + rows.first, sums + columns.first,
                      shape->rms ? NULL : sums + shape->width + columns.first);
}

static size_t count_ranges(const bl_norm_shape_t *shape, size_t parameters) {
  const size_t fit = SUMS / parameters, full = shape->rows / ROWS_TOGETHER;
  const size_t count = fit < full ? fit : full;
  return count < 1 ? 1 : count < RANGES_MAX ? count : RANGES_MAX;
}

void bl__norm_backward(bl_compute_t *compute, const bl_norm_shape_t *shape, const void *dy, const void *x,
                       const float *gain, const float *stats, const void *residual_gradient, void *dx,
                       float *partials) {
  const size_t parameters = (shape->rms ? 1 : 2) * shape->width, count = count_ranges(shape, parameters);
  if (!partials) {
    BL__PARALLEL(compute, shape->rows, 1, rows) {
      backward_rows(compute, shape, rows, dy, x, gain, stats, residual_gradient, dx);
    }
    return;
  }
  _Alignas(BL_CACHE_LINE_BYTES) float own[SUMS];
  float *sums = count > 1 ? own : partials; // [count, parameters]
  memset(sums, 0, count * parameters * sizeof *sums);
  if (compute->threads <= count) {
    BL__PARALLEL(compute, count, 1, ranges) {
      for (size_t i = ranges.first; i < ranges.last; i++) {
        bl__range_t rows = bl__share(shape->rows, 1, i, count);
        for (const size_t end = rows.last; rows.first < end; rows.first = rows.last) {
          rows.last = end - rows.first < ROWS_TOGETHER ? end : rows.first + ROWS_TOGETHER;
          add_columns(compute, shape, rows, (bl__range_t){0, shape->width}, dy, x, stats, sums + i * parameters);
          backward_rows(compute, shape, rows, dy, x, gain, stats, residual_gradient, dx);
        }
      }
    }
  } else { // too few ranges: columns first, because dx may be dy
    BL__PARALLEL(compute, shape->width, 16, columns) {
      for (size_t i = 0; i < count; i++) {
        add_columns(compute, shape, bl__share(shape->rows, 1, i, count), columns, dy, x, stats, sums + i * parameters);
      }
    }
    BL__PARALLEL(compute, shape->rows, 1, rows) {
      backward_rows(compute, shape, rows, dy, x, gain, stats, residual_gradient, dx);
    }
  }
  if (count > 1) {
    memcpy(partials, sums, parameters * sizeof *sums);
  }
  for (size_t i = 1; i < count; i++) {
    compute->kernels->accumulate(parameters, sums + i * parameters, partials);
  }
}
