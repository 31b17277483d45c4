// SPDX-License-Identifier: Apache-2.0
// LayerNorm and RMSNorm. A row is held in registers, so that it is read once.
//
// Forward, a block per row: 2 elements moved per element. Backward, rows dealt to at most BLOCKS_MAX blocks, each of
// which sums the gradients of the parameters of its rows in registers and leaves one line of partial sums in scratch,
// that a second kernel adds in order: 4 elements (dy, x, residual, dx) per element, and 8 bytes x BLOCKS_MAX per column
// and kind of parameter.
#include "compute/ops/cuda/kernels.h"
#include "compute/ops/cuda/kernels/device.h"
#include "compute/ops/cuda/kernels/lines.h"

#define THREADS_MAX  512
#define WARPS_MAX    (THREADS_MAX / 32)
#define BLOCKS_MAX   256
#define DEPTH_MAX    4
#define STATIC_BYTES 256 // of shared memory

// KEEP packs a thread; pack c of a thread begins at column (c blockDim + thread) WIDTH.
template <typename E> static BL_DEVICE bl_count column_of(int c) {
  return ((bl_count)c * blockDim.x + threadIdx.x) * bl_pack<E>::WIDTH;
}

template <typename E, bool Wide, int KEEP>
static BL_DEVICE void load_row(const E *line, bl_count width, bl_pack<E> (&packs)[KEEP]) {
#pragma unroll
  for (int c = 0; c < KEEP; c++) {
    const bl_count at = column_of<E>(c);
    if (at < width) {
      packs[c] = bl_load<E, Wide>(line, at, width);
    } else {
      packs[c].raw = {{0, 0, 0, 0}};
    }
  }
}

// How many columns the threads of this warp have together.
template <typename E, int KEEP> static BL_DEVICE float columns_of_warp(bl_count width) {
  constexpr unsigned most = 32 * bl_pack<E>::WIDTH;
  unsigned count = 0;
#pragma unroll
  for (int c = 0; c < KEEP; c++) {
    const unsigned first = (c * blockDim.x + threadIdx.x / 32 * 32) * bl_pack<E>::WIDTH, end = (unsigned)width;
    count += first >= end ? 0 : end - first < most ? end - first : most;
  }
  return (float)count;
}

template <typename E, bool Wide, bool Rms, int KEEP>
__global__ void __launch_bounds__(THREADS_MAX)
    norm_forward(bl_count rows, bl_count width, float epsilon, float offset, const E *__restrict__ x,
                 const float *__restrict__ gain, const float *__restrict__ bias, E *__restrict__ y,
                 float *__restrict__ stats) {
  __shared__ float room[3 * WARPS_MAX];
  const bl_count row = blockIdx.x;
  bl_pack<E> packs[KEEP];
  load_row<E, Wide, KEEP>(x + row * width, width, packs);

  const auto squares_from = [&](float centre) {
    float squares = 0.0f;
#pragma unroll
    for (int c = 0; c < KEEP; c++) {
      const bl_count at = column_of<E>(c);
      float values[bl_pack<E>::WIDTH];
      bl_unpack<E>(packs[c], values);
#pragma unroll
      for (int i = 0; i < bl_pack<E>::WIDTH; i++) {
        const float deviation = values[i] - centre;
        squares += at + i < width ? deviation * deviation : 0.0f;
      }
    }
    return squares;
  };
  bl_moments row_moments = {0.0f, 0.0f};
  if constexpr (Rms) {
    row_moments.squares = bl_block_all(squares_from(0.0f), room, bl_plus());
  } else {
    float sum = 0.0f;
#pragma unroll
    for (int c = 0; c < KEEP; c++) { // zeros behind the end of the row change nothing
      float values[bl_pack<E>::WIDTH];
      bl_unpack<E>(packs[c], values);
#pragma unroll
      for (int i = 0; i < bl_pack<E>::WIDTH; i++) {
        sum += values[i];
      }
    }
    row_moments = bl_block_moments(sum, columns_of_warp<E, KEEP>(width), (float)width, squares_from, room);
  }
  const float mean = row_moments.mean, squares = row_moments.squares;
  const float inverse = 1.0f / sqrtf(squares / (float)width + epsilon);
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
    const bl_count at = column_of<E>(c);
    if (at < width) {
      float values[bl_pack<E>::WIDTH], gains[bl_pack<E>::WIDTH];
      bl_unpack<E>(packs[c], values);
      bl_load_floats<E, Wide>(gain, at, width, gains);
#pragma unroll
      for (int i = 0; i < bl_pack<E>::WIDTH; i++) {
        values[i] = (values[i] - mean) * inverse * (gains[i] + offset);
      }
      if constexpr (!Rms) {
        bl_load_floats<E, Wide>(bias, at, width, gains);
#pragma unroll
        for (int i = 0; i < bl_pack<E>::WIDTH; i++) {
          values[i] += gains[i];
        }
      }
      bl_store<E, Wide>(y + row * width, at, width, bl_repack<E>(values));
    }
  }
}

