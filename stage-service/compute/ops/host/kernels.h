// SPDX-License-Identifier: Apache-2.0
// The inner loops of the host back end: single-threaded functions over a range of rows or elements. Every file in
// kernels/ is compiled once per instruction set, which BL_KERNEL_SET names, and fills one table of functions. Files of
// kernels/typed are compiled once per element type as well. The files of ops/host (host.c, norm.c, ...) split the work
// over threads and call the kernels through the table.
//
// Rules for a kernel: no allocation, no thread, no global state. A row's result depends on that row alone. Sums run in
// an order that the shape fixes. Arithmetic is fp32. Data are row-major, and dense unless a stride is passed; strides
// count elements.
// Private to ops/host. Thread: any, each call on its own data.
#ifndef BALLAST_COMPUTE_OPS_HOST_KERNELS_H
#define BALLAST_COMPUTE_OPS_HOST_KERNELS_H

#include "base/minmax.h"
#include "compute/ops/ops.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// One head of one sequence, packed densely by the pack functions. Rows are padded with zeros from head_dim to `width`,
// a multiple of BL_HEAD_ALIGN. Keys are cut into tiles of BL_TILE rows; the last tile is padded.
#define BL_TILE       64
#define BL_HEAD_ALIGN 16

static inline size_t bl__head_width(size_t head_dim) {
  return (head_dim + BL_HEAD_ALIGN - 1) / BL_HEAD_ALIGN * BL_HEAD_ALIGN;
}
static inline size_t bl__tiles(size_t seq) {
  return (seq + BL_TILE - 1) / BL_TILE;
}

// Packed keys and values of one key/value head. `seq_padded` = tiles * BL_TILE.
typedef struct bl__keys {
  const float *k;            // [seq_padded, width]
  const float *v;            // [seq_padded, width]
  const float *k_transposed; // [tiles][width][BL_TILE]
  const float *v_transposed; // [tiles][width][BL_TILE], backward only
} bl__keys_t;

typedef struct bl__head {
  size_t seq, head_dim, width; // seq: keys; also queries, together with the rows before `first`
  // Row of the first query; not 0 in a slice. The rows before it in its tile of q are padding.
  size_t first;
  size_t window; // keys that a query sees, its own included; 0: all up to its own
  float softcap; // of scores, times log2(e) like the scores; 0: none
  bl__keys_t keys;
  const float *q; // [seq_padded, width], times log2(e) and the scale of scores, so that softmax uses powers of two
} bl__head_t;

// C [m, n] (+)= A^T B from A [k, m] and B [k, n]: the gradient of a weight. Rows are `_row` elements apart.
typedef struct bl__weight_gradient {
  size_t m, n, k;
  const void *a, *b;
  size_t a_row, b_row;
  bool accumulate;
  float *c;
  size_t c_row;
} bl__weight_gradient_t;

// Rows and panels of columns of A that weight_gradient packs at a time, and the floats of its scratch. No instruction
// set has panels of more than 8 columns or strips of more than 64.
#define BL_GRADIENT_DEPTH   128
#define BL_GRADIENT_PANELS  64
#define BL_GRADIENT_SCRATCH ((size_t)BL_GRADIENT_DEPTH * (BL_GRADIENT_PANELS * 8 + 64) + (size_t)8 * 64)

