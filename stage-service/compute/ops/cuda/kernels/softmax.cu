// SPDX-License-Identifier: Apache-2.0
// Causal softmax over stored scores, its gradient, and the way of heads back into rows. A block per row of a matrix;
// four columns a thread at a time. Bytes per pair of positions, of which causality leaves half to be read: forward 8 (the
// second reading comes from the cache) and an element written; backward 4 and two elements, and 4 more for a cap. Of a
// window's row no more is read than is seen.
#include "compute/ops/cuda/kernels.h"
#include "compute/ops/cuda/kernels/device.h"

#define THREADS 128
#define LOWEST  (-3.402823466e38f)

// Bounded: keys left of a window are not seen, or scores are capped, or both. The row's first key that is seen.
template <bool Bounded> static BL_DEVICE bl_count first_seen(bl_count seen, const bl__bounds_t &bounds) {
  return Bounded && bounds.window > 0 && seen > bounds.window ? seen - bounds.window : 0;
}

// Where a thread's fours begin, so that each lies as it does without a window.
template <bool Bounded> static BL_DEVICE bl_count first_four(bl_count from) {
  return (Bounded ? from / 4 * 4 : 0) + (bl_count)threadIdx.x * 4;
}

template <bool Bounded> static BL_DEVICE bool sees(bl_count column, bl_count from, bl_count seen) {
  return column < seen && (!Bounded || column >= from);
}

template <bool Wide, bool Bounded>
static BL_DEVICE void load_scores(const float *line, bl_count at, bl_count seq, const bl__bounds_t &bounds,
                                  float (&values)[4]) {
  bl_load_four<float, Wide>(line, at, seq, values);
  if (Bounded && bounds.cap != 0.0f) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      values[i] = bl_capped(values[i], bounds.cap, bounds.inverse_cap);
    }
  }
}

// Again: lse is given, and nothing is summed.
template <typename E, bool Wide, bool Again, bool Bounded>
__global__ void __launch_bounds__(THREADS)
    softmax_forward(bl_count seq, const bl__bounds_t bounds, const float *__restrict__ scores,
                    E *__restrict__ probabilities, bl_count matrix_stride, float *lse, bl_count lse_stride) {
  __shared__ float rooms[2][THREADS / 32];
  const bl_count matrix = blockIdx.x / (uint32_t)seq, row = blockIdx.x % (uint32_t)seq, seen = row + 1;
  const bl_count from = first_seen<Bounded>(seen, bounds);
  const float *line = scores + (bl_count)blockIdx.x * seq;
  float top, share;
  if constexpr (Again) {
    top = lse[matrix * lse_stride + row];
    share = 1.0f;
  } else {
    float largest = LOWEST, sum = 0.0f;
    for (bl_count at = first_four<Bounded>(from); at < seen; at += THREADS * 4) {
      float values[4], here = largest;
      load_scores<Wide, Bounded>(line, at, seq, bounds, values);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        here = sees<Bounded>(at + i, from, seen) ? fmaxf(here, values[i]) : here;
      }
      sum *= bl_exp(largest - here);
      largest = here;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        sum += sees<Bounded>(at + i, from, seen) ? bl_exp(values[i] - largest) : 0.0f;
      }
    }
    top = bl_block_all(largest, rooms[0], bl_larger());
    sum = bl_block_all(sum * bl_exp(largest - top), rooms[1], bl_plus());
    share = 1.0f / sum;
    if (lse != NULL && threadIdx.x == 0) {
      lse[matrix * lse_stride + row] = top + logf(sum);
    }
  }
  E *out = probabilities + matrix * matrix_stride + row * seq;
  for (bl_count at = (bl_count)threadIdx.x * 4; at < seq; at += THREADS * 4) {
    float values[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (at < seen && (!Bounded || at + 4 > from)) {
      load_scores<Wide, Bounded>(line, at, seq, bounds, values);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        values[i] = sees<Bounded>(at + i, from, seen) ? bl_exp(values[i] - top) * share : 0.0f;
      }
    }
    bl_store_four<E, Wide>(out, at, seq, values);
  }
}