// The place in shared memory of pack c of this thread, of a tensor's row.
template <int KEEP> static BL_DEVICE bl_words *place_of(bl_words *row, int tensor, int c) {
  return row + (tensor * KEEP + c) * blockDim.x + threadIdx.x;
}

template <typename E, bool Wide, int KEEP>
static BL_DEVICE void fetch_row(bl_words *row, int tensor, const E *line, bl_count width) {
#pragma unroll
  for (int c = 0; c < KEEP; c++) {
    const bl_count at = column_of<E>(c);
    if (at < width) {
      bl_fetch<E, Wide>(place_of<KEEP>(row, tensor, c), line, at, width);
    }
  }
}

// dx may be dy, x or residual: a thread reads the packs that it writes, before it writes them. Rows come into a ring of `depth`
// in shared memory, of dy, x and residual the first `tensors`, where each thread reads its own packs: while one is worked on
// the next are on their way, and so are its mean and deviation.
// lines [gridDim][width] gain parts, then (LayerNorm) [gridDim][width] bias parts; NULL: not wanted.
template <typename E, bool Wide, bool Rms, int KEEP>
__global__ void __launch_bounds__(THREADS_MAX)
    norm_backward(bl_count rows, bl_count width, float offset, const E *dy, const E *x, const float *__restrict__ gain,
                  const float *__restrict__ stats, const E *residual, E *dx, float *__restrict__ lines, int tensors,
                  unsigned depth) {
  BL_DYNAMIC_SHARED(bl_words, ring);
  __shared__ float rooms[2][2 * WARPS_MAX];
  float dgain[KEEP][bl_pack<E>::WIDTH] = {}, dbias[Rms ? 1 : KEEP][bl_pack<E>::WIDTH] = {};
  const bl_count row_words = (bl_count)tensors * KEEP * blockDim.x;
  const auto fetch = [&](bl_count row, unsigned slot) {
    if (row < rows) {
      const E *const from[3] = {dy, x, residual};
#pragma unroll
      for (int t = 0; t < 3; t++) {
        if (t < tensors) {
          fetch_row<E, Wide, KEEP>(ring + slot * row_words, t, from[t] + row * width, width);
        }
      }
    }
    bl_fetch_group();
  };
  const auto take = [&](unsigned slot, int tensor, int c, const E *line, float(&values)[bl_pack<E>::WIDTH]) {
    if (tensor < tensors) {
      bl_unpack<E>({*place_of<KEEP>(ring + slot * row_words, tensor, c)}, values);
    } else {
      bl_unpack<E>(bl_load<E, Wide>(line, column_of<E>(c), width), values);
    }
  };
  for (unsigned ahead = 0; ahead + 1 < depth; ahead++) {
    fetch(blockIdx.x + (bl_count)ahead * gridDim.x, ahead);
  }
  float next_mean = Rms ? 0.0f : stats[blockIdx.x], next_inverse = stats[Rms ? blockIdx.x : rows + blockIdx.x];
  unsigned slot = 0;
  int turn = 0;
  for (bl_count row = blockIdx.x; row < rows; row += gridDim.x, turn ^= 1) {
    const bl_count first = row * width;
    fetch(row + (bl_count)(depth - 1) * gridDim.x, slot == 0 ? depth - 1 : slot - 1);
    const float mean = next_mean, inverse = next_inverse;
    if (const bl_count next = row + gridDim.x; next < rows) {
      next_mean = Rms ? 0.0f : stats[next];
      next_inverse = stats[Rms ? next : rows + next];
    }
    bl_fetch_wait(depth - 1);
    float sum = 0.0f, dot = 0.0f;
#pragma unroll
    for (int c = 0; c < KEEP; c++) {
      const bl_count at = column_of<E>(c);
      if (at < width) {
        float g[bl_pack<E>::WIDTH], values[bl_pack<E>::WIDTH], gains[bl_pack<E>::WIDTH];
        take(slot, 0, c, dy + first, g); // zeros behind the end of the row change nothing
        take(slot, 1, c, x + first, values);
        bl_load_floats<E, Wide>(gain, at, width, gains);
#pragma unroll
        for (int i = 0; i < bl_pack<E>::WIDTH; i++) {
          const float normalised = (values[i] - mean) * inverse, scaled = g[i] * (gains[i] + offset);
          dgain[c][i] += g[i] * normalised;
          if constexpr (!Rms) {
            dbias[c][i] += g[i];
          }
          sum += scaled;
          dot += scaled * normalised;
        }
      }
    }
    bl_block_sums(&sum, &dot, rooms[turn]);
    const float centre = Rms ? 0.0f : sum / (float)width, slope = dot / (float)width;
#pragma unroll
    for (int c = 0; c < KEEP; c++) {
      const bl_count at = column_of<E>(c);
      if (at < width) {
        float g[bl_pack<E>::WIDTH], values[bl_pack<E>::WIDTH], gains[bl_pack<E>::WIDTH];
        take(slot, 0, c, dy + first, g);
        take(slot, 1, c, x + first, values);
        bl_load_floats<E, Wide>(gain, at, width, gains);
#pragma unroll
        for (int i = 0; i < bl_pack<E>::WIDTH; i++) {
          const float normalised = (values[i] - mean) * inverse;
          g[i] = inverse * (g[i] * (gains[i] + offset) - centre - normalised * slope);
        }
        if (residual != NULL) {
          take(slot, 2, c, residual + first, values);
#pragma unroll
          for (int i = 0; i < bl_pack<E>::WIDTH; i++) {
            g[i] += values[i];
          }
        }
        bl_store<E, Wide>(dx + first, at, width, bl_repack<E>(g));
      }
    }
    slot = slot + 1 == depth ? 0 : slot + 1;
  }
  if (lines == NULL) {
    return;
  }
#pragma unroll
  for (int c = 0; c < KEEP; c++) {
    const bl_count at = column_of<E>(c);
    if (at < width) {
      bl_store_floats<E, Wide>(lines + (bl_count)blockIdx.x * width, at, width, dgain[c]);
      if constexpr (!Rms) {
        bl_store_floats<E, Wide>(lines + ((bl_count)gridDim.x + blockIdx.x) * width, at, width, dbias[c]);
      }
    }
  }
}

