// SPDX-License-Identifier: Apache-2.0
// The smaller and the larger of two numbers. For doubles where speed counts and nothing is NaN: fmin and fmax of the
// library are calls.
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
