// SPDX-License-Identifier: Apache-2.0
// LayerNorm and RMSNorm. A row is held in registers or in shared memory, so that it is read once.
//
// Forward: one block per row; 2 elements moved per element. Backward: rows are distributed to at most 256 blocks. Each
// sums the gradients of the parameters over its rows in registers and writes one line of partial sums to scratch. A
// second kernel adds the lines in order. 4 elements (dy, x, residual, dx) are moved per element, and 8 bytes per block
// and column for each kind of parameter.
#include "compute/ops/cuda/kernels.h"
#include "compute/ops/cuda/kernels/device.h"
#include "compute/ops/cuda/kernels/lines.h"

#define THREADS_MAX  512
#define WARPS_MAX    (THREADS_MAX / 32)
#define DEPTH_MAX    4
#define STATIC_BYTES 256 // of shared memory

// A thread has KEEP packs; its pack c begins at column (c blockDim + thread) WIDTH.
template <typename E> static BL_DEVICE unsigned column_of(int c) {
  return (c * blockDim.x + threadIdx.x) * bl_pack<E>::WIDTH;
}

// Returns the number of columns that the threads of this warp have together.
template <typename E, int KEEP> static BL_DEVICE float columns_of_warp(unsigned width) {
  constexpr unsigned most = 32 * bl_pack<E>::WIDTH;
  unsigned count = 0;
#pragma unroll
  for (int c = 0; c < KEEP; c++) {
    const unsigned first = (c * blockDim.x + threadIdx.x / 32 * 32) * bl_pack<E>::WIDTH;
    count += first >= width ? 0 : width - first < most ? width - first : most;
  }
  return (float)count;
}

// Returns (x - mean) inverse. For bf16 one instruction computes it; its rounding error is far below that of x.
template <typename E> static BL_DEVICE float normalised(float x, float mean, float inverse) {
  return sizeof(E) == sizeof(float) ? (x - mean) * inverse : fmaf(x, inverse, -mean * inverse);
}

template <typename E, bool Wide, bool Rms, int KEEP>
__global__ void __launch_bounds__(THREADS_MAX, 1)
    norm_forward(bl_count rows, unsigned width, float epsilon, float offset, const E *__restrict__ x,
                 const float *__restrict__ gain, const float *__restrict__ bias, E *__restrict__ y,
                 float *__restrict__ stats) {
  constexpr int WIDTH = bl_pack<E>::WIDTH;
  __shared__ float shared[3 * WARPS_MAX];
  const bl_count row = blockIdx.x;
  const E *const line = x + row * width;
  float values[KEEP][WIDTH] = {};
#pragma unroll
  for (int c = 0; c < KEEP; c++) {
    if (column_of<E>(c) < width) {
      bl_unpack<E>(bl_load<E, Wide>(line, column_of<E>(c), width), values[c]);
    }
  }
  const auto squares_from = [&](float centre) {
    float squares = 0.0f;
#pragma unroll
    for (int c = 0; c < KEEP; c++) {
      const unsigned at = column_of<E>(c);
      if (Rms || at < width) {
#pragma unroll
        // The zeros after the end of the row must not count as deviations.
        for (int i = 0; i < WIDTH; i++) {
          const float deviation = Rms || Wide || at + i < width ? values[c][i] - centre : 0.0f;
          squares += deviation * deviation;
        }
      }
    }
    return squares;
  };
  bl_moments moments = {0.0f, 0.0f};
  if constexpr (Rms) {
    moments.squares = bl_block_all(squares_from(0.0f), shared, bl_plus());
  } else {
    float sum = 0.0f;
#pragma unroll
    for (int c = 0; c < KEEP; c++) { // zeros do not change the sum
#pragma unroll
      for (int i = 0; i < WIDTH; i++) {
        sum += values[c][i];
      }
    }
    moments = bl_block_moments(sum, columns_of_warp<E, KEEP>(width), (float)width, squares_from, shared);
  }
  const float mean = moments.mean, inverse = bl_inverse_root(bl_quotient(moments.squares, (float)width) + epsilon);
  if (threadIdx.x == 0) {
    if constexpr (!Rms) {
      stats[row] = mean;
      stats[rows + row] = inverse;
    } else {
      stats[row] = inverse;
    }
  }
#pragma unroll
  for (int c = 0; c < KEEP; c++) {
    const unsigned at = column_of<E>(c);
    if (at < width) {
      float gains[WIDTH], biases[WIDTH] = {};
      bl_load_floats<E, Wide>(gain, at, width, gains);
      if constexpr (!Rms) {
        bl_load_floats<E, Wide>(bias, at, width, biases);
      }
#pragma unroll
      for (int i = 0; i < WIDTH; i++) {
        const float n = Rms ? values[c][i] * inverse : normalised<E>(values[c][i], mean, inverse);
        values[c][i] = Rms ? n * (gains[i] + offset) : fmaf(n, gains[i] + offset, biases[i]);
      }
      bl_store<E, Wide>(y + row * width, at, width, bl_repack<E>(values[c]));
    }
  }
}

