// SPDX-License-Identifier: Apache-2.0
// Launchers of the kernels: C functions that queue work on a stream and return. Nothing here waits or allocates.
//
// Pointers are device memory, or pinned memory that the device sees at the same address. `void *` is elements of `bf16`
// (true: bf16, false: float). Tensors start at 16-byte boundaries; vectors of parameters, sums and integers may start at
// any element. `scratch` is BL__SCRATCH_BYTES of device memory that a launch may use until it is over.
//
// Every launcher returns 0 or the number of a CUDA error (cudaError_t).
#ifndef BALLAST_COMPUTE_OPS_CUDA_KERNELS_H
#define BALLAST_COMPUTE_OPS_CUDA_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CUstream_st *bl__stream_t;

#define BL__SCRATCH_BYTES ((size_t)16 << 20)

// Like a Hugging Face tensor of heads inside wider rows.
typedef struct bl__heads {
  uint64_t batch, seq, heads, head_dim;
  uint64_t row_stride; // elements between positions
} bl__heads_t;

typedef struct bl__adamw { // of one tensor, derived from bl_adamw_t once
  float beta1, beta2, rest1, rest2, keep, step, inverse_root2, epsilon, scale;
} bl__adamw_t;

// ---- elements.cu
int bl__launch_add(bl__stream_t stream, bool bf16, uint64_t count, const void *a, const void *b, void *y);
int bl__launch_accumulate(bl__stream_t stream, uint64_t count, const float *x, float *y);
int bl__launch_fill(bl__stream_t stream, uint64_t count, float value, float *y);
int bl__launch_narrow(bl__stream_t stream, uint64_t count, const float *x, void *y); // to bf16
// packed: the new w as bf16; NULL: not wanted. It starts at an 8-byte boundary wherever the others start at one of 16.
int bl__launch_adamw(bl__stream_t stream, uint64_t count, const bl__adamw_t *options, const float *dw, float *w,
                     float *m, float *v, void *packed);

// ---- activation.cu
int bl__launch_gelu_forward(bl__stream_t stream, bool bf16, uint64_t count, const void *pre, void *act);
int bl__launch_gelu_backward(bl__stream_t stream, bool bf16, uint64_t count, const void *dact, const void *pre,
                             void *dpre);
// The gate's function is SiLU, or GELU where `gelu`.
int bl__launch_gated_forward(bl__stream_t stream, bool bf16, bool gelu, uint64_t rows, uint64_t width, const void *pre,
                             void *act);
int bl__launch_gated_backward(bl__stream_t stream, bool bf16, bool gelu, uint64_t rows, uint64_t width,
                              const void *dact, const void *pre, void *dpre);

// ---- norm.cu: shapes of bl_ops_t's norm_forward and norm_backward. BL__NORM_WIDTH_MAX elements of a row at most.
// `offset` is added to every gain.
#define BL__NORM_WIDTH_MAX 16384
int bl__launch_norm_forward(bl__stream_t stream, bool bf16, bool rms, uint64_t rows, uint64_t width, float epsilon,
                            float offset, const void *x, const float *gain, const float *bias, void *y, float *stats);
int bl__launch_norm_backward(bl__stream_t stream, bool bf16, bool rms, uint64_t rows, uint64_t width, float offset,
                             const void *dy, const void *x, const float *gain, const float *stats,
                             const void *residual_gradient, void *dx, float *partials, float *scratch);

// ---- head_norm.cu: of bl_ops_t's head_norm_forward and head_norm_backward. BL__HEAD_NORM_MAX elements of a head at most.
#define BL__HEAD_NORM_MAX 1024
typedef struct bl__head_norm {
  uint64_t rows, heads, kv_heads, head_dim;
  float epsilon, offset;
} bl__head_norm_t;
int bl__launch_head_norm_forward(bl__stream_t stream, bool bf16, const bl__head_norm_t *shape, const void *qkv,
                                 const float *query_gain, const float *key_gain, void *y);
int bl__launch_head_norm_backward(bl__stream_t stream, bool bf16, const bl__head_norm_t *shape, const void *dy,
                                  const void *qkv, const float *query_gain, const float *key_gain, void *dqkv,
                                  float *partials, float *scratch);

