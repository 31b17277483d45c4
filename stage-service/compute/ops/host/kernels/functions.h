// SPDX-License-Identifier: Apache-2.0
// Declares the functions of this compilation with the types in bl_kernels_t. kernels.h documents each.
#ifndef BALLAST_COMPUTE_OPS_HOST_KERNELS_FUNCTIONS_H
#define BALLAST_COMPUTE_OPS_HOST_KERNELS_FUNCTIONS_H

#include "compute/ops/host/kernels/kernel.h"

#define BL_KERNEL_FUNCTIONS(X)                                                                                         \
  X(adamw)                                                                                                             \
  X(sum_squares)                                                                                                       \
  X(accumulate)                                                                                                        \
  X(softcap)                                                                                                           \
  X(fill)                                                                                                              \
  X(softmax_statistics)                                                                                                \
  X(transpose)

// In kernels/typed: compiled once per element type. The bf16 functions have names that end in bf16.
#define BL_KERNEL_TYPED_FUNCTIONS(X)                                                                                   \
  X(norm_forward)                                                                                                      \
  X(norm_backward)                                                                                                     \
  X(norm_partials)                                                                                                     \
  X(column_sums)                                                                                                       \
  X(head_norm_forward)                                                                                                 \
  X(head_norm_backward)                                                                                                \
  X(gated_forward)                                                                                                     \
  X(gated_backward)                                                                                                    \
  X(rope)                                                                                                              \
  X(cross_entropy)                                                                                                     \
  X(softmax_gradient)                                                                                                  \
  X(gelu_forward)                                                                                                      \
  X(gelu_backward)                                                                                                     \
  X(add)                                                                                                               \
  X(sum_parts)                                                                                                         \
  X(embed)                                                                                                             \
  X(accumulate_gradient)                                                                                               \
  X(widen)                                                                                                             \
  X(narrow)                                                                                                            \
  X(weight_gradient)                                                                                                   \
  X(pack)                                                                                                              \
  X(unpack)                                                                                                            \
  X(attention_forward)                                                                                                 \
  X(attention_backward)                                                                                                \
  X(row_dots)

// __typeof__ of a member of the table is a pointer to a function; `*` of it declares the function itself.
#define X(name) extern __typeof__(*((bl_kernels_t *)0)->name) BL_KERNEL(name);
BL_KERNEL_FUNCTIONS(X)
#undef X
#define X(name) extern __typeof__(*((bl_typed_kernels_t *)0)->name) BL_KERNEL(name);
BL_KERNEL_TYPED_FUNCTIONS(X)
#undef X

#endif
