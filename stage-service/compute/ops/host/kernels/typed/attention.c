// SPDX-License-Identifier: Apache-2.0
// Causal attention of one head, tile by tile (Dao et al. 2022, Dao 2023): a tile of BL_TILE queries meets tiles of
// BL_TILE keys up to the diagonal. Flash keeps a running maximum and sum per row and saves only the log-sum-exp; naive
// stores the probabilities. Both use the same products. Queries carry log2(e) / sqrt(head_dim), so exponentials are
// powers of two.
//
// Backward, per query tile i and key tile j <= i:
//   P = 2^(Q K^T - lse)   dV_j += P^T dO_i   dP = dO_i V_j^T   dS = P (dP - delta)   dQ_i += dS K_j   dK_j += dS^T Q_i
#include "base/minmax.h"
#include "compute/ops/host/kernels/functions.h"
#include "compute/ops/host/kernels/tile.h"
#include "compute/ops/host/kernels/typed/element.h"

#include <math.h>
#include <string.h>

// Columns a product must cover for `count` keys: whole groups, the rest being zero padding.
static inline size_t padded(size_t count) {
  return (count + BL_HEAD_ALIGN - 1) / BL_HEAD_ALIGN * BL_HEAD_ALIGN;
}

void BL_KERNEL(pack)(size_t seq, size_t head_dim, size_t stride, float scale, const void *x_rows, float *packed) {
  const size_t width = bl__head_width(head_dim);
  const bl__element_t *x = x_rows;
  for (size_t row = 0; row < seq; row++, x += stride, packed += width) {
    for (size_t i = 0; i < head_dim; i++) {
      packed[i] = scale * bl__float_of(x[i]);
    }
    for (size_t i = head_dim; i < width; i++) {
      packed[i] = 0.0f;
    }
  }
  memset(packed, 0, (bl__tiles(seq) * BL_TILE - seq) * width * sizeof(float));
}

void BL_KERNEL(unpack)(size_t seq, size_t head_dim, size_t stride, float scale, const float *packed, void *x_rows) {
  const size_t width = bl__head_width(head_dim);
  bl__element_t *x = x_rows;
  for (size_t row = 0; row < seq; row++, x += stride, packed += width) {
    for (size_t i = 0; i < head_dim; i++) {
      x[i] = bl__element_of(scale * packed[i]);
    }
  }
}

void BL_KERNEL(row_dots)(size_t rows, size_t width, size_t stride, const void *a_rows, const void *b_rows,
                         float *deltas) {
  const bl__element_t *a = a_rows, *b = b_rows;
  for (size_t row = 0; row < rows; row++, a += stride, b += stride) {
    float sum = 0.0f;
    for (size_t i = 0; i < width; i++) {
      sum += bl__float_of(a[i]) * bl__float_of(b[i]);
    }
    deltas[row] = sum;
  }
}

// What of a tile is computed: `rows` rows from `row`, and `keys` keys from the first. Off the diagonal that is all of it;
// on it, groups of BL_HEAD_ALIGN rows with the keys up to their end, which saves a third of the tile.
typedef struct piece {
  size_t row, rows, keys;
} piece_t;

static inline size_t pieces_of(size_t rows, bool diagonal) {
  return diagonal ? padded(rows) / BL_HEAD_ALIGN : 1;
}

static inline piece_t piece_of(size_t rows, size_t keys, bool diagonal, size_t n) {
  if (!diagonal) {
    return (piece_t){0, rows, keys};
  }
  const size_t row = n * BL_HEAD_ALIGN;
  return (piece_t){row, bl_min_u64(BL_HEAD_ALIGN, rows - row), bl_min_u64(keys, row + BL_HEAD_ALIGN)};
}

// scores[rows of the piece, padded(keys)] = Q_i K_j^T
static void scores_of(const bl__head_t *head, size_t i, size_t j, piece_t piece, float *scores, size_t scores_row) {
  bl__tile_product(piece.rows, padded(piece.keys),
                   &(bl__tile_t){.k = head->width,
                                 .a = head->q + (i * BL_TILE + piece.row) * head->width,
                                 .a_row = head->width,
                                 .a_column = 1,
                                 .b = head->keys.k_transposed + j * BL_TILE * head->width,
                                 .b_row = BL_TILE,
                                 .c = scores + piece.row * scores_row,
                                 .c_row = scores_row});
}

// Sets what lies at and behind `visible` in its group of BL_HEAD_ALIGN scores.
static inline void hide(float *scores, size_t visible, float value) {
  const size_t inside = visible % BL_HEAD_ALIGN;
  float *group = scores + visible - inside;
  for (size_t c = 0; c < BL_HEAD_ALIGN; c++) {
    group[c] = c < inside ? group[c] : value;
  }
}

