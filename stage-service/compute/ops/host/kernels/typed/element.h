// SPDX-License-Identifier: Apache-2.0
// The element type of this compilation: files of kernels/typed are compiled for fp32 and, with BL_KERNEL_BF16, for
// bf16. Arithmetic is fp32 in both. An element is widened when it is read and rounded when it is written.
//
// Integer operations round to nearest even, so that rounding is the same on every CPU and vectorizes everywhere. NaN
// becomes the quiet NaN; values that are too large become infinite.
#ifndef BALLAST_COMPUTE_OPS_HOST_KERNELS_TYPED_ELEMENT_H
#define BALLAST_COMPUTE_OPS_HOST_KERNELS_TYPED_ELEMENT_H

#include <stdint.h>
#include <string.h>

#ifdef BL_KERNEL_BF16
typedef uint16_t bl__element_t;

static inline float bl__float_of(bl__element_t element) {
  const uint32_t bits = (uint32_t)element << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline bl__element_t bl__element_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  return (bl__element_t)((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}
#else
typedef float bl__element_t;

static inline float bl__float_of(bl__element_t element) {
  return element;
}
static inline bl__element_t bl__element_of(float value) {
  return value;
}
#endif

#endif