// What a thread of norm_backward keeps in its registers. There are 128 of them (64 for KEEP 1, where two blocks share a
// multiprocessor). It always keeps the sums of gradients. If there is space, it also keeps gains and both factors of
// every element of a row. Otherwise it reads the row a second time from shared memory, and gains from the cache.
template <typename E, bool Wide, bool Rms, int KEEP> struct kept_of {
  static constexpr int NUMBERS = KEEP * bl_pack<E>::WIDTH;
  static constexpr bool GAINS = Wide && NUMBERS * (Rms ? 2 : 3) <= 72, ROW = Wide && NUMBERS * (Rms ? 4 : 5) <= 80;
  static constexpr bool RING = KEEP <= 4; // rows are prefetched into shared memory; longer ones do not fit
};

// dx may be dy, x or residual: a thread reads the packs that it writes before it writes them. Rows of dy, x and
// residual are prefetched into a ring of `depth` slots in shared memory, where each thread reads its own packs. Mean
// and deviation of the next row are prefetched as well.
//
// lines: partial sums of gains [gridDim][width], then (LayerNorm) of biases [gridDim][width]; NULL: not wanted.
template <typename E, bool Wide, bool Rms, int KEEP>
__global__ void __launch_bounds__(THREADS_MAX, KEEP == 1 ? 2 : 1)
    norm_backward(bl_count rows, unsigned width, float offset, const E *dy, const E *x, const float *__restrict__ gain,
                  const float *__restrict__ stats, const E *residual, E *dx, float *__restrict__ lines,
                  unsigned depth) {
  constexpr int WIDTH = bl_pack<E>::WIDTH;
  typedef kept_of<E, Wide, Rms, KEEP> kept;
  BL_DYNAMIC_SHARED(bl_words, ring);
  __shared__ float shared[2][2 * WARPS_MAX];
  float dgain[KEEP][WIDTH] = {}, dbias[Rms ? 1 : KEEP][WIDTH] = {}, gains[kept::GAINS ? KEEP : 1][WIDTH] = {};
  float scaled[kept::ROW ? KEEP : 1][WIDTH] = {}, numbers[kept::ROW ? KEEP : 1][WIDTH] = {};
  const unsigned part_words = KEEP * blockDim.x, slot_words = (residual != NULL ? 3 : 2) * part_words;
  const bl_count stride = (bl_count)gridDim.x * width;

  const auto fetch = [&](bl_count row, bl_count first, unsigned slot) {
    if (kept::RING && row < rows) {
#pragma unroll
      for (int c = 0; c < KEEP; c++) {
        const unsigned at = column_of<E>(c);
        if (at < width) {
          bl_words *place = ring + slot * slot_words + c * blockDim.x + threadIdx.x;
          bl_fetch<E, Wide>(place, dy + first, at, width);
          bl_fetch<E, Wide>(place + part_words, x + first, at, width);
          if (residual != NULL) {
            bl_fetch<E, Wide>(place + 2 * part_words, residual + first, at, width);
          }
        }
      }
    }
    bl_fetch_group();
  };
  // Reads a thread's pack of dy, x or residual, whose row begins at `line` in memory.
  const auto take = [&](unsigned slot, unsigned part, int c, const E *line, float(&values)[WIDTH]) {
    if constexpr (kept::RING) {
      bl_unpack<E>({ring[slot * slot_words + part * part_words + c * blockDim.x + threadIdx.x]}, values);
    } else {
      bl_unpack<E>(bl_load<E, Wide>(line, column_of<E>(c), width), values);
    }
  };
  const auto take_gains = [&](int c, float(&values)[WIDTH]) {
    bl_load_floats<E, Wide>(gain, column_of<E>(c), width, values);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
      values[i] += offset;
    }
  };

  bl_count first = (bl_count)blockIdx.x * width;
  for (unsigned ahead = 0; ahead + 1 < depth; ahead++) {
    fetch(blockIdx.x + (bl_count)ahead * gridDim.x, first + ahead * stride, ahead);
  }
  if constexpr (kept::GAINS) {
#pragma unroll
    for (int c = 0; c < KEEP; c++) {
      if (column_of<E>(c) < width) {
        take_gains(c, gains[c]);
      }
    }
  }
  float next_mean = Rms ? 0.0f : stats[blockIdx.x], next_inverse = stats[Rms ? blockIdx.x : rows + blockIdx.x];
  unsigned slot = 0;
  int parity = 0;
  for (bl_count row = blockIdx.x; row < rows; row += gridDim.x, first += stride, parity ^= 1) {
    const bl_count last = row + (bl_count)(depth - 1) * gridDim.x;
    fetch(last, first + (depth - 1) * stride, slot == 0 ? depth - 1 : slot - 1);
    const float mean = next_mean, inverse = next_inverse;
    if (const bl_count next = row + gridDim.x; next < rows) {
      next_mean = Rms ? 0.0f : stats[next];
      next_inverse = stats[Rms ? next : rows + next];
    }
    bl_fetch_wait(depth - 1);
    // Both factors of an element's contribution to the row's sums: its gradient times the gain, and its normalised
    // input.
    const auto factors = [&](int c, bool adds, float(&s)[WIDTH], float(&n)[WIDTH]) {
      float g[WIDTH], values[WIDTH], local[WIDTH];
      take(slot, 0, c, dy + first, g); // zeros after the end of the row do not change the sums
      take(slot, 1, c, x + first, values);
      if constexpr (!kept::GAINS) {
        take_gains(c, local);
      }
#pragma unroll
      for (int i = 0; i < WIDTH; i++) {
        n[i] = Rms ? values[i] * inverse : normalised<E>(values[i], mean, inverse);
        s[i] = g[i] * (kept::GAINS ? gains[kept::GAINS ? c : 0][i] : local[i]);
        if (adds) {
          dgain[c][i] += g[i] * n[i];
          if constexpr (!Rms) {
            dbias[c][i] += g[i];
          }
        }
      }
    };
    float sum = 0.0f, dot = 0.0f;
#pragma unroll
    for (int c = 0; c < KEEP; c++) {
      if (column_of<E>(c) < width) {
        float s[WIDTH], n[WIDTH];
        factors(c, true, s, n);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
          sum += Rms ? 0.0f : s[i];
          dot += s[i] * n[i];
          if constexpr (kept::ROW) {
            scaled[c][i] = s[i];
            numbers[c][i] = n[i];
          }
        }
      }
    }
    if constexpr (Rms) {
      dot = bl_block_all(dot, shared[parity], bl_plus());
    } else {
      bl_block_sums(&sum, &dot, shared[parity]);
    }
    const float centre = bl_quotient(-inverse * sum, (float)width), slope = bl_quotient(-inverse * dot, (float)width);
