// SPDX-License-Identifier: Apache-2.0
#include "compute/ops/host/compute.h"

#define GRAIN      64 // elements
#define SUM_RANGES 64 // of sum_squares: fixed, so that the order of the sum does not depend on the thread count

static void update(bl_compute_t *compute, const bl_adamw_tensor_t *t) {
  BL__PARALLEL(compute, t->count, GRAIN, part) {
    compute->kernels->adamw(part.last - part.first, &t->options, t->dw + part.first, t->w + part.first,
                            t->m + part.first, t->v + part.first);
  }
}

void bl__adamw(bl_compute_t *compute, uint32_t count, const bl_adamw_tensor_t *tensors) {
  for (uint32_t i = 0; i < count; i++) {
    update(compute, &tensors[i]);
  }
}

static double squares_of(bl_compute_t *compute, uint64_t count, const float *x) {
  double sums[SUM_RANGES] = {0};
  BL__PARALLEL(compute, SUM_RANGES, 1, ranges) {
    for (size_t i = ranges.first; i < ranges.last; i++) {
      const bl__range_t part = bl__share(count, GRAIN, i, SUM_RANGES);
      sums[i] = compute->kernels->sum_squares(part.last - part.first, x + part.first);
    }
  }
  double total = 0.0;
  for (size_t i = 0; i < SUM_RANGES; i++) {
    total += sums[i];
  }
  return total;
}

void bl__sum_squares(bl_compute_t *compute, uint32_t count, const bl_squares_t *tensors) {
  for (uint32_t i = 0; i < count; i++) {
    *tensors[i].sum = squares_of(compute, tensors[i].count, tensors[i].x);
  }
}

static void add_columns(bl_compute_t *compute, const bl_column_sum_t *sum) {
  BL__PARALLEL(compute, sum->columns, 16, range) {
    bl__typed(compute, sum->dtype)
        ->column_sums(sum->rows, range.last - range.first, sum->columns, bl__element(sum->dtype, sum->x, range.first),
                      sum->sums + range.first);
  }
}

void bl__add_columns(bl_compute_t *compute, uint32_t count, const bl_column_sum_t *sums) {
  for (uint32_t i = 0; i < count; i++) {
    add_columns(compute, &sums[i]);
  }
}

void bl__accumulate(bl_compute_t *compute, uint64_t count, const float *x, float *y) {
  BL__PARALLEL(compute, count, GRAIN, part) {
    compute->kernels->accumulate(part.last - part.first, x + part.first, y + part.first);
  }
}

void bl__add(bl_compute_t *compute, uint64_t count, bl_compute_dtype_t dtype, const void *a, const void *b, void *y) {
  BL__PARALLEL(compute, count, GRAIN, part) {
    bl__typed(compute, dtype)
        ->add(part.last - part.first, bl__element(dtype, a, part.first), bl__element(dtype, b, part.first),
              bl__element_to(dtype, y, part.first));
  }
}

void bl__fill(bl_compute_t *compute, uint64_t count, float value, float *y) {
  BL__PARALLEL(compute, count, GRAIN, part) {
    compute->kernels->fill(part.last - part.first, value, y + part.first);
  }
}
