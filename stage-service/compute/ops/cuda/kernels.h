// SPDX-License-Identifier: Apache-2.0
// Launchers of the kernels: C functions that queue work on a stream and return. They do not wait or allocate.
//
// Pointers are device memory, or pinned memory that the device sees at the same address. `void *` points to elements:
// bf16 if `bf16`, otherwise float. Tensors start at 16-byte boundaries; vectors of parameters, sums and integers may
// start at any element. `scratch` is BL__SCRATCH_BYTES of device memory that a launch may use until it ends.
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

// Heads inside wider rows, as in a Hugging Face tensor.
typedef struct bl__heads {
  uint64_t batch, seq, heads, head_dim;
  uint64_t row_stride; // elements between positions
} bl__heads_t;

// Tables of the work of one launch on several tensors, passed to kernels by value. Each entry has the number of its
// `first_block`, which the launcher sets. A block finds its entry by it (bl_entry_of).
#define BL__SUMS_MAX    16
#define BL__TENSORS_MAX 32

typedef struct bl__column_sum { // sums [columns] += the sums over rows of x [rows, columns]
  bool bf16;
  const void *x;
  uint64_t rows, columns;
  float *sums;
} bl__column_sum_t;

typedef struct bl__column_groups { // rows of x; each group of rows writes one line of sums
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

typedef struct bl__lines { // sums [columns] = the sum of lines, or += the sum
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

typedef struct bl__adamw { // one tensor; derived from bl_adamw_t once
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

typedef struct bl__squares { // *sum = the sum of the squares of x [count]
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

typedef struct bl__scattered { // copies `heads` dense heads at `from` into rows
  const void *from;
  void *rows;
  uint64_t heads;
} bl__scattered_t;

typedef struct bl__scatter_table {
  unsigned count;
  bl__scattered_t entries[3];
} bl__scatter_table_t;

// Pointers to what the parts of a layer contribute to the same `elements` elements.
#define BL__PARTS_MAX 64

typedef struct bl__parts_table {
  unsigned count;
  uint64_t elements;
  const void *entries[BL__PARTS_MAX];
} bl__parts_table_t;

#define BL__PAGES_MAX 255 // slices of a sequence at most

typedef struct bl__page_table { // pages of the KV cache, or of gradients
  unsigned count;
  void *pages[BL__PAGES_MAX];
} bl__page_table_t;

// ---- elements.cu
int bl__launch_add(bl__stream_t stream, bool bf16, uint64_t count, const void *a, const void *b, void *y);
int bl__launch_accumulate(bl__stream_t stream, uint64_t count, const float *x, float *y);
int bl__launch_fill(bl__stream_t stream, uint64_t count, float value, float *y);
int bl__launch_narrow(bl__stream_t stream, uint64_t count, const float *x, void *y); // to bf16
// y [rows, width] = sum of the parts, a power of two of them from 2 on, + bias + residual (NULL: none).
int bl__launch_sum_parts(bl__stream_t stream, bool bf16, uint64_t rows, uint64_t width, const bl__parts_table_t *parts,
                         const float *bias, const void *residual, void *y);

// ---- activation.cu
int bl__launch_gelu_forward(bl__stream_t stream, bool bf16, uint64_t count, const void *pre, void *act);
int bl__launch_gelu_backward(bl__stream_t stream, bool bf16, uint64_t count, const void *dact, const void *pre,
                             void *dpre);
// `gelu`: the gate's function is GELU, otherwise SiLU.
int bl__launch_gated_forward(bl__stream_t stream, bool bf16, bool gelu, uint64_t rows, uint64_t width, const void *pre,
                             void *act);
int bl__launch_gated_backward(bl__stream_t stream, bool bf16, bool gelu, uint64_t rows, uint64_t width,
                              const void *dact, const void *pre, void *dpre);

// ---- norm.cu: shapes as in bl_ops_t's norm_forward and norm_backward; at most BL__NORM_WIDTH_MAX elements a row.
// `offset` is added to every gain.
#define BL__NORM_WIDTH_MAX 16384
int bl__launch_norm_forward(bl__stream_t stream, bool bf16, bool rms, uint64_t rows, uint64_t width, float epsilon,
                            float offset, const void *x, const float *gain, const float *bias, void *y, float *stats);
int bl__launch_norm_backward(bl__stream_t stream, bool bf16, bool rms, uint64_t rows, uint64_t width, float offset,
                             const void *dy, const void *x, const float *gain, const float *stats,
                             const void *residual_gradient, void *dx, float *partials, float *scratch);

// ---- head_norm.cu: as bl_ops_t's head_norm_forward and head_norm_backward; at most BL__HEAD_NORM_MAX elements a head.
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

// ---- columns.cu: `count` sums, at most BL__SUMS_MAX
int bl__launch_add_columns(bl__stream_t stream, unsigned count, const bl__column_sum_t *sums, float *scratch);

// ---- parameters.cu: `count` tensors, at most BL__TENSORS_MAX
int bl__launch_adamw(bl__stream_t stream, unsigned count, const bl__adamw_t *tensors);
int bl__launch_sum_squares(bl__stream_t stream, unsigned count, const bl__squares_t *tensors, double *scratch);

// ---- rope.cu: rotates the first `dims` elements of the first `heads` heads of each row in place
// The tables are float [seq, dims / 2]; sign is 1 or -1.
int bl__launch_rope(bl__stream_t stream, bool bf16, const bl__heads_t *shape, uint64_t dims, const float *cosines,
                    const float *sines, float sign, void *rows);

// ---- embedding.cu: the part of the tables that a bl_embedding_part_t describes. The tables begin with its first row.
// `scale` is a factor of tokens' rows.
typedef struct bl__embedding {
  uint64_t batch, seq, start, width;
  uint64_t first_token, tokens, first_position, positions;
  float scale;
} bl__embedding_t;
int bl__launch_embedding_forward(bl__stream_t stream, bool bf16, const bl__embedding_t *part, const int32_t *tokens,
                                 const float *wte, const float *wpe, void *x, void *scratch);
// Adds the rows of dx in token order; dwpe may be NULL.
int bl__launch_embedding_backward(bl__stream_t stream, bool bf16, const bl__embedding_t *part, const int32_t *tokens,
                                  const void *dx, float *dwte, float *dwpe, void *scratch);

// ---- loss.cu
// Rows are `stride` floats apart. If stride is a multiple of 4, all accesses are packs of 16 bytes. The columns that
// follow the vocabulary in the last pack of a row are then overwritten.
int bl__launch_softcap_logits(bl__stream_t stream, uint64_t rows, uint64_t vocab, uint64_t stride, float softcap,
                              float *logits);
// softcap 0: no softcap.
int bl__launch_cross_entropy(bl__stream_t stream, bool bf16, uint64_t rows, uint64_t vocab, uint64_t stride,
                             const int32_t *labels, float scale, float softcap, float *logits, double *row_losses);
// As bl_ops_t's softmax_statistics and cross_entropy_part; at most BL__PARTS_MAX parts.
#define BL__STATISTICS 3 // of a row and part
int bl__launch_softmax_statistics(bl__stream_t stream, uint64_t rows, uint64_t vocab, uint64_t stride, uint64_t first,
                                  const int32_t *labels, const float *logits, float *statistics);
int bl__launch_cross_entropy_part(bl__stream_t stream, bool bf16, uint64_t rows, uint64_t vocab, uint64_t stride,
                                  uint64_t first, const int32_t *labels, float scale, float softcap, unsigned parts,
                                  const float *statistics, float *logits, double *row_losses);
int bl__launch_loss_sum(bl__stream_t stream, uint64_t rows, const double *row_losses, double *loss,
                        int64_t *first_bad_row);

// ---- softmax.cu: attention whose scores are stored
// Bounds of attention in addition to causality. A query sees `window` keys, including its own (0: all up to its own).
// Scores s become softcap tanh(s / softcap) (softcap 0: no softcap).
typedef struct bl__bounds {
  uint64_t window;
  float softcap, inverse_softcap;
} bl__bounds_t;
// Matrices of scores [rows, keys]: the queries at the last `rows` of `keys` positions.
typedef struct bl__scores {
  uint64_t matrices, rows, keys;
} bl__scores_t;
// Computes the causal softmax of scaled scores. `scores` are floats, one matrix after the other. `probabilities` are
// elements, zero where a query does not see, with matrices `matrix_stride` elements apart. lse: NULL, or the
// log-sum-exps, float [matrices, rows], with matrices `lse_stride` apart.
int bl__launch_softmax_forward(bl__stream_t stream, bool bf16, const bl__bounds_t *bounds, const bl__scores_t *shape,
                               const float *scores, void *probabilities, uint64_t matrix_stride, float *lse,
                               uint64_t lse_stride);
// probabilities = exp(scores - lse): recomputes them, dense, for a backward that kept lse alone.
int bl__launch_softmax_again(bl__stream_t stream, bool bf16, const bl__bounds_t *bounds, const bl__scores_t *shape,
                             const float *scores, const float *lse, uint64_t lse_stride, void *probabilities);
// dscores = probabilities (dprobabilities - row sum of their product) scale, times the slope of the softcap: elements,
// dense, zero where a query does not see. `scores` are those of the forward; they are read only if there is a softcap.
int bl__launch_softmax_backward(bl__stream_t stream, bool bf16, const bl__bounds_t *bounds, const bl__scores_t *shape,
                                const float *scores, const void *probabilities, uint64_t matrix_stride,
                                const float *dprobabilities, float scale, void *dscores);
// Copies at most three sets of heads, dense [batch, heads, seq, head_dim], into rows of shape->row_stride. Elements are
// copied; `floats` are rounded to elements. shape->heads is not read.
int bl__launch_scatter(bl__stream_t stream, bool bf16, bool floats, const bl__heads_t *shape, unsigned count,
                       const bl__scattered_t *sets);

// ---- pages.cu: keys and values of sequences in slices
// Rows of keys and values: elements between sequences, between rows, and from a row's keys to its values.
typedef struct bl__key_rows {
  uint64_t sequence, row, values;
} bl__key_rows_t;
// Pages have `rows` rows of each sequence, `width` elements of keys and as many of values. A block has the rows of all
// pages, page after page in each sequence.
typedef struct bl__pages {
  uint64_t sequences, rows, width;
  bl__key_rows_t page, block;
} bl__pages_t;
// Copies `count` pages into a block of the same elements.
int bl__launch_copy_pages(bl__stream_t stream, bool bf16, const bl__pages_t *shape, unsigned count,
                          const void *const *pages, void *block);
// Takes a block of gradients of keys and values (`floats`: floats, otherwise elements) apart. The last part goes to the
// rows `own`, rounded to elements, the others to float pages. `adds`: pages have sums already, which are added, and the
// last page's sums are added to the last part. Otherwise the last page is not read.
int bl__launch_put_gradients(bl__stream_t stream, bool bf16, bool floats, const bl__pages_t *shape, unsigned count,
                             float *const *pages, const void *block, bool adds, const bl__key_rows_t *own_rows,
                             void *own);

// ---- checksum.cu: `bytes` bytes, a multiple of 16
int bl__launch_checksum(bl__stream_t stream, uint64_t bytes, const void *block, uint64_t *hash, uint64_t *scratch);

#ifdef __cplusplus
}
#endif

#endif
