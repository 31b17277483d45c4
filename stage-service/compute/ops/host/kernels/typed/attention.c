// SPDX-License-Identifier: Apache-2.0
// Causal attention of one head, tile by tile (Dao et al. 2022, Dao 2023). A tile of BL_TILE queries is multiplied with
// tiles of BL_TILE keys up to the diagonal; with a window, from the first tile that one of its queries sees. Flash
// keeps a running maximum and sum per row and saves only the log-sum-exp. Naive stores the probabilities. Both use the
// same products. Queries carry log2(e) and the scale, so exponentials are powers of two.
//
// Backward, per query tile i and key tile j <= i:
//   P = 2^(Q K^T - lse)   dV_j += P^T dO_i   dP = dO_i V_j^T   dS = P (dP - delta)   dQ_i += dS K_j   dK_j += dS^T Q_i
// With a softcap, scores S' = softcap tanh(S / softcap) replace S = Q K^T, and dS is P (dP - delta) (1 - (S' /
// softcap)^2).
#include "base/minmax.h"
#include "compute/ops/host/kernels/functions.h"
#include "compute/ops/host/kernels/tile.h"
#include "compute/ops/host/kernels/typed/element.h"

#include <math.h>
#include <string.h>

#define AHEAD 24                    // rows that pack fetches early: they are too far apart for the CPU to foresee them
#define BAND  ((size_t)4 * BL_TILE) // keys whose scores flash has at a time
_Static_assert(BL_HEAD_ALIGN *BAND <= (size_t)BL_TILE * BL_TILE, "scratch holds the scores of a band");

// Columns that a product must cover for `count` keys: whole groups; the rest is zero padding.
static inline size_t padded(size_t count) {
  return (count + BL_HEAD_ALIGN - 1) / BL_HEAD_ALIGN * BL_HEAD_ALIGN;
}

