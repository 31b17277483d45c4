// SPDX-License-Identifier: Apache-2.0
// Sorts numbers and takes their median. Other work on a machine disturbs measurements, so the code uses medians instead
// of means.
// Thread: pure functions, any thread.
#ifndef BALLAST_BASE_SORT_H
#define BALLAST_BASE_SORT_H

#include <stddef.h>
#include <stdint.h>

// Sort ascending, in place. No value may be NaN.
void bl_sort_f64(double *values, size_t count);
void bl_sort_u64(uint64_t *values, size_t count);
// Returns the median of values [count] and sorts them in place. An even count gives the mean of the middle two, 0 gives
// 0.
double bl_median(double *values, size_t count);

#endif
