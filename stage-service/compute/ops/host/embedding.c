// SPDX-License-Identifier: Apache-2.0
#include "compute/ops/host/compute.h"

#include <string.h>

void bl__embedding_forward(bl_compute_t *compute, uint64_t batch, uint64_t seq, uint64_t width,
                           bl_compute_dtype_t dtype, const int32_t *tokens, const void *wte, const void *wpe, void *x) {
  if (!bl__compute_has(compute, dtype, "embedding forward")) {
    return;
  }
  BL__PARALLEL(compute, batch * seq, 1, rows) {
    for (size_t row = rows.first; row < rows.last; row++) {
      const float *token = (const float *)wte + (size_t)tokens[row] * width;
      if (wpe) {
        compute->kernels->add(width, token, (const float *)wpe + row % seq * width, (float *)x + row * width);
      } else {
        memcpy((float *)x + row * width, token, width * sizeof(float));
      }
    }
  }
}

void bl__embedding_backward(bl_compute_t *compute, uint64_t batch, uint64_t seq, uint64_t width,
                            bl_compute_dtype_t dtype, const int32_t *tokens, const void *dx, float *dwte, float *dwpe) {
  if (!bl__compute_has(compute, dtype, "embedding backward")) {
    return;
  }
  // Threads split columns: every column sees the rows in token order.
  BL__PARALLEL(compute, width, 16, columns) {
    const size_t count = columns.last - columns.first;
    for (size_t row = 0; row < batch * seq; row++) {
      const float *gradient = (const float *)dx + row * width + columns.first;
      compute->kernels->accumulate(count, gradient, dwte + (size_t)tokens[row] * width + columns.first);
      if (dwpe) {
        compute->kernels->accumulate(count, gradient, dwpe + row % seq * width + columns.first);
      }
    }
  }
}
