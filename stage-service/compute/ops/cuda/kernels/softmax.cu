// SPDX-License-Identifier: Apache-2.0
// Causal softmax over stored scores, its gradient, and the copy of heads back into rows. One block per row of a matrix,
// which is a query: row `line` of `rows` sees the first keys - rows + line + 1 of `keys` keys.
// Bytes per pair of positions, half of which causality excludes from reading: forward 4 and an element written;
// backward 4 and two elements (the second read is from the cache), and 4 more for a softcap. With a window, only what a
// row sees is read.
#include "compute/ops/cuda/kernels.h"
#include "compute/ops/cuda/kernels/device.h"

#define THREADS     128
#define THREADS_MAX 512 // threads per row of scores
#define KEEP        4   // groups of four scores of a row that a thread holds
#define ROWS        4   // rows whose heads a thread copies
#define LOWEST      (-3.402823466e38f)

// Returns the first key that a row sees. Bounded: there is a window, a softcap, or both.
template <bool Bounded> static BL_DEVICE bl_count first_seen(bl_count seen, const bl__bounds_t &bounds) {
  return Bounded && bounds.window > 0 && seen > bounds.window ? seen - bounds.window : 0;
}

// Returns where a thread's groups of four begin. Their alignment is the same as without a window.
template <bool Bounded> static BL_DEVICE bl_count first_four(bl_count from) {
  return (Bounded ? from / 4 * 4 : 0) + (bl_count)threadIdx.x * 4;
}

template <bool Bounded> static BL_DEVICE bool sees(bl_count column, bl_count from, bl_count seen) {
  return column < seen && (!Bounded || column >= from);
}

struct row_of_scores {
  const float *scores;
  uint32_t keys, from, seen;
};

// Returns the column of a thread's group of four c in a strip. A strip is blockDim KEEP groups of a row.
static BL_DEVICE uint32_t column_of(uint32_t strip, int c) {
  return strip + ((uint32_t)c * blockDim.x + threadIdx.x) * 4;
}

template <bool Bounded> static BL_DEVICE bool sees(uint32_t at, const row_of_scores &row) {
  return at < row.seen && (!Bounded || at >= row.from);
}

template <bool Bounded> static BL_DEVICE bool sees_four(uint32_t at, const row_of_scores &row) {
  return at < row.seen && (!Bounded || at + 4 > row.from);
}

// True if the row sees the whole group of four. Only groups at the ends of the seen range are seen in part.
template <bool Bounded> static BL_DEVICE bool sees_all_four(uint32_t at, const row_of_scores &row) {
  return at + 4 <= row.seen && (!Bounded || at >= row.from);
}

// Loads a strip of a row's scores. In groups of four that are seen in part, unseen scores become -infinity. All loads
// start before the first wait. Meanwhile, groups that are not seen at all are written as zeros to `zeros` (NULL:
// already written).
template <typename E, bool Wide, bool Bounded>
static BL_DEVICE void load_strip(const row_of_scores &row, uint32_t strip, const bl__bounds_t &bounds, E *zeros,
                                 float (&values)[KEEP][4]) {
#pragma unroll
  for (int c = 0; c < KEEP; c++) {
    const uint32_t at = column_of(strip, c);
    const float nothing[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (sees_four<Bounded>(at, row)) {
      bl_load_four<float, Wide>(row.scores, at, row.keys, values[c]);
    } else if (zeros != NULL && at < row.keys) {
      bl_store_four<E, Wide>(zeros, at, row.keys, nothing);
    }
  }
#pragma unroll
  for (int c = 0; c < KEEP; c++) {
    const uint32_t at = column_of(strip, c);
    if (Bounded && bounds.softcap != 0.0f && sees_four<Bounded>(at, row)) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        values[c][i] = bl_softcap(values[c][i], bounds.softcap, bounds.inverse_softcap);
      }
    }
    if (sees_four<Bounded>(at, row) && !sees_all_four<Bounded>(at, row)) {
#pragma unroll
      for (uint32_t i = 0; i < 4; i++) {
        values[c][i] = sees<Bounded>(at + i, row) ? values[c][i] : -INFINITY;
      }
    }
  }
}

// Replaces a thread's seen values of a strip by exp(value - top); returns their sum.
template <bool Bounded>
static BL_DEVICE float exponentials(const row_of_scores &row, uint32_t strip, float top, float (&values)[KEEP][4]) {
  float sum = 0.0f;
#pragma unroll
  for (int c = 0; c < KEEP; c++) {
    if (sees_four<Bounded>(column_of(strip, c), row)) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        values[c][i] = bl_exp(values[c][i] - top);
        sum += values[c][i];
      }
    }
  }
  return sum;
}