// Kernels on activations of one type: `void *` points to elements of that type, strides count elements.
typedef struct bl_typed_kernels {
  // ---- rows --------------------------------------------------------------------------------------------
  void (*norm_forward)(size_t rows, size_t width, bool rms, float epsilon, float gain_offset, const void *x,
                       const float *gain, const float *bias, void *y, float *means, float *deviations);
  void (*norm_backward)(size_t rows, size_t width, bool rms, float gain_offset, const void *dy, const void *x,
                        const float *gain, const float *means, const float *deviations, const void *residual_gradient,
                        void *dx);
  // Adds the contribution of `rows` rows to dgain[0..columns) and dbias (NULL with rms). Pointers are to the first
  // column; `stride` is the width of a whole row.
  void (*norm_partials)(size_t rows, size_t columns, size_t stride, const void *dy, const void *x, const float *means,
                        const float *deviations, float *dgain, float *dbias);
  // Adds column sums of `rows` rows.
  void (*column_sums)(size_t rows, size_t columns, size_t stride, const void *x, float *sums);
  // On rows of qkv. Adds to partials [2, head_dim]. Ignores the rows of `shape`.
  void (*head_norm_forward)(size_t rows, const bl_head_norm_shape_t *shape, const void *qkv, const float *query_gain,
                            const float *key_gain, void *y);
  void (*head_norm_backward)(size_t rows, const bl_head_norm_shape_t *shape, const void *dy, const void *qkv,
                             const float *query_gain, const float *key_gain, void *dqkv, float *partials);
  void (*gated_forward)(bl_gate_t gate, size_t rows, size_t width, const void *pre, void *act);
  void (*gated_backward)(bl_gate_t gate, size_t rows, size_t width, const void *dact, const void *pre, void *dpre);
  // Rotates the first `dims` of head_dim dimensions of `heads` heads of one row of qkv. cosines and sines [dims / 2]
  // are those of the row's position. sign is 1 forward, -1 backward.
  void (*rope)(size_t heads, size_t head_dim, size_t dims, const float *cosines, const float *sines, float sign,
               void *row);
  // Returns the loss of one row and replaces its logits with their gradient, as elements from the start of the row on.
  // softcap as in ops.h.
  double (*cross_entropy)(size_t vocab, size_t label, float scale, float softcap, float *logits);
  // Replaces logits with exp(logit - largest) factor, as elements from the start of the row on. If label < vocab,
  // subtracts scale there.
  void (*softmax_gradient)(size_t vocab, size_t label, float scale, float softcap, float largest, float factor,
                           float *logits);

  // ---- elements ----------------------------------------------------------------------------------------
  void (*gelu_forward)(size_t count, const void *pre, void *act);
  void (*gelu_backward)(size_t count, const void *dact, const void *pre, void *dpre);
  void (*add)(size_t count, const void *a, const void *b, void *y);
  // y = the parts [parts] summed as a tree + bias + residual (either may be NULL), for elements from `first` on.
  void (*sum_parts)(size_t first, size_t count, uint32_t parts, const void *const *x, const float *bias,
                    const void *residual, void *y);
  // x = scale token + position (NULL: none)
  void (*embed)(size_t count, float scale, const float *token, const float *position, void *x);
  void (*accumulate_gradient)(size_t count, float scale, const void *x, float *y); // y += scale x
  void (*widen)(size_t count, const void *x, float *y);
  void (*narrow)(size_t count, const float *x, void *y);

  // scratch [BL_GRADIENT_SCRATCH]
  void (*weight_gradient)(const bl__weight_gradient_t *gradient, float *scratch);

  // ---- attention ---------------------------------------------------------------------------------------
  // packed [seq_padded, width] = scale x[seq, head_dim] with `stride` between rows of x; padding is zero.
  void (*pack)(size_t seq, size_t head_dim, size_t stride, float scale, const void *x, float *packed);
  void (*unpack)(size_t seq, size_t head_dim, size_t stride, float scale, const float *packed, void *x);
  // Computes rows [tile BL_TILE, ...) of the output of one head. att begins with row head->first and has `stride`
  // between rows. Writes `lse` [seq - first] (flash) or `probabilities` [seq - first, seq] (naive); the other is NULL.
  // scratch: bl__attention_scratch_floats().
  void (*attention_forward)(const bl__head_t *head, size_t tile, size_t stride, void *att, float *lse,
                            void *probabilities, float *scratch);
  // One query head. Overwrites dq [seq_padded, width] from the tile of the first query on, and adds to dk and dv (of
  // the key head). The gradients are those of the packed operands; the caller scales them when it unpacks. datt is
  // packed like q. deltas [seq] = rowsum(datt att), 0 in the padding before the first query.
  void (*attention_backward)(const bl__head_t *head, const float *datt, const float *deltas, const float *lse,
                             const void *probabilities, float *dq, float *dk, float *dv, float *scratch);
  // deltas[i] = sum over a row of a times b, rows `stride` apart.
  void (*row_dots)(size_t rows, size_t width, size_t stride, const void *a, const void *b, float *deltas);
} bl_typed_kernels_t;

typedef struct bl_kernels {
  const char *name;            // "avx512"
  bl_typed_kernels_t typed[2]; // by bl_compute_dtype_t
  void (*adamw)(size_t count, const bl_adamw_t *options, const float *dw, float *w, float *m, float *v);
  double (*sum_squares)(size_t count, const float *x);
  void (*accumulate)(size_t count, const float *x, float *y);
  void (*softcap)(size_t count, float softcap, float *x); // x = softcap tanh(x / softcap)
  void (*fill)(size_t count, float value, float *y);
  // The largest logit of a row, and the sum of exp(logit - largest).
  void (*softmax_statistics)(size_t vocab, const float *logits, float *largest, float *sum);
  void (*transpose)(size_t seq, size_t width, const float *packed, float *transposed); // to [tiles][width][BL_TILE]
} bl_kernels_t;

// Floats of scratch for attention_forward (a tile's output and scores) and attention_backward (tiles of probabilities,
// their gradients and, if there is a softcap, its slopes).
static inline size_t bl__attention_scratch_floats(size_t seq, size_t head_dim, bool flash, bool softcapped) {
  const size_t tile = BL_TILE, keys = flash ? tile : bl__tiles(seq) * tile;
  return bl_max_u64(tile * (bl__head_width(head_dim) + keys), tile * tile * (softcapped ? 3 : 2));
}

// Returns the kernels of `set`; AUTO: the best set of this CPU. NULL if this CPU or build lacks it.
const bl_kernels_t *bl__kernels_select(bl_instruction_set_t set);

#endif
