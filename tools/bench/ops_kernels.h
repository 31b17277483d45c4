// SPDX-License-Identifier: Apache-2.0
// Memory-bound kernels inside of operations that are not memory-bound: softmax over stored scores, column sums, the
// copy of heads into rows. Each is timed by the device's profiler (kernel_time.h).
#ifndef BALLAST_BENCH_OPS_KERNELS_H
#define BALLAST_BENCH_OPS_KERNELS_H

#include "compute/ops/ops.h"
#include "kernel_time.h"

typedef struct bl_ops_kernels {
  const bl_ops_t *ops;
  bl_compute_t *compute;
  bl_compute_dtype_t dtype;
  uint64_t batch, seq, hidden;
  void *block[4];   // [batch, seq, 4 hidden] elements each
  float *vector[2]; // [hidden, 4 hidden]
  bl_arena_t saved; // saved state of attention
  bl_linear_op_t *linear;
  bl_attention_op_t *naive, *flash;
} bl_ops_kernels_t;

#define BL_OPS_KERNELS 4
typedef struct bl_ops_kernel {
  const char *name, *kernel;
  void (*run)(void *kernels); // of a bl_ops_kernels_t
  double bytes;
} bl_ops_kernel_t;

// Plans the operations; call it before the workspace is set. The caller has set ops, compute, dtype and sizes, and
// destroys `saved` with the rest.
BL_MUST_USE bl_status_t bl_ops_kernels_plan(bl_ops_kernels_t *kernels, bl_device_t *device, bl_error_t *err);
// Writes the names of the kernels and the bytes of one run to `list`.
void bl_ops_kernels_list(const bl_ops_kernels_t *kernels, bl_ops_kernel_t list[BL_OPS_KERNELS]);

#endif