// One row of a tile meets its running maximum and sum: scores become powers of two relative to the new maximum.
// `visible` keys come before the diagonal; the rest of their group passes through the same loops as minus infinity,
// which leaves them without remainder, and becomes zero. Returns the factor for what was summed so far.
__attribute__((always_inline)) static inline float softmax_row(float *scores, size_t visible, float *maximum,
                                                               float *sum) {
  const size_t columns = padded(visible);
  if (visible < columns) {
    hide(scores, visible, -INFINITY);
  }
  const float largest = bl__largest(scores, columns, *maximum);
  float total = 0.0f;
  for (size_t c = 0; c < columns; c++) {
    float p = bl__exp2(scores[c] - largest);
    scores[c] = p;
    total += p; // hidden keys add 2^-126 to a sum of at least 1: nothing
  }
  if (visible < columns) {
    hide(scores, visible, 0.0f);
  }
  const float factor = *sum == 0.0f ? 0.0f : bl__exp2(*maximum - largest);
  *sum = *sum * factor + total;
  *maximum = largest;
  return factor;
}

static void flash_forward(const bl__head_t *head, size_t i, size_t rows, float *output, float *lse, float *scratch) {
  float *scores = scratch;
  float *maxima = scratch + (size_t)BL_TILE * BL_TILE, *sums = maxima + BL_TILE;
  for (size_t r = 0; r < rows; r++) {
    maxima[r] = -INFINITY;
    sums[r] = 0.0f;
  }
  for (size_t j = 0; j <= i; j++) {
    const size_t keys = bl_min_u64(BL_TILE, head->seq - j * BL_TILE);
    for (size_t n = 0; n < pieces_of(rows, i == j); n++) {
      const piece_t piece = piece_of(rows, keys, i == j, n);
      scores_of(head, i, j, piece, scores, BL_TILE);
      for (size_t r = piece.row; r < piece.row + piece.rows; r++) {
        // Full tiles have a constant trip count: two copies of the loops, and the common one unrolls.
        float *row = scores + r * BL_TILE;
        const float factor =
            i == j ? softmax_row(row, r + 1, &maxima[r], &sums[r]) : softmax_row(row, BL_TILE, &maxima[r], &sums[r]);
        if (j > 0 && factor != 1.0f) {
          for (size_t d = 0; d < head->width; d++) {
            output[r * head->width + d] *= factor;
          }
        }
      }
      bl__tile_product(piece.rows, head->width,
                       &(bl__tile_t){.k = piece.keys,
                                     .a = scores + piece.row * BL_TILE,
                                     .a_row = BL_TILE,
                                     .a_column = 1,
                                     .b = head->keys.v + j * BL_TILE * head->width,
                                     .b_row = head->width,
                                     .c = output + piece.row * head->width,
                                     .c_row = head->width,
                                     .accumulate = j > 0});
    }
  }
  for (size_t r = 0; r < rows; r++) {
    const float inverse = 1.0f / sums[r];
    for (size_t d = 0; d < head->width; d++) {
      output[r * head->width + d] *= inverse;
    }
    lse[i * BL_TILE + r] = BL_LN_2 * maxima[r] + logf(sums[r]);
  }
}

static void naive_forward(const bl__head_t *head, size_t i, size_t rows, float *output, bl__element_t *probabilities,
                          float *scratch) {
  const size_t scores_row = bl__tiles(head->seq) * BL_TILE;
  for (size_t j = 0; j <= i; j++) {
    const piece_t piece = {0, rows, bl_min_u64(BL_TILE, head->seq - j * BL_TILE)};
    scores_of(head, i, j, piece, scratch + j * BL_TILE, scores_row);
  }
  for (size_t r = 0; r < rows; r++) {
    float *row = scratch + r * scores_row;
    float maximum = -INFINITY, sum = 0.0f;
    const size_t visible = i * BL_TILE + r + 1;
    softmax_row(row, visible, &maximum, &sum);
    memset(row + padded(visible), 0, ((i + 1) * BL_TILE - padded(visible)) * sizeof(float));
    const float inverse = 1.0f / sum;
    bl__element_t *stored = probabilities + (i * BL_TILE + r) * head->seq;
    const size_t columns = bl_min_u64((i + 1) * BL_TILE, head->seq);
    for (size_t c = 0; c < columns; c++) {
      stored[c] = bl__element_of(row[c] * inverse);
      row[c] = bl__float_of(stored[c]); // values are weighted as the backward will see it
    }
    for (size_t c = columns; c < head->seq; c++) {
      stored[c] = bl__element_of(0.0f);
    }
  }
  bl__tile_product(rows, head->width,
                   &(bl__tile_t){.k = bl_min_u64((i + 1) * BL_TILE, head->seq),
                                 .a = scratch,
                                 .a_row = scores_row,
                                 .a_column = 1,
                                 .b = head->keys.v,
                                 .b_row = head->width,
                                 .c = output,
                                 .c_row = head->width});
}