// A row of one strip stays in registers; a longer row is read a second time, from the cache. Again: lse is given, and
// nothing is summed. At first a warp sums relative to its own largest score, so that one barrier is enough.
template <typename E, bool Wide, bool Again, bool Bounded>
__global__ void __launch_bounds__(THREADS_MAX, 2)
    softmax_forward(bl_count rows, bl_count keys, const bl__bounds_t bounds, const float *__restrict__ scores,
                    E *__restrict__ probabilities, bl_count matrix_stride, float *lse, bl_count lse_stride) {
  __shared__ float largests[THREADS_MAX / 32], sums[THREADS_MAX / 32];
  const bl_count matrix = blockIdx.x / (uint32_t)rows, line = blockIdx.x % (uint32_t)rows;
  const bl_count seen = keys - rows + line + 1;
  const row_of_scores row = {scores + (bl_count)blockIdx.x * keys, (uint32_t)keys,
                             (uint32_t)first_seen<Bounded>(seen, bounds), (uint32_t)seen};
  E *out = probabilities + matrix * matrix_stride + line * keys;
  const uint32_t step = blockDim.x * KEEP * 4;
  float values[KEEP][4], top, share = 1.0f;
  if constexpr (Again) {
    top = lse[matrix * lse_stride + line];
  } else {
    float largest = LOWEST, sum = 0.0f;
    for (uint32_t strip = 0; strip < row.keys; strip += step) {
      load_strip<E, Wide, Bounded>(row, strip, bounds, out, values);
      float here = -INFINITY;
#pragma unroll
      for (int c = 0; c < KEEP; c++) {
        if (sees_four<Bounded>(column_of(strip, c), row)) {
#pragma unroll
          for (int i = 0; i < 4; i++) {
            here = fmaxf(here, values[c][i]);
          }
        }
      }
      here = fmaxf(largest, bl_warp_all(here, bl_larger()));
      sum *= bl_exp(largest - here);
      largest = here;
      sum += exponentials<Bounded>(row, strip, largest, values);
    }
    sum = bl_warp_all(sum, bl_plus());
    if (threadIdx.x % 32 == 0) {
      largests[threadIdx.x / 32] = largest;
      sums[threadIdx.x / 32] = sum;
    }
    __syncthreads();
    top = largests[0];
#pragma unroll 1
    for (uint32_t i = 1; i < blockDim.x / 32; i++) {
      top = fmaxf(top, largests[i]);
    }
    sum = 0.0f;
#pragma unroll 1
    for (uint32_t i = 0; i < blockDim.x / 32; i++) {
      sum += sums[i] * bl_exp(largests[i] - top);
    }
    share = bl_quotient(1.0f, sum);
    if (lse != NULL && threadIdx.x == 0) {
      lse[matrix * lse_stride + line] = top + logf(sum);
    }
    if (row.keys <= step) { // values are relative to the warp's largest score
      share *= bl_exp(largest - top);
    }
  }
  for (uint32_t strip = 0; strip < row.keys; strip += step) {
    if (Again || row.keys > step) {
      load_strip<E, Wide, Bounded>(row, strip, bounds, Again ? out : NULL, values);
      exponentials<Bounded>(row, strip, top, values);
    }
#pragma unroll
    for (int c = 0; c < KEEP; c++) {
      const uint32_t at = column_of(strip, c);
      if (sees_four<Bounded>(at, row)) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
          values[c][i] *= share;
        }
        if (!sees_all_four<Bounded>(at, row)) { // a row with NaN sums shows NaN only where it sees
#pragma unroll
          for (uint32_t i = 0; i < 4; i++) {
            values[c][i] = sees<Bounded>(at + i, row) ? values[c][i] : 0.0f;
          }
        }
        bl_store_four<E, Wide>(out, at, row.keys, values[c]);
      }
    }
  }
}

