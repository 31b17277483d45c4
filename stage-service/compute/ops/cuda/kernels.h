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

// Tables of what one launch does to several tensors, given to kernels by value: a block finds its own by `first_block`, its
// first, which the launcher sets (bl_entry_of).
#define BL__SUMS_MAX    16
#define BL__TENSORS_MAX 32

typedef struct bl__column_sum { // sums [columns] += the sums over rows of x [rows, columns]
  bool bf16;
  const void *x;
  uint64_t rows, columns;
  float *sums;
} bl__column_sum_t;

typedef struct bl__column_groups { // rows of x of which groups leave a line each
  const void *x;
  float *lines;
  uint64_t rows, columns;
  unsigned first_block, groups;
  bool wide;
} bl__column_groups_t;

typedef struct bl__column_table {
  unsigned count;
  bl__column_groups_t entries[BL__SUMS_MAX];
} bl__column_table_t;

typedef struct bl__lines { // sums [columns] = the sum of lines, or += that
  const float *from;
  float *sums;
  uint64_t lines, columns;
  unsigned first_block;
  bool accumulate;
} bl__lines_t;

typedef struct bl__lines_table {
  unsigned count;
  bl__lines_t entries[BL__SUMS_MAX];
} bl__lines_table_t;

typedef struct bl__adamw { // of one tensor, derived from bl_adamw_t once
  const float *dw;
  float *w, *m, *v;
  void *packed; // the new w as bf16; NULL: not wanted
  uint64_t count;
  float beta1, beta2, rest1, rest2, keep, step, inverse_root2, epsilon, scale;
  unsigned first_block;
  bool wide;
} bl__adamw_t;

typedef struct bl__adamw_table {
  unsigned count;
  bl__adamw_t entries[BL__TENSORS_MAX];
} bl__adamw_table_t;

typedef struct bl__squares { // *sum = that of the squares of x [count]
  const float *x;
  double *sum;
  uint64_t count;
  unsigned first_block, blocks;
  bool wide;
} bl__squares_t;

typedef struct bl__squares_table {
  unsigned count;
  bl__squares_t entries[BL__TENSORS_MAX];
} bl__squares_table_t;

typedef struct bl__scattered { // `heads` dense heads at `from` into rows
  const void *from;
  void *rows;
  uint64_t heads;
} bl__scattered_t;

typedef struct bl__scatter_table {
  unsigned count;
  bl__scattered_t entries[3];
} bl__scatter_table_t;

// ---- elements.cu
int bl__launch_add(bl__stream_t stream, bool bf16, uint64_t count, const void *a, const void *b, void *y);
int bl__launch_accumulate(bl__stream_t stream, uint64_t count, const float *x, float *y);
int bl__launch_fill(bl__stream_t stream, uint64_t count, float value, float *y);
int bl__launch_narrow(bl__stream_t stream, uint64_t count, const float *x, void *y); // to bf16

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

// ---- columns.cu: of `count` sums, BL__SUMS_MAX at most
int bl__launch_add_columns(bl__stream_t stream, unsigned count, const bl__column_sum_t *sums, float *scratch);

// ---- parameters.cu: of `count` tensors, BL__TENSORS_MAX at most
int bl__launch_adamw(bl__stream_t stream, unsigned count, const bl__adamw_t *tensors);
int bl__launch_sum_squares(bl__stream_t stream, unsigned count, const bl__squares_t *tensors, double *scratch);

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
// Rows are `stride` floats apart. Where that is a multiple of 4 all is read and written in packs of 16 bytes; the columns
// behind the vocab of a row's last one are then written over.
int bl__launch_cap_logits(bl__stream_t stream, uint64_t rows, uint64_t vocab, uint64_t stride, float cap,
                          float *logits);
// cap 0: none
int bl__launch_cross_entropy(bl__stream_t stream, bool bf16, uint64_t rows, uint64_t vocab, uint64_t stride,
                             const int32_t *labels, float scale, float cap, float *logits, double *row_losses);
int bl__launch_loss_sum(bl__stream_t stream, uint64_t rows, const double *row_losses, double *loss,
                        int64_t *first_bad_row);

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
// Sets of heads that lie densely [batch, heads, seq, head_dim], three at most, into rows of shape->row_stride: elements
// copied, or `floats` rounded to elements. shape->heads is not read.
int bl__launch_scatter(bl__stream_t stream, bool bf16, bool floats, const bl__heads_t *shape, unsigned count,
                       const bl__scattered_t *sets);

// ---- checksum.cu: of `bytes` bytes, a multiple of 16
int bl__launch_checksum(bl__stream_t stream, uint64_t bytes, const void *block, uint64_t *hash, uint64_t *scratch);

#ifdef __cplusplus
}
#endif

#endif