void BL_KERNEL(pack)(size_t seq, size_t head_dim, size_t stride, float scale, const void *x_rows, float *packed) {
  const size_t width = bl__head_width(head_dim);
  const bl__element_t *x = x_rows;
  for (size_t row = 0; row < seq; row++, x += stride, packed += width) {
    for (size_t i = 0; i < head_dim; i += 64 / sizeof *x) {
      __builtin_prefetch(x + AHEAD * stride + i);
    }
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

// The index of the query in row r of tile i, counted from head->first. NOT_HERE: padding before the first one.
#define NOT_HERE SIZE_MAX
static inline size_t query_of(const bl__head_t *head, size_t i, size_t r) {
  const size_t row = i * BL_TILE + r;
  return row < head->first ? NOT_HERE : row - head->first;
}

// A tile of queries and a tile of keys that are multiplied. whole: every row sees every key.
typedef struct tile_pair {
  size_t i, j, rows, keys;
  bool whole;
} tile_pair_t;

// The part of them that is computed: `rows` rows from `row` on, and keys [first, keys); `first` begins a group of
// BL_HEAD_ALIGN. If every row sees every key, it is everything. Otherwise it is a group of BL_HEAD_ALIGN rows with the
// keys that one of them sees, which saves a third of the tile on the diagonal. rows 0: no row sees any key.
typedef struct piece {
  size_t row, rows, first, keys;
} piece_t;

// Number of keys at the start of tile j, at most `keys`, that are before the window of row r of tile i.
static inline size_t hidden_of(const bl__head_t *head, size_t i, size_t j, size_t r, size_t keys) {
  const size_t end = (i - j) * BL_TILE + r + 1;
  return head->window == 0 || end <= head->window ? 0 : bl_min_u64(end - head->window, keys);
}

static inline tile_pair_t tile_pair_of(const bl__head_t *head, size_t i, size_t j) {
  const size_t rows = bl_min_u64(BL_TILE, head->seq - i * BL_TILE), keys = bl_min_u64(BL_TILE, head->seq - j * BL_TILE);
  return (tile_pair_t){i, j, rows, keys, i != j && hidden_of(head, i, j, rows - 1, keys) == 0};
}

// Tile i of queries is multiplied with tiles [first_tile, i] of keys, and tile j of keys with tiles [j, last_tile] of
// queries.
static inline size_t first_tile(const bl__head_t *head, size_t i) {
  const size_t keys = i * BL_TILE + 1; // up to the key of the first row
  return head->window == 0 || keys <= head->window ? 0 : (keys - head->window) / BL_TILE;
}

static inline size_t last_tile(const bl__head_t *head, size_t j) {
  const size_t last = bl__tiles(head->seq) - 1;
  return head->window == 0 ? last : bl_min_u64(last, ((j + 1) * BL_TILE + head->window - 2) / BL_TILE);
}

static inline size_t pieces_of(const tile_pair_t *m) {
  return m->whole ? 1 : padded(m->rows) / BL_HEAD_ALIGN;
}

static inline piece_t piece_of(const bl__head_t *head, const tile_pair_t *m, size_t n) {
  if (m->whole) {
    return (piece_t){0, m->rows, 0, m->keys};
  }
  const size_t row = n * BL_HEAD_ALIGN;
  const size_t keys = m->i == m->j ? bl_min_u64(m->keys, row + BL_HEAD_ALIGN) : m->keys;
  const size_t hidden = hidden_of(head, m->i, m->j, row, keys);
  return (piece_t){row, hidden == keys ? 0 : bl_min_u64(BL_HEAD_ALIGN, m->rows - row),
                   hidden / BL_HEAD_ALIGN * BL_HEAD_ALIGN, keys};
}

static void softcap_scores(const bl__head_t *head, piece_t piece, float *scores, size_t scores_row) {
  const float softcap = head->softcap, inverse = 1.0f / softcap;
  for (size_t r = 0; r < piece.rows; r++) {
    float *row = scores + r * scores_row + piece.first;
    for (size_t c = 0; c < padded(piece.keys) - piece.first; c++) {
      row[c] = softcap * bl__tanh(row[c] * inverse);
    }
  }
}

// scores[rows of the piece, from its first key to padded(keys)] = Q_i K_j^T, softcapped. `scores` is where key 0 of the
// tile is in the first row of the piece.
static void scores_of(const bl__head_t *head, size_t i, size_t j, piece_t piece, float *scores, size_t scores_row) {
  bl__tile_product(piece.rows, padded(piece.keys) - piece.first,
                   &(bl__tile_t){.k = head->width,
                                 .a = head->q + (i * BL_TILE + piece.row) * head->width,
                                 .a_row = head->width,
                                 .a_column = 1,
                                 .b = head->keys.k_transposed + j * BL_TILE * head->width + piece.first,
                                 .b_row = BL_TILE,
                                 .c = scores + piece.first,
                                 .c_row = scores_row});
  if (head->softcap != 0.0f) {
    softcap_scores(head, piece, scores, scores_row);
  }
}

// Sets the scores from `visible` to the end of its group of BL_HEAD_ALIGN.
static inline void hide(float *scores, size_t visible, float value) {
  const size_t inside = visible % BL_HEAD_ALIGN;
  float *group = scores + visible - inside;
  for (size_t c = 0; c < BL_HEAD_ALIGN; c++) {
    group[c] = c < inside ? group[c] : value;
  }
}

// Updates the running maximum and sum of one row with the scores of a tile: scores become powers of two relative to the
// new maximum. `visible` keys come before the diagonal. The rest of their group passes through the same loops as minus
// infinity, so that no loop has a remainder, and becomes zero. Returns the factor for the sums so far.
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

static inline void hide_before(float *scores, size_t first, size_t hidden, float value) {
  for (size_t c = first; c < hidden; c++) {
    scores[c] = value;
  }
}

// Like softmax_row, for scores [first, visible), of which those before `hidden` are outside of the window.
static float softmax_window_row(float *scores, size_t first, size_t hidden, size_t visible, float *maximum,
                                float *sum) {
  if (hidden >= visible) {
    memset(scores + first, 0, (padded(visible) - first) * sizeof(float));
    return 1.0f;
  }
  hide_before(scores, first, hidden, -INFINITY);
  const float factor = softmax_row(scores + first, visible - first, maximum, sum);
  hide_before(scores, first, hidden, 0.0f);
  return factor;
}

// Attention of `count` queries of tile i from row `row` on, a multiple of BL_HEAD_ALIGN. The keys that one of them sees
// are multiplied in bands of BAND keys: few maxima and sums, and few times that the output is scaled.
static void flash_rows(const bl__head_t *head, size_t i, size_t row, size_t count, float *output, float *maxima,
                       float *sums, float *scores) {
  const size_t query = i * BL_TILE + row, end = query + count;
  const size_t begin = hidden_of(head, i, 0, row, query) / BL_HEAD_ALIGN * BL_HEAD_ALIGN, start = begin / BAND * BAND;
  for (size_t band = start; band < end; band += BAND) {
    const size_t first = bl_max_u64(band, begin), last = bl_min_u64(band + BAND, end);
    for (size_t j = first / BL_TILE; j * BL_TILE < last; j++) {
      const size_t key = j * BL_TILE;
      const piece_t piece = {row, count, first > key ? first - key : 0, bl_min_u64(BL_TILE, last - key)};
      scores_of(head, i, j, piece, scores + (key - band), BAND);
    }
    for (size_t r = 0; r < count; r++) {
      const size_t visible = bl_min_u64(query + r + 1, last) - band;
      const size_t hidden = hidden_of(head, i, band / BL_TILE, row + r, visible);
      const float factor = softmax_window_row(scores + r * BAND, first - band, bl_max_u64(hidden, first - band),
                                              visible, &maxima[r], &sums[r]);
      for (size_t d = 0; band > start && d < head->width; d++) {
        output[r * head->width + d] *= factor;
      }
    }
    bl__tile_product(count, head->width,
                     &(bl__tile_t){.k = last - first,
                                   .a = scores + (first - band),
                                   .a_row = BAND,
                                   .a_column = 1,
                                   .b = head->keys.v + first * head->width,
                                   .b_row = head->width,
                                   .c = output,
                                   .c_row = head->width,
                                   .accumulate = band > start});
  }
}

static void flash_forward(const bl__head_t *head, size_t i, size_t rows, float *output, float *lse, float *scratch) {
  for (size_t row = 0; row < rows; row += BL_HEAD_ALIGN) {
    const size_t count = bl_min_u64(BL_HEAD_ALIGN, rows - row);
    float maxima[BL_HEAD_ALIGN], sums[BL_HEAD_ALIGN] = {0}, *rows_output = output + row * head->width;
    for (size_t r = 0; r < count; r++) {
      maxima[r] = -INFINITY;
    }
    flash_rows(head, i, row, count, rows_output, maxima, sums, scratch);
    for (size_t r = 0; r < count; r++) {
      const float inverse = 1.0f / sums[r];
      const size_t query = query_of(head, i, row + r);
      for (size_t d = 0; d < head->width; d++) {
        rows_output[r * head->width + d] *= inverse;
      }
      if (query != NOT_HERE) {
        lse[query] = BL_LN_2 * maxima[r] + logf(sums[r]);
      }
    }
  }
}

static void naive_forward(const bl__head_t *head, size_t i, size_t rows, float *output, bl__element_t *probabilities,
                          float *scratch) {
  const size_t scores_row = bl__tiles(head->seq) * BL_TILE, first = first_tile(head, i) * BL_TILE;
  const size_t columns = bl_min_u64((i + 1) * BL_TILE, head->seq);
  for (size_t j = first / BL_TILE; j <= i; j++) {
    const piece_t piece = {0, rows, 0, bl_min_u64(BL_TILE, head->seq - j * BL_TILE)};
    scores_of(head, i, j, piece, scratch + j * BL_TILE, scores_row);
  }
  for (size_t r = 0; r < rows; r++) {
    float *row = scratch + r * scores_row;
    float maximum = -INFINITY, sum = 0.0f;
    const size_t visible = i * BL_TILE + r + 1, hidden = hidden_of(head, i, 0, r, visible);
    const size_t start = hidden / BL_HEAD_ALIGN * BL_HEAD_ALIGN;
    softmax_window_row(row, start, hidden, visible, &maximum, &sum);
    hide_before(row, first, start, 0.0f);
    memset(row + padded(visible), 0, ((i + 1) * BL_TILE - padded(visible)) * sizeof(float));
    const float inverse = 1.0f / sum;
    if (query_of(head, i, r) == NOT_HERE) {
      continue;
    }
    bl__element_t *stored = probabilities + query_of(head, i, r) * head->seq;
    for (size_t c = 0; c < first; c++) {
      stored[c] = bl__element_of(0.0f);
    }
    for (size_t c = first; c < columns; c++) {
      stored[c] = bl__element_of(row[c] * inverse);
      row[c] = bl__float_of(stored[c]); // the backward weights values with the stored numbers
    }
    for (size_t c = columns; c < head->seq; c++) {
      stored[c] = bl__element_of(0.0f);
    }
  }
  bl__tile_product(rows, head->width,
                   &(bl__tile_t){.k = columns - first,
                                 .a = scratch + first,
                                 .a_row = scores_row,
                                 .a_column = 1,
                                 .b = head->keys.v + first * head->width,
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
    const size_t query = query_of(head, tile, r);
    for (size_t d = 0; query != NOT_HERE && d < head->head_dim; d++) {
      att[query * stride + d] = bl__element_of(output[r * head->width + d]);
    }
  }
}

// 1 - (S' / softcap)^2 of one piece.
static void softcap_slopes(const bl__head_t *head, piece_t piece, const float *scores, float *slopes) {
  const float inverse = 1.0f / head->softcap;
  for (size_t r = piece.row; r < piece.row + piece.rows; r++) {
    for (size_t c = piece.first; c < padded(piece.keys); c++) {
      const float t = scores[r * BL_TILE + c] * inverse;
      slopes[r * BL_TILE + c] = 1.0f - t * t;
    }
  }
}

// P of one piece, as stored. The slopes of a softcap (NULL: no softcap) need the scores, which are recomputed.
static void probabilities_stored(const bl__head_t *head, const tile_pair_t *m, piece_t piece,
                                 const bl__element_t *probabilities, float *p, float *slopes) {
  for (size_t r = piece.row; r < piece.row + piece.rows; r++) {
    const size_t query = query_of(head, m->i, r);
    if (query == NOT_HERE) {
      memset(p + r * BL_TILE, 0, BL_TILE * sizeof(float));
      continue;
    }
    const bl__element_t *stored = probabilities + query * head->seq + m->j * BL_TILE;
    for (size_t c = piece.first; c < piece.keys; c++) {
      p[r * BL_TILE + c] = bl__float_of(stored[c]);
    }
    memset(p + r * BL_TILE + piece.keys, 0, (padded(piece.keys) - piece.keys) * sizeof(float));
  }
  if (slopes) {
    scores_of(head, m->i, m->j, piece, slopes + piece.row * BL_TILE, BL_TILE);
    softcap_slopes(head, piece, slopes, slopes);
  }
}

// P of one piece, recomputed from scores and log-sum-exp; slopes as above.
static void probabilities_again(const bl__head_t *head, const tile_pair_t *m, piece_t piece, const float *lse, float *p,
                                float *slopes) {
  scores_of(head, m->i, m->j, piece, p + piece.row * BL_TILE, BL_TILE);
  if (slopes) {
    softcap_slopes(head, piece, p, slopes);
  }
  for (size_t r = piece.row; r < piece.row + piece.rows; r++) {
    float *row = p + r * BL_TILE;
    const size_t query = query_of(head, m->i, r); // all results of padding are 0
    const float shift = query == NOT_HERE ? 0.0f : lse[query] * BL_LOG2_E;
    if (m->whole) {
      for (size_t c = 0; c < BL_TILE; c++) {
        row[c] = bl__exp2(row[c] - shift);
      }
      continue;
    }
    for (size_t c = piece.first; c < padded(piece.keys); c++) {
      row[c] = bl__exp2(row[c] - shift);
    }
    if (m->i == m->j && (r + 1) % BL_HEAD_ALIGN) {
      hide(row, r + 1, 0.0f);
    }
    hide_before(row, piece.first, hidden_of(head, m->i, m->j, r, piece.keys), 0.0f);
  }
}

// Adds the gradients from one piece of tiles (i, j). p, slopes (NULL: no softcap) and ds are scratch tiles.
static void backward_piece(const bl__head_t *head, const tile_pair_t *m, piece_t piece, const float *datt,
                           const float *deltas, const float *p, const float *slopes, float *ds, float *dq, float *dk,
                           float *dv) {
  const size_t width = head->width, row = m->i * BL_TILE + piece.row, key = m->j * BL_TILE + piece.first;
  const size_t keys = piece.keys - piece.first, columns = padded(piece.keys) - piece.first;
  const size_t offset = piece.row * BL_TILE + piece.first; // in tiles
  const bl__tile_t transposed = {
      .k = piece.rows, .a_row = 1, .a_column = BL_TILE, .b_row = width, .c_row = width, .accumulate = true};
  p += offset;
  ds += offset;

  bl__tile_t tile = transposed; // dV_j += P^T dO_i
  tile.a = p, tile.b = datt + row * width, tile.c = dv + key * width;
  bl__tile_product(keys, width, &tile);

  bl__tile_product(piece.rows, columns, // dP = dO_i V_j^T
                   &(bl__tile_t){.k = width,
                                 .a = datt + row * width,
                                 .a_row = width,
                                 .a_column = 1,
                                 .b = head->keys.v_transposed + m->j * BL_TILE * width + piece.first,
                                 .b_row = BL_TILE,
                                 .c = ds,
                                 .c_row = BL_TILE});
  for (size_t r = 0; r < piece.rows; r++) {
    const float delta = deltas[row + r];
    for (size_t c = 0; c < columns; c++) {
      ds[r * BL_TILE + c] = p[r * BL_TILE + c] * (ds[r * BL_TILE + c] - delta);
    }
    for (size_t c = 0; slopes && c < columns; c++) {
      ds[r * BL_TILE + c] *= slopes[offset + r * BL_TILE + c];
    }
  }

  bl__tile_product(piece.rows, width, // dQ_i += dS K_j
                   &(bl__tile_t){.k = keys,
                                 .a = ds,
                                 .a_row = BL_TILE,
                                 .a_column = 1,
                                 .b = head->keys.k + key * width,
                                 .b_row = width,
                                 .c = dq + row * width,
                                 .c_row = width,
                                 .accumulate = true});
  tile = transposed; // dK_j += dS^T Q_i
  tile.a = ds, tile.b = head->q + row * width, tile.c = dk + key * width;
  bl__tile_product(keys, width, &tile);
}

void BL_KERNEL(attention_backward)(const bl__head_t *head, const float *datt, const float *deltas, const float *lse,
                                   const void *probabilities, float *dq, float *dk, float *dv, float *scratch) {
  const size_t tiles = bl__tiles(head->seq), tile = (size_t)BL_TILE * BL_TILE, first = head->first / BL_TILE;
  float *p = scratch, *ds = p + tile, *slopes = head->softcap != 0.0f ? ds + tile : NULL;
  memset(dq + first * BL_TILE * head->width, 0, (tiles - first) * BL_TILE * head->width * sizeof(float));
  for (size_t j = 0; j < tiles; j++) {
    for (size_t i = bl_max_u64(j, first); i <= last_tile(head, j); i++) {
      const tile_pair_t m = tile_pair_of(head, i, j);
      for (size_t n = 0; n < pieces_of(&m); n++) {
        const piece_t piece = piece_of(head, &m, n);
        if (probabilities) {
          probabilities_stored(head, &m, piece, probabilities, p, slopes);
        } else {
          probabilities_again(head, &m, piece, lse, p, slopes);
        }
        backward_piece(head, &m, piece, datt, deltas, p, slopes, ds, dq, dk, dv);
      }
    }
  }
}