// scores: read only if they are softcapped, for the slope of the softcap.
template <typename E, bool Wide, bool Bounded>
__global__ void __launch_bounds__(THREADS)
    softmax_backward(bl_count rows, bl_count keys, const bl__bounds_t bounds, const float *__restrict__ scores,
                     const E *__restrict__ probabilities, bl_count matrix_stride,
                     const float *__restrict__ dprobabilities, float scale, E *__restrict__ dscores) {
  __shared__ float shared[THREADS / 32];
  const bl_count matrix = blockIdx.x / (uint32_t)rows, row = blockIdx.x % (uint32_t)rows;
  const bl_count seen = keys - rows + row + 1;
  const bl_count from = first_seen<Bounded>(seen, bounds);
  const E *line = probabilities + matrix * matrix_stride + row * keys;
  const float *gradient = dprobabilities + (bl_count)blockIdx.x * keys;
  float dot = 0.0f;
  for (bl_count at = first_four<Bounded>(from); at < seen; at += THREADS * 4) {
    float p[4], g[4];
    bl_load_four<E, Wide>(line, at, keys, p);
    bl_load_four<float, Wide>(gradient, at, keys, g);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      dot += sees<Bounded>(at + i, from, seen) ? p[i] * g[i] : 0.0f; // g is arbitrary where the row does not see
    }
  }
  dot = bl_block_all(dot, shared, bl_plus());
  E *out = dscores + (bl_count)blockIdx.x * keys;
  for (bl_count at = (bl_count)threadIdx.x * 4; at < keys; at += THREADS * 4) {
    float p[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (at < seen && (!Bounded || at + 4 > from)) {
      float g[4];
      bl_load_four<E, Wide>(line, at, keys, p);
      bl_load_four<float, Wide>(gradient, at, keys, g);
      float slope[4] = {scale, scale, scale, scale};
      if (Bounded && bounds.softcap != 0.0f) {
        bl_load_four<float, Wide>(scores + (bl_count)blockIdx.x * keys, at, keys, slope);
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const float t = tanhf(slope[i] * bounds.inverse_softcap);
          slope[i] = (1.0f - t * t) * scale;
        }
      }
#pragma unroll
      for (int i = 0; i < 4; i++) {
        p[i] = sees<Bounded>(at + i, from, seen) ? p[i] * (g[i] - dot) * slope[i] : 0.0f;
      }
    }
    bl_store_four<E, Wide>(out, at, keys, p);
  }
}

// A thread takes one pack of a row's heads in ROWS consecutive rows. All its loads start before the first wait.
// blockIdx.y counts the sets.
template <typename From, typename E, bool Wide>
__global__ void __launch_bounds__(THREADS)
    scatter_heads(const bl__heads_t shape, const __grid_constant__ bl__scatter_table_t table) {
  constexpr int WIDTH = bl_pack<E>::WIDTH, PARTS = (int)(sizeof(From) / sizeof(E)), PART = WIDTH / PARTS;
  const bl__scattered_t &set = table.entries[blockIdx.y];
  // 32 bits, because a 64-bit division takes longer than moving a pack.
  const uint32_t size = (uint32_t)shape.head_dim, seq = (uint32_t)shape.seq, rows = (uint32_t)shape.batch * seq;
  const uint32_t packs = (size + WIDTH - 1) / WIDTH, across = packs * (uint32_t)set.heads;
  const uint32_t index = blockIdx.x * THREADS + threadIdx.x, group = index / across, pack = index % across;
  if (group > (rows - 1) / ROWS) {
    return;
  }
  const uint32_t row = group * ROWS, head = pack / packs, at = pack % packs * WIDTH, b = row / seq;
  uint32_t position = row % seq;
  const From *from = (const From *)set.from + (bl_count)((b * (uint32_t)set.heads + head) * seq + position) * size;
  E *to = (E *)set.rows + row * shape.row_stride + (bl_count)head * size;
  bl_pack<From> kept[ROWS][PARTS];
#pragma unroll
  for (uint32_t r = 0; r < ROWS; r++) {
    if (r < rows - row) {
#pragma unroll
      for (int p = 0; p < PARTS; p++) {
        kept[r][p] = bl_load<From, Wide>(from, at + p * PART, size);
      }
    }
    from += size;
    if (++position == seq) { // the same head of the next sequence
      position = 0;
      from += (set.heads - 1) * seq * size;
    }
  }
#pragma unroll
  for (uint32_t r = 0; r < ROWS; r++, to += shape.row_stride) {
    if (r < rows - row) {
      if constexpr (PARTS == 1) {
        bl_store<E, Wide>(to, at, size, kept[r][0]);
      } else {
        float values[WIDTH];
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
          bl_unpack<From>(kept[r][p], *(float(*)[PART])(values + p * PART));
        }
        bl_store<E, Wide>(to, at, size, bl_repack<E>(values));
      }
    }
  }
}

template <typename From, typename E, bool W>
static int scatter_of(bl__stream_t stream, const bl__heads_t *shape, const bl__scatter_table_t &table) {
  bl_count most = 0;
  for (unsigned i = 0; i < table.count; i++) {
    most = table.entries[i].heads > most ? table.entries[i].heads : most;
  }
  const bl_count across = most * bl_over(shape->head_dim, bl_pack<E>::WIDTH), rows = shape->batch * shape->seq;
  if (across * (rows + ROWS) > UINT32_MAX) { // 64 GiB
    return BL_TOO_LARGE;
  }
  const dim3 grid((unsigned)bl_over(across * bl_over(rows, ROWS), THREADS), table.count);
  return BL_LAUNCH((scatter_heads<From, E, W>), grid, THREADS, stream, *shape, table);
}