// Threads and packs a thread for rows of `packs` packs: fixed by the shape alone.
struct geometry {
  unsigned threads;
  int keep;
};

// `few`: packs a thread from which on there are 256 threads.
static geometry geometry_of(bool bf16, bl_count width, bl_count few) {
  const bl_count packs = bl_over(width, bf16 ? 8 : 4);
  const unsigned threads = packs <= few * 128 ? 128 : packs <= 4 * 256 ? 256 : 512;
  const bl_count each = bl_over(packs, threads);
  return {threads, each <= 1 ? 1 : each <= 2 ? 2 : bf16 && each == 3 ? 3 : each <= 4 ? 4 : 8};
}

static unsigned lines_of(bool rms, bl_count rows, bl_count width) {
  const bl_count room = BL__SCRATCH_BYTES / ((rms ? 1 : 2) * width * sizeof(float));
  return (unsigned)bl_least(bl_least(rows, BLOCKS_MAX), room);
}

template <typename E, bool W, bool Rms>
static int forward_of(bl__stream_t stream, int keep, unsigned threads, bl_count rows, bl_count width, float epsilon,
                      float offset, const E *x, const float *gain, const float *bias, E *y, float *stats) {
#define FORWARD(KEEP)                                                                                                  \
  BL_LAUNCH((norm_forward<E, W, Rms, KEEP>), (unsigned)rows, threads, stream, rows, width, epsilon, offset, x, gain,   \
            bias, y, stats)
  if constexpr (sizeof(E) == sizeof(float)) { // rows of floats alone are that long
    if (keep == 8) {
      return FORWARD(8);
    }
  } else if (keep == 3) { // hidden sizes of 9984 and 12288 without a spill
    return FORWARD(3);
  }
  return keep == 1 ? FORWARD(1) : keep == 2 ? FORWARD(2) : FORWARD(4);
}