// scores: read where they are capped, for the slope of the cap.
template <typename E, bool Wide, bool Bounded>
__global__ void __launch_bounds__(THREADS)
    softmax_backward(bl_count seq, const bl__bounds_t bounds, const float *__restrict__ scores,
                     const E *__restrict__ probabilities, bl_count matrix_stride,
                     const float *__restrict__ dprobabilities, float scale, E *__restrict__ dscores) {
  __shared__ float room[THREADS / 32];
  const bl_count matrix = blockIdx.x / (uint32_t)seq, row = blockIdx.x % (uint32_t)seq, seen = row + 1;
  const bl_count from = first_seen<Bounded>(seen, bounds);
  const E *line = probabilities + matrix * matrix_stride + row * seq;
  const float *gradient = dprobabilities + (bl_count)blockIdx.x * seq;
  float dot = 0.0f;
  for (bl_count at = first_four<Bounded>(from); at < seen; at += THREADS * 4) {
    float p[4], g[4];
    bl_load_four<E, Wide>(line, at, seq, p);
    bl_load_four<float, Wide>(gradient, at, seq, g);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      dot += sees<Bounded>(at + i, from, seen) ? p[i] * g[i] : 0.0f; // where it does not see anything may stand in g
    }
  }
  dot = bl_block_all(dot, room, bl_plus());
  E *out = dscores + (bl_count)blockIdx.x * seq;
  for (bl_count at = (bl_count)threadIdx.x * 4; at < seq; at += THREADS * 4) {
    float p[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (at < seen && (!Bounded || at + 4 > from)) {
      float g[4];
      bl_load_four<E, Wide>(line, at, seq, p);
      bl_load_four<float, Wide>(gradient, at, seq, g);
      float slope[4] = {scale, scale, scale, scale};
      if (Bounded && bounds.cap != 0.0f) {
        bl_load_four<float, Wide>(scores + (bl_count)blockIdx.x * seq, at, seq, slope);
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const float t = tanhf(slope[i] * bounds.inverse_cap);
          slope[i] = (1.0f - t * t) * scale;
        }
      }
#pragma unroll
      for (int i = 0; i < 4; i++) {
        p[i] = sees<Bounded>(at + i, from, seen) ? p[i] * (g[i] - dot) * slope[i] : 0.0f;
      }
    }
    bl_store_four<E, Wide>(out, at, seq, p);
  }
}

// A thread per four elements of a head; blockIdx.y goes over (batch, position), blockIdx.z over the sets.
template <typename From, typename E, bool Wide>
__global__ void __launch_bounds__(THREADS)
    scatter_heads(const bl__heads_t shape, const __grid_constant__ bl__scatter_table_t table) {
  const bl__scattered_t &set = table.entries[blockIdx.z];
  const From *heads = (const From *)set.from;
  E *rows = (E *)set.rows;
  // 32 bits: a division of 64 takes longer than moving four elements.
  const uint32_t fours = ((uint32_t)shape.head_dim + 3) / 4, index = blockIdx.x * THREADS + threadIdx.x;
  const bl_count head = index / fours, at = (bl_count)(index % fours) * 4;
  if (head >= set.heads) {
    return;
  }
  for (bl_count row = blockIdx.y; row < shape.batch * shape.seq; row += gridDim.y) {
    const bl_count b = (uint32_t)row / (uint32_t)shape.seq, position = (uint32_t)row % (uint32_t)shape.seq;
    float values[4];
    bl_load_four<From, Wide>(heads + ((b * set.heads + head) * shape.seq + position) * shape.head_dim, at,
                             shape.head_dim, values);
    bl_store_four<E, Wide>(rows + row * shape.row_stride + head * shape.head_dim, at, shape.head_dim, values);
  }
}

template <typename From, typename E, bool W>
static int scatter_of(bl__stream_t stream, const bl__heads_t *shape, const bl__scatter_table_t &table) {
  bl_count most = 0;
  for (unsigned i = 0; i < table.count; i++) {
    most = table.entries[i].heads > most ? table.entries[i].heads : most;
  }
  const bl_count across = bl_over(most * bl_over(shape->head_dim, 4), THREADS);
  const dim3 grid((unsigned)across, (unsigned)bl_least(shape->batch * shape->seq, 65535), table.count);
  return BL_LAUNCH((scatter_heads<From, E, W>), grid, THREADS, stream, *shape, table);
}

