// SPDX-License-Identifier: Apache-2.0
// The table of one instruction set.
#include "compute/ops/host/kernels/functions.h"

extern const bl_kernels_t BL_KERNEL(kernels);
const bl_kernels_t BL_KERNEL(kernels) = {.name = BL_KERNEL_NAME,
#define X(name) .name = BL_KERNEL(name),
                                         BL_KERNEL_FUNCTIONS(X)
#undef X
};
