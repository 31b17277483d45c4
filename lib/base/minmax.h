// SPDX-License-Identifier: Apache-2.0
// Minimum and maximum of two numbers. The versions for doubles are for code that must be fast and has no NaN: fmin and
// fmax of the C library are calls.
// Thread: pure functions, any thread.
#ifndef BALLAST_BASE_MINMAX_H
#define BALLAST_BASE_MINMAX_H

#include <stdint.h>

static inline uint32_t bl_min_u32(uint32_t a, uint32_t b) {
  return a < b ? a : b;
}

static inline uint32_t bl_max_u32(uint32_t a, uint32_t b) {
  return a > b ? a : b;
}

static inline uint64_t bl_min_u64(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

static inline uint64_t bl_max_u64(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}

static inline double bl_min_f64(double a, double b) {
  return a < b ? a : b;
}

static inline double bl_max_f64(double a, double b) {
  return a > b ? a : b;
}

#endif