// Rows of shared memory: as many tensors and as deep as there is room for, beside another block where registers allow one.
struct ring_t {
  int tensors;
  unsigned depth;
  bl_count bytes;
};

static ring_t ring_of(int tensors, int keep, unsigned threads) {
  const bl_count each = (bl_count)keep * threads * sizeof(bl_words), room = bl_shared_bytes(threads <= 256 ? 2 : 1);
  const bl_count rows = room > STATIC_BYTES ? (room - STATIC_BYTES) / each : 0;
  const int kept = (int)bl_least(rows, (bl_count)tensors);
  const unsigned depth = kept == 0 ? 1 : (unsigned)bl_least(rows / (bl_count)kept, DEPTH_MAX);
  return {kept, depth, (bl_count)kept * depth * each};
}

template <typename E, bool W, bool Rms>
static int backward_of(bl__stream_t stream, int keep, unsigned threads, unsigned blocks, bl_count rows, bl_count width,
                       float offset, const E *dy, const E *x, const float *gain, const float *stats, const E *residual,
                       E *dx, float *lines) {
  const ring_t ring = ring_of(residual == NULL ? 2 : 3, keep, threads);
#define BACKWARD(KEEP)                                                                                                 \
  BL_LAUNCH_SHARED((norm_backward<E, W, Rms, KEEP>), blocks, threads, ring.bytes, stream, rows, width, offset, dy, x,  \
                   gain, stats, residual, dx, lines, ring.tensors, ring.depth)
  if constexpr (sizeof(E) == sizeof(float)) { // rows of floats alone are that long
    if (keep == 8) {
      return BACKWARD(8);
    }
  } else if (keep == 3) { // hidden sizes of 9984 and 12288 without a spill
    return BACKWARD(3);
  }
  return keep == 1 ? BACKWARD(1) : keep == 2 ? BACKWARD(2) : BACKWARD(4);
}

int bl__launch_norm_forward(bl__stream_t stream, bool bf16, bool rms, uint64_t rows, uint64_t width, float epsilon,
                            float offset, const void *x, const float *gain, const float *bias, void *y, float *stats) {
  if (rows == 0) {
    return 0;
  }
  const geometry g = geometry_of(bf16, width, 4);
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
  const geometry g = geometry_of(bf16, width, 1); // few blocks: what they wait for, other threads hide
  const unsigned blocks = lines_of(rms, rows, width);
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