int bl__launch_scatter(bl__stream_t stream, bool bf16, bool floats, const bl__heads_t *shape, unsigned count,
                       const bl__scattered_t *sets) {
  bl__scatter_table_t table = {};
  bool wide = shape->head_dim % 4 == 0 && shape->row_stride % 4 == 0;
  for (unsigned i = 0; i < count; i++) {
    table.entries[table.count++] = sets[i];
    // Floats are written 16 bytes at a time, so their rows must start there; four bf16 are 8.
    wide = wide && bl_is_wide(sets[i].from) && ((uintptr_t)sets[i].rows & (bf16 ? 7u : 15u)) == 0;
  }
  if (floats) {
    return BL_TYPED(bf16, wide, (scatter_of<float, E, W>(stream, shape, table)));
  }
  return BL_TYPED(bf16, wide, (scatter_of<E, E, W>(stream, shape, table)));
}

static bool matrices_are_wide(bl_count seq, bl_count matrix_stride, const void *a, const void *b) {
  return seq % 4 == 0 && matrix_stride % 4 == 0 && bl_is_wide(a) && bl_is_wide(b);
}

static bool is_bounded(const bl__bounds_t *bounds) {
  return bounds->window > 0 || bounds->cap != 0.0f;
}

template <bool Again, bool Bounded>
static int forward_of(bl__stream_t stream, bool bf16, const bl__bounds_t *bounds, bl_count matrices, bl_count seq,
                      const float *scores, void *probabilities, bl_count matrix_stride, float *lse,
                      bl_count lse_stride) {
  return BL_TYPED(bf16, matrices_are_wide(seq, matrix_stride, scores, probabilities),
                  BL_LAUNCH((softmax_forward<E, W, Again, Bounded>), (unsigned)(matrices * seq), THREADS, stream, seq,
                            *bounds, scores, (E *)probabilities, matrix_stride, lse, lse_stride));
}

template <bool Bounded>
static int backward_of(bl__stream_t stream, bool bf16, const bl__bounds_t *bounds, bl_count matrices, bl_count seq,
                       const float *scores, const void *probabilities, bl_count matrix_stride,
                       const float *dprobabilities, float scale, void *dscores) {
  return BL_TYPED(
      bf16,
      matrices_are_wide(seq, matrix_stride, probabilities, dprobabilities) && bl_is_wide(dscores) && bl_is_wide(scores),
      BL_LAUNCH((softmax_backward<E, W, Bounded>), (unsigned)(matrices * seq), THREADS, stream, seq, *bounds, scores,
                (const E *)probabilities, matrix_stride, dprobabilities, scale, (E *)dscores));
}

int bl__launch_softmax_forward(bl__stream_t stream, bool bf16, const bl__bounds_t *bounds, uint64_t matrices,
                               uint64_t seq, const float *scores, void *probabilities, uint64_t matrix_stride,
                               float *lse, uint64_t lse_stride) {
  return is_bounded(bounds) ? forward_of<false, true>(stream, bf16, bounds, matrices, seq, scores, probabilities,
                                                      matrix_stride, lse, lse_stride)
                            : forward_of<false, false>(stream, bf16, bounds, matrices, seq, scores, probabilities,
                                                       matrix_stride, lse, lse_stride);
}

int bl__launch_softmax_again(bl__stream_t stream, bool bf16, const bl__bounds_t *bounds, uint64_t matrices,
                             uint64_t seq, const float *scores, const float *lse, uint64_t lse_stride,
                             void *probabilities) {
  return is_bounded(bounds) ? forward_of<true, true>(stream, bf16, bounds, matrices, seq, scores, probabilities,
                                                     seq * seq, (float *)lse, lse_stride)
                            : forward_of<true, false>(stream, bf16, bounds, matrices, seq, scores, probabilities,
                                                      seq * seq, (float *)lse, lse_stride);
}

int bl__launch_softmax_backward(bl__stream_t stream, bool bf16, const bl__bounds_t *bounds, uint64_t matrices,
                                uint64_t seq, const float *scores, const void *probabilities, uint64_t matrix_stride,
                                const float *dprobabilities, float scale, void *dscores) {
  return is_bounded(bounds) ? backward_of<true>(stream, bf16, bounds, matrices, seq, scores, probabilities,
                                                matrix_stride, dprobabilities, scale, dscores)
                            : backward_of<false>(stream, bf16, bounds, matrices, seq, scores, probabilities,
                                                 matrix_stride, dprobabilities, scale, dscores);
}