#pragma unroll
    for (int c = 0; c < KEEP; c++) {
      if (column_of<E>(c) < width) {
        float s[WIDTH], n[WIDTH], added[WIDTH] = {};
        if constexpr (!kept::ROW) {
          factors(c, false, s, n);
        }
        if (residual != NULL) {
          take(slot, 2, c, residual + first, added);
        }
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
          if constexpr (kept::ROW) {
            s[i] = scaled[c][i];
            n[i] = numbers[c][i];
          }
          s[i] = fmaf(s[i], inverse, fmaf(n[i], slope, Rms ? added[i] : centre + added[i]));
        }
        bl_store<E, Wide>(dx + first, column_of<E>(c), width, bl_repack<E>(s));
      }
    }
    slot = slot + 1 == depth ? 0 : slot + 1;
  }
  if (lines == NULL) {
    return;
  }
#pragma unroll
  for (int c = 0; c < KEEP; c++) {
    const unsigned at = column_of<E>(c);
    if (at < width) {
      bl_store_floats<E, Wide>(lines + (bl_count)blockIdx.x * width, at, width, dgain[c]);
      if constexpr (!Rms) {
        bl_store_floats<E, Wide>(lines + ((bl_count)gridDim.x + blockIdx.x) * width, at, width, dbias[c]);
      }
    }
  }
}

