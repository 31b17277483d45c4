// SPDX-License-Identifier: Apache-2.0
#include "compute/ops/host/compute.h"

#define GRAIN 64 // elements

void bl__gelu_forward(bl_compute_t *compute, uint64_t count, bl_compute_dtype_t dtype, const void *pre, void *act) {
  BL__PARALLEL(compute, count, GRAIN, part) {
    bl__typed(compute, dtype)
        ->gelu_forward(part.last - part.first, bl__element(dtype, pre, part.first),
                       bl__element_to(dtype, act, part.first));
  }
}

void bl__gelu_backward(bl_compute_t *compute, uint64_t count, bl_compute_dtype_t dtype, const void *dact,
                       const void *pre, void *dpre) {
  BL__PARALLEL(compute, count, GRAIN, part) {
    bl__typed(compute, dtype)
        ->gelu_backward(part.last - part.first, bl__element(dtype, dact, part.first),
                        bl__element(dtype, pre, part.first), bl__element_to(dtype, dpre, part.first));
  }
}

void bl__gated_forward(bl_compute_t *compute, bl_gate_t gate, uint64_t rows, uint64_t width, bl_compute_dtype_t dtype,
                       const void *pre, void *act) {
  BL__PARALLEL(compute, rows, 1, part) {
    bl__typed(compute, dtype)
        ->gated_forward(gate, part.last - part.first, width, bl__element(dtype, pre, part.first * 2 * width),
                        bl__element_to(dtype, act, part.first * width));
  }
}

void bl__gated_backward(bl_compute_t *compute, bl_gate_t gate, uint64_t rows, uint64_t width, bl_compute_dtype_t dtype,
                        const void *dact, const void *pre, void *dpre) {
  BL__PARALLEL(compute, rows, 1, part) {
    bl__typed(compute, dtype)
        ->gated_backward(gate, part.last - part.first, width, bl__element(dtype, dact, part.first * width),
                         bl__element(dtype, pre, part.first * 2 * width),
                         bl__element_to(dtype, dpre, part.first * 2 * width));
  }
}
