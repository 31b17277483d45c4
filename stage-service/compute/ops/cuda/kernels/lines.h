// SPDX-License-Identifier: Apache-2.0
// The second step of sums over rows: groups of rows have written one line each, and the lines are added in an order
// that their number fixes. Several sums are one launch. Private to columns.cu, norm.cu and head_norm.cu.
#ifndef BALLAST_COMPUTE_OPS_CUDA_KERNELS_LINES_H
#define BALLAST_COMPUTE_OPS_CUDA_KERNELS_LINES_H

#include "compute/ops/cuda/kernels.h"

// For `count` sums: sums[i] [columns] = the sum of its `lines` lines at `from`, or += the sum.
int bl_add_lines(bl__stream_t stream, unsigned count, const bl__lines_t *sums);

#endif