// Threads, and packs per thread, for rows of one width; the shape alone determines them.
struct geometry {
  unsigned threads;
  int keep;
};

// `few`, `some`: numbers of packs per thread above which a block has 256 and 512 threads.
static geometry geometry_of(bool bf16, bl_count width, bl_count few, bl_count some) {
  const bl_count packs = bl_over(width, bf16 ? 8 : 4);
  const unsigned threads = packs <= few * 128 ? 128 : packs <= some * 256 ? 256 : 512;
  const bl_count each = bl_over(packs, threads);
  return {threads, each <= 1 ? 1 : each <= 2 ? 2 : bf16 && each == 3 ? 3 : each <= 4 ? 4 : 8};
}

// Returns the number of blocks, which is the number of lines. On an H100 or H200 a multiprocessor has one block, or two
// if registers allow it. An A100 has 108 multiprocessors and needs a second wave.
static unsigned lines_of(bool rms, int keep, bl_count rows, bl_count width) {
  const bl_count space = BL__SCRATCH_BYTES / ((rms ? 1 : 2) * width * sizeof(float));
  return (unsigned)bl_least(bl_least(rows, keep == 1 ? 256 : 128), space);
}

template <typename E, bool W, bool Rms>
static int forward_of(bl__stream_t stream, int keep, unsigned threads, bl_count rows, bl_count width, float epsilon,
                      float offset, const E *x, const float *gain, const float *bias, E *y, float *stats) {
#define FORWARD(KEEP)                                                                                                  \
  BL_LAUNCH((norm_forward<E, W, Rms, KEEP>), (unsigned)rows, threads, stream, rows, (unsigned)width, epsilon, offset,  \
            x, gain, bias, y, stats)
  if constexpr (sizeof(E) == sizeof(float)) { // only rows of floats are that long
    if (keep == 8) {
      return FORWARD(8);
    }
  } else if (keep == 3) { // hidden sizes of 9984 and 12288 without a register spill
    return FORWARD(3);
  }
  return keep == 1 ? FORWARD(1) : keep == 2 ? FORWARD(2) : FORWARD(4);
}

// Returns the slots of the ring: as many as fit, with a second block on the multiprocessor if there are two.
static unsigned depth_of(int keep, bl_count slot_bytes) {
  const bl_count space = bl_shared_bytes(keep == 1 ? 2 : 1);
  const bl_count slots = space > STATIC_BYTES ? (space - STATIC_BYTES) / slot_bytes : 0;
  return slots < 1 ? 1 : (unsigned)bl_least(slots, DEPTH_MAX);
}

