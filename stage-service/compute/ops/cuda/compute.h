// SPDX-License-Identifier: Apache-2.0
// The context of the CUDA back end, and the state that its operations share: workspace, scratch, the first failure.
// Private to ops/cuda. Thread: the compute thread.
#ifndef BALLAST_COMPUTE_OPS_CUDA_COMPUTE_H
#define BALLAST_COMPUTE_OPS_CUDA_COMPUTE_H

#include "base/bytes.h"
#include "compute/ops/cuda/flash.h"
#include "compute/ops/cuda/kernels.h"
#include "compute/ops/cuda/matmul.h"
#include "compute/ops/cuda/runtime.h"
#include "compute/ops/ops.h"

#define BL__WORKSPACE_ALIGNMENT ((size_t)256) // alignment that the libraries require

struct bl_compute {
  bl__gpu_t *gpu;
  bl__stream_t stream;
  bl__matmul_engine_t *matmuls;
  bl__flash_engine_t *flash;
  char *scratch;   // BL__SCRATCH_BYTES of the device, owned
  char *workspace; // borrowed
  size_t workspace_bytes;
  size_t workspace_wanted; // maximum that any plan requested
  size_t held_bytes;
  bl_error_t error; // the first failure
  char description[512];
  // Planned operations, owned. Each file that defines a kind of operation frees its list.
  bl_linear_op_t *linears;
  bl_attention_op_t *attentions;
  bl_rope_op_t *ropes;
};

static inline bool bl__is_bf16(bl_compute_dtype_t dtype) {
  return dtype == BL_COMPUTE_BF16;
}
static inline size_t bl__element_bytes(bl_compute_dtype_t dtype) {
  return bl__is_bf16(dtype) ? 2 : sizeof(float);
}
// Returns the address of element `index` of x; NULL for NULL.
static inline const void *bl__element(bl_compute_dtype_t dtype, const void *x, size_t index) {
  return x ? (const char *)x + index * bl__element_bytes(dtype) : NULL;
}
static inline void *bl__element_to(bl_compute_dtype_t dtype, void *x, size_t index) {
  return (char *)x + index * bl__element_bytes(dtype);
}

// Records that a plan needs `bytes` of workspace.
void bl__cuda_want(bl_compute_t *compute, size_t bytes);
// Returns the workspace. If it has less than `bytes` (> 0), records a failure and returns NULL.
void *bl__cuda_workspace(bl_compute_t *compute, size_t bytes, const char *operation);
// Records a failure, unless one is recorded already.
void bl__cuda_fail(bl_compute_t *compute, const char *format, ...) __attribute__((format(printf, 2, 3)));
// Records the failure of a launch, unless `error` is 0.
void bl__cuda_launched(bl_compute_t *compute, int error, const char *operation);
// Adds a note to the description of the back end: what a plan had to do differently.
void bl__cuda_note(bl_compute_t *compute, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Every member of bl_ops_t, except those for the context, by file.
#define BL__CUDA_OPERATIONS(X)                                                                                         \
  X(linear_plan)                                                                                                       \
  X(linear_packed_bytes)                                                                                               \
  X(linear_packed_bias)                                                                                                \
  X(linear_pack)                                                                                                       \
  X(linear_forward)                                                                                                    \
  X(linear_backward_input)                                                                                             \
  X(linear_backward_weight)                                                                                            \
  X(norm_forward)                                                                                                      \
  X(norm_backward)                                                                                                     \
  X(gelu_forward)                                                                                                      \
  X(gelu_backward)                                                                                                     \
  X(head_norm_forward)                                                                                                 \
  X(head_norm_backward)                                                                                                \
  X(gated_forward)                                                                                                     \
  X(gated_backward)                                                                                                    \
  X(softcap_logits)                                                                                                    \
  X(rope_plan)                                                                                                         \
  X(rope_forward)                                                                                                      \
  X(rope_backward)                                                                                                     \
  X(attention_plan)                                                                                                    \
  X(attention_forward)                                                                                                 \
  X(attention_backward)                                                                                                \
  X(attention_slice_forward)                                                                                           \
  X(attention_slice_backward)                                                                                          \
  X(embedding_forward)                                                                                                 \
  X(embedding_backward)                                                                                                \
  X(cross_entropy)                                                                                                     \
  X(loss_sum)                                                                                                          \
  X(draw)                                                                                                              \
  X(sum_parts)                                                                                                         \
  X(embedding_part_forward)                                                                                            \
  X(embedding_part_backward)                                                                                           \
  X(softmax_statistics)                                                                                                \
  X(cross_entropy_part)                                                                                                \
  X(add_columns)                                                                                                       \
  X(adamw)                                                                                                             \
  X(sum_squares)                                                                                                       \
  X(accumulate)                                                                                                        \
  X(add)                                                                                                               \
  X(fill)                                                                                                              \
  X(checksum)

// __typeof__ of a member is a pointer to a function; `*` of it declares the function itself.
#define X(name) extern __typeof__(*((bl_ops_t *)0)->name) bl__cuda_##name;
BL__CUDA_OPERATIONS(X)
#undef X

void bl__cuda_linear_destroy_all(bl_compute_t *compute);
void bl__cuda_attention_destroy_all(bl_compute_t *compute);
void bl__cuda_rope_destroy_all(bl_compute_t *compute);

const bl_ops_t *bl__ops_cuda(void);

#endif