void BL_KERNEL(attention_forward)(const bl__head_t *head, size_t tile, size_t stride, void *att_rows, float *lse,
                                  void *probabilities, float *scratch) {
  const size_t rows = bl_min_u64(BL_TILE, head->seq - tile * BL_TILE);
  float *output = scratch;
  float *rest = scratch + BL_TILE * head->width;
  if (lse) {
    flash_forward(head, tile, rows, output, lse, rest);
  } else {
    naive_forward(head, tile, rows, output, probabilities, rest);
  }
  bl__element_t *att = att_rows;
  for (size_t r = 0; r < rows; r++) {
    for (size_t d = 0; d < head->head_dim; d++) {
      att[(tile * BL_TILE + r) * stride + d] = bl__element_of(output[r * head->width + d]);
    }
  }
}

// P of one piece: again from scores and log-sum-exp, or as stored.
static void probabilities_of(const bl__head_t *head, size_t i, size_t j, piece_t piece, const float *lse,
                             const bl__element_t *probabilities, float *p) {
  const size_t end = piece.row + piece.rows;
  if (probabilities) {
    for (size_t r = piece.row; r < end; r++) {
      const bl__element_t *stored = probabilities + (i * BL_TILE + r) * head->seq + j * BL_TILE;
      for (size_t c = 0; c < piece.keys; c++) {
        p[r * BL_TILE + c] = bl__float_of(stored[c]);
      }
      memset(p + r * BL_TILE + piece.keys, 0, (padded(piece.keys) - piece.keys) * sizeof(float));
    }
    return;
  }
  scores_of(head, i, j, piece, p, BL_TILE);
  for (size_t r = piece.row; r < end; r++) {
    float *row = p + r * BL_TILE;
    const float shift = lse[i * BL_TILE + r] * BL_LOG2_E;
    if (i != j) {
      for (size_t c = 0; c < BL_TILE; c++) {
        row[c] = bl__exp2(row[c] - shift);
      }
      continue;
    }
    for (size_t c = 0; c < padded(piece.keys); c++) {
      row[c] = bl__exp2(row[c] - shift);
    }
    if ((r + 1) % BL_HEAD_ALIGN) {
      hide(row, r + 1, 0.0f);
    }
  }
}

// Gradients that one piece of tile (i, j) gives. p and ds are scratch tiles.
static void backward_piece(const bl__head_t *head, size_t i, size_t j, piece_t piece, const float *datt,
                           const float *deltas, const float *p, float *ds, float *dq, float *dk, float *dv) {
  const size_t width = head->width, first = i * BL_TILE + piece.row, step = BL_TILE * width;
  const bl__tile_t transposed = {
      .k = piece.rows, .a_row = 1, .a_column = BL_TILE, .b_row = width, .c_row = width, .accumulate = true};
  p += piece.row * BL_TILE;
  ds += piece.row * BL_TILE;

  bl__tile_t tile = transposed; // dV_j += P^T dO_i
  tile.a = p, tile.b = datt + first * width, tile.c = dv + j * step;
  bl__tile_product(piece.keys, width, &tile);

  bl__tile_product(piece.rows, padded(piece.keys), // dP = dO_i V_j^T
                   &(bl__tile_t){.k = width,
                                 .a = datt + first * width,
                                 .a_row = width,
                                 .a_column = 1,
                                 .b = head->keys.v_transposed + j * step,
                                 .b_row = BL_TILE,
                                 .c = ds,
                                 .c_row = BL_TILE});
  for (size_t r = 0; r < piece.rows; r++) {
    const float delta = deltas[first + r];
    for (size_t c = 0; c < padded(piece.keys); c++) {
      ds[r * BL_TILE + c] = p[r * BL_TILE + c] * (ds[r * BL_TILE + c] - delta);
    }
  }

  bl__tile_product(piece.rows, width, // dQ_i += dS K_j
                   &(bl__tile_t){.k = piece.keys,
                                 .a = ds,
                                 .a_row = BL_TILE,
                                 .a_column = 1,
                                 .b = head->keys.k + j * step,
                                 .b_row = width,
                                 .c = dq + first * width,
                                 .c_row = width,
                                 .accumulate = true});
  tile = transposed; // dK_j += dS^T Q_i
  tile.a = ds, tile.b = head->q + first * width, tile.c = dk + j * step;
  bl__tile_product(piece.keys, width, &tile);
}

void BL_KERNEL(attention_backward)(const bl__head_t *head, const float *datt, const float *deltas, const float *lse,
                                   const void *probabilities, float *dq, float *dk, float *dv, float *scratch) {
  const size_t tiles = bl__tiles(head->seq);
  float *p = scratch, *ds = scratch + (size_t)BL_TILE * BL_TILE;
  memset(dq, 0, tiles * BL_TILE * head->width * sizeof(float));
  for (size_t j = 0; j < tiles; j++) {
    const size_t keys = bl_min_u64(BL_TILE, head->seq - j * BL_TILE);
    for (size_t i = j; i < tiles; i++) {
      const size_t rows = bl_min_u64(BL_TILE, head->seq - i * BL_TILE);
      for (size_t n = 0; n < pieces_of(rows, i == j); n++) {
        const piece_t piece = piece_of(rows, keys, i == j, n);
        probabilities_of(head, i, j, piece, lse, probabilities, p);
        backward_piece(head, i, j, piece, datt, deltas, p, ds, dq, dk, dv);
      }
    }
  }
}
