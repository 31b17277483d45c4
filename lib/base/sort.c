// SPDX-License-Identifier: Apache-2.0
#include "base/sort.h"

#include <stdlib.h>

static int compare_f64(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static int compare_u64(const void *a, const void *b) {
  const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

void bl_sort_f64(double *values, size_t count) {
  if (count > 1) { // `values` may be NULL if `count` is 0
    qsort(values, count, sizeof *values, compare_f64);
  }
}

void bl_sort_u64(uint64_t *values, size_t count) {
  if (count > 1) {
    qsort(values, count, sizeof *values, compare_u64);
  }
}

double bl_median(double *values, size_t count) {
  bl_sort_f64(values, count);
  return count == 0 ? 0 : count % 2 == 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}