int bl__launch_scatter(bl__stream_t stream, bool bf16, bool floats, const bl__heads_t *shape, unsigned count,
                       const bl__scattered_t *sets) {
  bl__scatter_table_t table = {};
  const bl_count width = bf16 ? bl_pack<bl_bf16>::WIDTH : bl_pack<float>::WIDTH;
  bool wide = shape->head_dim % width == 0 && shape->row_stride % width == 0;
  for (unsigned i = 0; i < count; i++) {
    table.entries[table.count++] = sets[i];
    wide = wide && bl_is_wide(sets[i].from) && bl_is_wide(sets[i].rows);
  }
  if (floats) {
    return BL_TYPED(bf16, wide, (scatter_of<float, E, W>(stream, shape, table)));
  }
  return BL_TYPED(bf16, wide, (scatter_of<E, E, W>(stream, shape, table)));
}

static bool matrices_are_wide(bl_count keys, bl_count matrix_stride, const void *a, const void *b) {
  return keys % 4 == 0 && matrix_stride % 4 == 0 && bl_is_wide(a) && bl_is_wide(b);
}

static bool is_bounded(const bl__bounds_t *bounds) {
  return bounds->window > 0 || bounds->softcap != 0.0f;
}

template <bool Again, bool Bounded>
static int forward_of(bl__stream_t stream, bool bf16, const bl__bounds_t *bounds, const bl__scores_t *shape,
                      const float *scores, void *probabilities, bl_count matrix_stride, float *lse,
                      bl_count lse_stride) {
  const unsigned threads = (unsigned)bl_least(bl_over(shape->keys, 32 * KEEP * 4) * 32, bl_most_threads(THREADS_MAX));
  return BL_TYPED(bf16, matrices_are_wide(shape->keys, matrix_stride, scores, probabilities),
                  BL_LAUNCH((softmax_forward<E, W, Again, Bounded>), (unsigned)(shape->matrices * shape->rows), threads,
                            stream, shape->rows, shape->keys, *bounds, scores, (E *)probabilities, matrix_stride, lse,
                            lse_stride));
}

template <bool Bounded>
static int backward_of(bl__stream_t stream, bool bf16, const bl__bounds_t *bounds, const bl__scores_t *shape,
                       const float *scores, const void *probabilities, bl_count matrix_stride,
                       const float *dprobabilities, float scale, void *dscores) {
  return BL_TYPED(bf16,
                  matrices_are_wide(shape->keys, matrix_stride, probabilities, dprobabilities) && bl_is_wide(dscores) &&
                      bl_is_wide(scores),
                  BL_LAUNCH((softmax_backward<E, W, Bounded>), (unsigned)(shape->matrices * shape->rows), THREADS,
                            stream, shape->rows, shape->keys, *bounds, scores, (const E *)probabilities, matrix_stride,
                            dprobabilities, scale, (E *)dscores));
}

int bl__launch_softmax_forward(bl__stream_t stream, bool bf16, const bl__bounds_t *bounds, const bl__scores_t *shape,
                               const float *scores, void *probabilities, uint64_t matrix_stride, float *lse,
                               uint64_t lse_stride) {
  return is_bounded(bounds) ? forward_of<false, true>(stream, bf16, bounds, shape, scores, probabilities, matrix_stride,
                                                      lse, lse_stride)
                            : forward_of<false, false>(stream, bf16, bounds, shape, scores, probabilities,
                                                       matrix_stride, lse, lse_stride);
}

int bl__launch_softmax_again(bl__stream_t stream, bool bf16, const bl__bounds_t *bounds, const bl__scores_t *shape,
                             const float *scores, const float *lse, uint64_t lse_stride, void *probabilities) {
  return is_bounded(bounds) ? forward_of<true, true>(stream, bf16, bounds, shape, scores, probabilities,
                                                     shape->rows * shape->keys, (float *)lse, lse_stride)
                            : forward_of<true, false>(stream, bf16, bounds, shape, scores, probabilities,
                                                      shape->rows * shape->keys, (float *)lse, lse_stride);
}

int bl__launch_softmax_backward(bl__stream_t stream, bool bf16, const bl__bounds_t *bounds, const bl__scores_t *shape,
                                const float *scores, const void *probabilities, uint64_t matrix_stride,
                                const float *dprobabilities, float scale, void *dscores) {
  return is_bounded(bounds) ? backward_of<true>(stream, bf16, bounds, shape, scores, probabilities, matrix_stride,
                                                dprobabilities, scale, dscores)
                            : backward_of<false>(stream, bf16, bounds, shape, scores, probabilities, matrix_stride,
                                                 dprobabilities, scale, dscores);
}