// ---- columns.cu: sums [columns] (or += where accumulate) of x [rows, columns], rows `stride` elements apart
int bl__launch_column_sums(bl__stream_t stream, bool bf16, uint64_t rows, uint64_t columns, uint64_t stride,
                           const void *x, bool accumulate, float *sums, float *scratch);

// ---- rope.cu: the first `dims` elements of the first `heads` heads of each row, in place; tables float [seq, dims / 2];
// sign 1 or -1
int bl__launch_rope(bl__stream_t stream, bool bf16, const bl__heads_t *shape, uint64_t dims, const float *cosines,
                    const float *sines, float sign, void *rows);

// ---- embedding.cu: `scale` of tokens' rows
int bl__launch_embedding_forward(bl__stream_t stream, bool bf16, uint64_t batch, uint64_t seq, uint64_t width,
                                 float scale, const int32_t *tokens, const float *wte, const float *wpe, void *x,
                                 void *scratch);
// Adds rows of dx in token order; dwpe may be NULL.
int bl__launch_embedding_backward(bl__stream_t stream, bool bf16, uint64_t batch, uint64_t seq, uint64_t width,
                                  float scale, const int32_t *tokens, const void *dx, float *dwte, float *dwpe,
                                  void *scratch);

// ---- loss.cu
int bl__launch_cap_logits(bl__stream_t stream, uint64_t count, float cap, float *logits);
// cap 0: none
int bl__launch_cross_entropy(bl__stream_t stream, bool bf16, uint64_t rows, uint64_t vocab, const int32_t *labels,
                             float scale, float cap, float *logits, double *row_losses);
int bl__launch_loss_sum(bl__stream_t stream, uint64_t rows, const double *row_losses, double *loss,
                        int64_t *first_bad_row);
int bl__launch_sum_squares(bl__stream_t stream, uint64_t count, const float *x, double *sum, double *scratch);

// ---- softmax.cu: attention whose scores are stored
// What bounds attention beside causality: a query sees `window` keys, itself among them (0: all up to its own); scores s
// become cap tanh(s / cap) (cap 0: they stay).
typedef struct bl__bounds {
  uint64_t window;
  float cap, inverse_cap;
} bl__bounds_t;
// Of `matrices` matrices of scaled scores [seq, seq], `scores` (floats, one after the other), the causal softmax as
// `probabilities` (elements), zero where a query does not see, matrices `matrix_stride` elements apart. lse NULL, or float
// [matrices, seq], matrices `lse_stride` apart: their log-sum-exps.
int bl__launch_softmax_forward(bl__stream_t stream, bool bf16, const bl__bounds_t *bounds, uint64_t matrices,
                               uint64_t seq, const float *scores, void *probabilities, uint64_t matrix_stride,
                               float *lse, uint64_t lse_stride);
// probabilities = exp(scores - lse): the same again, for a backward that kept lse alone. Dense.
int bl__launch_softmax_again(bl__stream_t stream, bool bf16, const bl__bounds_t *bounds, uint64_t matrices,
                             uint64_t seq, const float *scores, const float *lse, uint64_t lse_stride,
                             void *probabilities);
// dscores = probabilities (dprobabilities - row sum of their product) scale, and the slope of the cap: elements, dense, zero
// where a query does not see. scores as forward had them, read with a cap alone.
int bl__launch_softmax_backward(bl__stream_t stream, bool bf16, const bl__bounds_t *bounds, uint64_t matrices,
                                uint64_t seq, const float *scores, const void *probabilities, uint64_t matrix_stride,
                                const float *dprobabilities, float scale, void *dscores);
// Heads that lie densely [batch, heads, seq, head_dim] into rows: floats rounded to elements, or elements copied.
int bl__launch_scatter_floats(bl__stream_t stream, bool bf16, const bl__heads_t *shape, const float *heads, void *rows);
int bl__launch_scatter(bl__stream_t stream, bool bf16, const bl__heads_t *shape, const void *heads, void *rows);

// ---- checksum.cu: of `bytes` bytes, a multiple of 16
int bl__launch_checksum(bl__stream_t stream, uint64_t bytes, const void *block, uint64_t *hash, uint64_t *scratch);

#ifdef __cplusplus
}
#endif

#endif
