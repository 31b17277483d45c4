// SPDX-License-Identifier: Apache-2.0
#include "compute/ops/host/compute.h"

#define GRAIN 64 // elements

void bl__gelu_forward(bl_compute_t *compute, uint64_t count, bl_compute_dtype_t dtype, const void *pre, void *act) {
  if (!bl__compute_has(compute, dtype, "gelu forward")) {
    return;
  }
  BL__PARALLEL(compute, count, GRAIN, part) {
    compute->kernels->gelu_forward(part.last - part.first, (const float *)pre + part.first, (float *)act + part.first);
  }
}

void bl__gelu_backward(bl_compute_t *compute, uint64_t count, bl_compute_dtype_t dtype, const void *dact,
                       const void *pre, void *dpre) {
  if (!bl__compute_has(compute, dtype, "gelu backward")) {
    return;
  }
  BL__PARALLEL(compute, count, GRAIN, part) {
    compute->kernels->gelu_backward(part.last - part.first, (const float *)dact + part.first,
                                    (const float *)pre + part.first, (float *)dpre + part.first);
  }
}

void bl__swiglu_forward(bl_compute_t *compute, uint64_t rows, uint64_t width, bl_compute_dtype_t dtype, const void *pre,
                        void *act) {
  if (!bl__compute_has(compute, dtype, "swiglu forward")) {
    return;
  }
  BL__PARALLEL(compute, rows, 1, part) {
    compute->kernels->swiglu_forward(part.last - part.first, width, (const float *)pre + part.first * 2 * width,
                                     (float *)act + part.first * width);
  }
}

void bl__swiglu_backward(bl_compute_t *compute, uint64_t rows, uint64_t width, bl_compute_dtype_t dtype,
                         const void *dact, const void *pre, void *dpre) {
  if (!bl__compute_has(compute, dtype, "swiglu backward")) {
    return;
  }
  BL__PARALLEL(compute, rows, 1, part) {
    compute->kernels->swiglu_backward(part.last - part.first, width, (const float *)dact + part.first * width,
                                      (const float *)pre + part.first * 2 * width,
                                      (float *)dpre + part.first * 2 * width);
  }
}
