// SPDX-License-Identifier: Apache-2.0
// The context of the host back end, and what its operations share: workspace, the first failure, the split of work over
// threads. Private to ops/host. Thread: the compute thread.
#ifndef BALLAST_COMPUTE_OPS_HOST_COMPUTE_H
#define BALLAST_COMPUTE_OPS_HOST_COMPUTE_H

#include "base/bytes.h"
#include "compute/ops/host/kernels.h"
#include "compute/ops/host/product.h"
#include "compute/ops/ops.h"

struct bl_compute {
  uint32_t threads;
  const bl_kernels_t *kernels;
  bl__engine_t *engine;
  bool bf16_products; // the CPU multiplies bf16; otherwise operands are widened first
  char *workspace;    // borrowed
  size_t workspace_bytes;
  size_t workspace_wanted; // maximum over all plans
  bl_error_t error;        // the first failure
  char description[128];
  // Planned operations, owned; each file that defines a kind frees its list.
  bl_linear_op_t *linears;
  bl_attention_op_t *attentions;
  bl_rope_op_t *ropes;
};

// Notes that a plan needs `bytes` of workspace.
void bl__compute_want(bl_compute_t *compute, size_t bytes);
// Returns the workspace, or NULL, with a failure recorded, if it has less than `bytes`.
void *bl__compute_workspace(bl_compute_t *compute, size_t bytes, const char *operation);
// Records a failure unless there is one already.
void bl__compute_fail(bl_compute_t *compute, bl_status_t status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static inline const bl_typed_kernels_t *bl__typed(const bl_compute_t *compute, bl_compute_dtype_t dtype) {
  return &compute->kernels->typed[dtype];
}
static inline size_t bl__element_bytes(bl_compute_dtype_t dtype) {
  return dtype == BL_COMPUTE_BF16 ? 2 : sizeof(float);
}
// Element `index` of x. NULL stays NULL.
static inline const void *bl__element(bl_compute_dtype_t dtype, const void *x, size_t index) {
  return x ? (const char *)x + index * bl__element_bytes(dtype) : NULL;
}
static inline void *bl__element_to(bl_compute_dtype_t dtype, void *x, size_t index) {
  return (char *)x + index * bl__element_bytes(dtype);
}

// Part `part` of `parts` of [0, count), cut at multiples of `grain`.
typedef struct bl__range {
  size_t first, last;
} bl__range_t;

static inline bl__range_t bl__share(size_t count, size_t grain, size_t part, size_t parts) {
  const size_t units = (count + grain - 1) / grain;
  const size_t first = units * part / parts * grain, last = units * (part + 1) / parts * grain;
  return (bl__range_t){first < count ? first : count, last < count ? last : count};
}

// Runs the block that follows once per thread, in parallel, with `range` as that thread's part of [0, count). The block
// may not return or break.
// clang-format off
#define BL__PARALLEL(compute, count, grain, range)                                                       \
  _Pragma("omp parallel for schedule(static, 1)")                                                        \
  for (uint32_t bl__part = 0; bl__part < (compute)->threads; bl__part++)                                 \
    for (bl__range_t range = bl__share(count, grain, bl__part, (compute)->threads), *bl__once = &range;  \
         bl__once && range.first < range.last; bl__once = NULL)
// clang-format on

// Members of the table, by file.
bl_status_t bl__linear_plan(bl_compute_t *compute, const bl_linear_shape_t *shape, bl_linear_op_t **op,
                            bl_error_t *err);
size_t bl__linear_packed_bytes(const bl_linear_op_t *op);
void bl__linear_pack(bl_linear_op_t *op, const float *w, const float *bias, void *packed);
void bl__linear_forward(bl_linear_op_t *op, const void *x, const float *w, const void *packed, const float *bias,
                        const void *residual, void *y);
void bl__linear_backward_input(bl_linear_op_t *op, const void *dy, const float *w, const void *packed, bool accumulate,
                               void *dx);
void bl__linear_backward_weight(bl_linear_op_t *op, const void *x, const void *dy, bool accumulate, float *dw);
void bl__linear_destroy_all(bl_compute_t *compute);

void bl__norm_forward(bl_compute_t *compute, const bl_norm_shape_t *shape, const void *x, const float *gain,
                      const float *bias, void *y, float *stats);
void bl__norm_backward(bl_compute_t *compute, const bl_norm_shape_t *shape, const void *dy, const void *x,
                       const float *gain, const float *stats, const void *residual_gradient, void *dx, float *partials);

void bl__head_norm_forward(bl_compute_t *compute, const bl_head_norm_shape_t *shape, const void *qkv,
                           const float *query_gain, const float *key_gain, void *y);
void bl__head_norm_backward(bl_compute_t *compute, const bl_head_norm_shape_t *shape, const void *dy, const void *qkv,
                            const float *query_gain, const float *key_gain, void *dqkv, float *partials);

void bl__gelu_forward(bl_compute_t *compute, uint64_t count, bl_compute_dtype_t dtype, const void *pre, void *act);
void bl__gelu_backward(bl_compute_t *compute, uint64_t count, bl_compute_dtype_t dtype, const void *dact,
                       const void *pre, void *dpre);
void bl__gated_forward(bl_compute_t *compute, bl_gate_t gate, uint64_t rows, uint64_t width, bl_compute_dtype_t dtype,
                       const void *pre, void *act);
void bl__gated_backward(bl_compute_t *compute, bl_gate_t gate, uint64_t rows, uint64_t width, bl_compute_dtype_t dtype,
                        const void *dact, const void *pre, void *dpre);

bl_status_t bl__rope_plan(bl_compute_t *compute, const bl_rope_shape_t *shape, bl_rope_op_t **op, bl_error_t *err);
void bl__rope_forward(bl_rope_op_t *op, void *qkv);
void bl__rope_backward(bl_rope_op_t *op, void *dqkv);
void bl__rope_destroy_all(bl_compute_t *compute);

bl_status_t bl__attention_plan(bl_compute_t *compute, const bl_attention_shape_t *shape, bl_attention_op_t **op,
                               bl_error_t *err);
void bl__attention_forward(bl_attention_op_t *op, const void *qkv, void *att, void *saved);
void bl__attention_backward(bl_attention_op_t *op, const void *datt, const void *qkv, const void *att,
                            const void *saved, void *dqkv);
void bl__attention_slice_forward(bl_attention_op_t *op, const void *qkv, void *const *pages, void *att, void *saved);
void bl__attention_slice_backward(bl_attention_op_t *op, const void *datt, const void *qkv, void *const *pages,
                                  float *const *gradients, const void *att, const void *saved, void *dqkv);
void bl__attention_destroy_all(bl_compute_t *compute);

void bl__embedding_forward(bl_compute_t *compute, uint64_t batch, uint64_t seq, uint64_t width, float scale,
                           bl_compute_dtype_t dtype, const int32_t *tokens, const float *wte, const float *wpe,
                           void *x);
void bl__embedding_backward(bl_compute_t *compute, uint64_t batch, uint64_t seq, uint64_t width, float scale,
                            bl_compute_dtype_t dtype, const int32_t *tokens, const void *dx, float *dwte, float *dwpe);

void bl__softcap_logits(bl_compute_t *compute, uint64_t rows, uint64_t vocab, uint64_t stride, float softcap,
                        float *logits);
void bl__cross_entropy(bl_compute_t *compute, uint64_t rows, uint64_t vocab, uint64_t stride, bl_compute_dtype_t dtype,
                       const int32_t *labels, float scale, float softcap, float *logits, double *row_losses);
void bl__loss_sum(bl_compute_t *compute, uint64_t rows, const double *row_losses, double *loss, int64_t *first_bad_row);
int32_t bl__draw(bl_compute_t *compute, uint64_t vocab, const float *logits, float temperature, double uniform);

void bl__sum_parts(bl_compute_t *compute, uint64_t rows, uint64_t width, bl_compute_dtype_t dtype, uint32_t count,
                   const void *const *parts, const float *bias, const void *residual, void *y);
void bl__embedding_part_forward(bl_compute_t *compute, const bl_embedding_part_t *part, const int32_t *tokens,
                                const float *wte, const float *wpe, void *x);
void bl__embedding_part_backward(bl_compute_t *compute, const bl_embedding_part_t *part, const int32_t *tokens,
                                 const void *dx, float *dwte, float *dwpe);
void bl__softmax_statistics(bl_compute_t *compute, uint64_t rows, uint64_t vocab, uint64_t stride, uint64_t first,
                            const int32_t *labels, const float *logits, float *statistics);
void bl__cross_entropy_part(bl_compute_t *compute, uint64_t rows, uint64_t vocab, uint64_t stride, uint64_t first,
                            bl_compute_dtype_t dtype, const int32_t *labels, float scale, float softcap, uint32_t parts,
                            const float *statistics, float *logits, double *row_losses);

void bl__adamw(bl_compute_t *compute, uint32_t count, const bl_adamw_tensor_t *tensors);
void bl__sum_squares(bl_compute_t *compute, uint32_t count, const bl_squares_t *tensors);
void bl__add_columns(bl_compute_t *compute, uint32_t count, const bl_column_sum_t *sums);
void bl__accumulate(bl_compute_t *compute, uint64_t count, const float *x, float *y);
void bl__add(bl_compute_t *compute, uint64_t count, bl_compute_dtype_t dtype, const void *a, const void *b, void *y);
void bl__fill(bl_compute_t *compute, uint64_t count, float value, float *y);

#endif
