// SPDX-License-Identifier: Apache-2.0
// Numbers in order, and the middle one. Measurements are disturbed by whatever else a machine does, so medians stand where
// one would expect means.
// Thread: pure functions, any thread.
#ifndef BALLAST_BASE_SORT_H
#define BALLAST_BASE_SORT_H

#include <stddef.h>
#include <stdint.h>

// Ascending, in place. None may be NaN.
void bl_sort_f64(double *values, size_t count);
void bl_sort_u64(uint64_t *values, size_t count);
// The median of values [count], which are sorted in place: of two in the middle their mean, of nothing 0.
double bl_median(double *values, size_t count);

#endif
