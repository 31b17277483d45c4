// SPDX-License-Identifier: Apache-2.0
// The second half of sums over rows: groups of rows have left a line each, and the lines are added in an order that their
// number fixes. Several sums are one launch. Between kernels' files: columns.cu, norm.cu, head_norm.cu.
#ifndef BALLAST_COMPUTE_OPS_CUDA_KERNELS_LINES_H
#define BALLAST_COMPUTE_OPS_CUDA_KERNELS_LINES_H

#include "compute/ops/cuda/kernels.h"

// Of `count` sums: sums[i] [columns] = the sum of its `lines` lines at `from`, or += that.
int bl_add_lines(bl__stream_t stream, unsigned count, const bl__lines_t *sums);

#endif
