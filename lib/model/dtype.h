// SPDX-License-Identifier: Apache-2.0
// Storage type of activations and of the weights that products read. Master weights, gradients of weights, statistics
// and optimizer state are fp32 for either type (docs/bf16.md).
//
// Pure. Thread: values, any thread.
#ifndef BALLAST_MODEL_DTYPE_H
#define BALLAST_MODEL_DTYPE_H

#include <stdint.h>

typedef enum bl_dtype {
  BL_DTYPE_FP32,
  BL_DTYPE_BF16,
} bl_dtype_t;

static inline uint64_t bl_dtype_bytes(bl_dtype_t dtype) {
  return dtype == BL_DTYPE_BF16 ? 2 : 4;
}
static inline const char *bl_dtype_name(bl_dtype_t dtype) {
  return dtype == BL_DTYPE_BF16 ? "bf16" : "fp32";
}

#endif
