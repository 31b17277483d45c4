// SPDX-License-Identifier: Apache-2.0
// The table of one instruction set.
#include "compute/ops/host/kernels/functions.h"

#define BL__PASTE_BF16_2(a, b)  bl__##a##_##b##_bf16
#define BL__PASTE_BF16(a, b)    BL__PASTE_BF16_2(a, b)
#define BL_KERNEL_OF_BF16(name) BL__PASTE_BF16(name, BL_KERNEL_SET)

#define X(name) extern __typeof__(*((bl_typed_kernels_t *)0)->name) BL_KERNEL_OF_BF16(name);
BL_KERNEL_TYPED_FUNCTIONS(X)
#undef X

extern const bl_kernels_t BL_KERNEL(kernels);
const bl_kernels_t BL_KERNEL(kernels) = {.name = BL_KERNEL_NAME,
#define X(name) .name = BL_KERNEL(name),
                                         BL_KERNEL_FUNCTIONS(X)
#undef X
#define X(name) .typed[BL_COMPUTE_FP32].name = BL_KERNEL(name),
                                             BL_KERNEL_TYPED_FUNCTIONS(X)
#undef X
#define X(name) .typed[BL_COMPUTE_BF16].name = BL_KERNEL_OF_BF16(name),
                                                 BL_KERNEL_TYPED_FUNCTIONS(X)
#undef X
};
