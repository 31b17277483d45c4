// SPDX-License-Identifier: Apache-2.0
#include "compute/ops/host/compute.h"

void bl__embedding_forward(bl_compute_t *compute, uint64_t batch, uint64_t seq, uint64_t width, float scale,
                           bl_compute_dtype_t dtype, const int32_t *tokens, const float *wte, const float *wpe,
                           void *x) {
  BL__PARALLEL(compute, batch * seq, 1, rows) {
    for (size_t row = rows.first; row < rows.last; row++) {
      bl__typed(compute, dtype)
          ->embed(width, scale, wte + (size_t)tokens[row] * width, wpe ? wpe + row % seq * width : NULL,
                  bl__element_to(dtype, x, row * width));
    }
  }
}

void bl__embedding_backward(bl_compute_t *compute, uint64_t batch, uint64_t seq, uint64_t width, float scale,
                            bl_compute_dtype_t dtype, const int32_t *tokens, const void *dx, float *dwte, float *dwpe) {
  // Threads split columns: every column sees the rows in token order.
  BL__PARALLEL(compute, width, 16, columns) {
    const size_t count = columns.last - columns.first;
    for (size_t row = 0; row < batch * seq; row++) {
      const bl_typed_kernels_t *kernels = bl__typed(compute, dtype);
      const void *gradient = bl__element(dtype, dx, row * width + columns.first);
      kernels->accumulate_gradient(count, scale, gradient, dwte + (size_t)tokens[row] * width + columns.first);
      if (dwpe) {
        kernels->accumulate_gradient(count, 1.0f, gradient, dwpe + row % seq * width + columns.first);
      }
    }
  }
}