template <typename E, bool W, bool Rms>
static int backward_of(bl__stream_t stream, int keep, unsigned threads, unsigned blocks, bl_count rows, bl_count width,
                       float offset, const E *dy, const E *x, const float *gain, const float *stats, const E *residual,
                       E *dx, float *lines) {
  const bl_count slot_bytes = keep > 4 ? 0 : (bl_count)(residual == NULL ? 2 : 3) * keep * threads * sizeof(bl_words);
  const unsigned depth = slot_bytes == 0 ? 1 : depth_of(keep, slot_bytes);
#define BACKWARD(KEEP)                                                                                                 \
  BL_LAUNCH_SHARED((norm_backward<E, W, Rms, KEEP>), blocks, threads, depth *slot_bytes, stream, rows,                 \
                   (unsigned)width, offset, dy, x, gain, stats, residual, dx, lines, depth)
  if constexpr (sizeof(E) == sizeof(float)) { // only rows of floats are that long
    if (keep == 8) {
      return BACKWARD(8);
    }
  } else if (keep == 3) { // hidden sizes of 9984 and 12288 without a register spill
    return BACKWARD(3);
  }
  return keep == 1 ? BACKWARD(1) : keep == 2 ? BACKWARD(2) : BACKWARD(4);
}

int bl__launch_norm_forward(bl__stream_t stream, bool bf16, bool rms, uint64_t rows, uint64_t width, float epsilon,
                            float offset, const void *x, const float *gain, const float *bias, void *y, float *stats) {
  if (rows == 0) {
    return 0;
  }
  const geometry g = geometry_of(bf16, width, 4, 4);
  const bool wide =
      width % (bf16 ? 8 : 4) == 0 && bl_is_wide(x) && bl_is_wide(gain) && (rms || bl_is_wide(bias)) && bl_is_wide(y);
  return rms ? BL_TYPED(bf16, wide,
                        (forward_of<E, W, true>(stream, g.keep, g.threads, rows, width, epsilon, offset, (const E *)x,
                                                gain, NULL, (E *)y, stats)))
             : BL_TYPED(bf16, wide,
                        (forward_of<E, W, false>(stream, g.keep, g.threads, rows, width, epsilon, offset, (const E *)x,
                                                 gain, bias, (E *)y, stats)));
}

int bl__launch_norm_backward(bl__stream_t stream, bool bf16, bool rms, uint64_t rows, uint64_t width, float offset,
                             const void *dy, const void *x, const float *gain, const float *stats,
                             const void *residual_gradient, void *dx, float *partials, float *scratch) {
  if (rows == 0) {
    return 0;
  }
  const geometry g = geometry_of(bf16, width, 1, 1);
  const unsigned blocks = lines_of(rms, g.keep, rows, width);
  float *lines = partials != NULL ? scratch : NULL;
  const bool wide = width % (bf16 ? 8 : 4) == 0 && bl_is_wide(dy) && bl_is_wide(x) && bl_is_wide(gain) &&
                    bl_is_wide(residual_gradient) && bl_is_wide(dx);
  const int result =
      rms ? BL_TYPED(bf16, wide,
                     (backward_of<E, W, true>(stream, g.keep, g.threads, blocks, rows, width, offset, (const E *)dy,
                                              (const E *)x, gain, stats, (const E *)residual_gradient, (E *)dx, lines)))
          : BL_TYPED(
                bf16, wide,
                (backward_of<E, W, false>(stream, g.keep, g.threads, blocks, rows, width, offset, (const E *)dy,
                                          (const E *)x, gain, stats, (const E *)residual_gradient, (E *)dx, lines)));
  if (result != 0 || partials == NULL) {
    return result;
  }
  const bl__lines_t sums[2] = {{lines, partials, blocks, width, 0, false},
                               {lines + (bl_count)blocks * width, partials + width, blocks, width, 0, false}};
  return bl_add_lines(stream, rms ? 1 : 2, sums);
}
