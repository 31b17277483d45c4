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

#define THREADS_MAX 512
#define WARPS_MAX   (THREADS_MAX / 32)
#define BLOCKS_MAX  256

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

template <typename E, bool Wide, bool Rms, int KEEP>
__global__ void __launch_bounds__(THREADS_MAX)
    norm_forward(bl_count rows, bl_count width, float epsilon, float offset, const E *__restrict__ x,
                 const float *__restrict__ gain, const float *__restrict__ bias, E *__restrict__ y,
                 float *__restrict__ stats) {
  __shared__ float rooms[2][WARPS_MAX];
  const bl_count row = blockIdx.x;
  bl_pack<E> packs[KEEP];
  load_row<E, Wide, KEEP>(x + row * width, width, packs);

  float mean = 0.0f;
  if constexpr (!Rms) {
#pragma unroll
    for (int c = 0; c < KEEP; c++) { // zeros behind the end of the row change nothing
      float values[bl_pack<E>::WIDTH];
      bl_unpack<E>(packs[c], values);
#pragma unroll
      for (int i = 0; i < bl_pack<E>::WIDTH; i++) {
        mean += values[i];
      }
    }
    mean = bl_block_all(mean, rooms[0], bl_plus()) / (float)width;
  }
  float squares = 0.0f;
#pragma unroll
  for (int c = 0; c < KEEP; c++) {
    const bl_count at = column_of<E>(c);
    float values[bl_pack<E>::WIDTH];
    bl_unpack<E>(packs[c], values);
#pragma unroll
    for (int i = 0; i < bl_pack<E>::WIDTH; i++) {
      const float deviation = values[i] - mean;
      squares += at + i < width ? deviation * deviation : 0.0f;
    }
  }
  squares = bl_block_all(squares, rooms[1], bl_plus());
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

// Whether a thread has registers for its sums and for that many tensors of a row: of the 128 that 512 threads have each, some
// are for the rest. What does not fit is read again, from the cache.
template <typename E, bool Rms, int KEEP> static constexpr BL_DEVICE bool fits(int tensors) {
  return KEEP * (bl_pack<E>::WIDTH * (Rms ? 1 : 2) + 4 * tensors) <= 84;
}

// A row on its way to the L2 cache: one thread of eight asks for their 128 bytes.
template <typename E, int KEEP> static BL_DEVICE void prefetch_row(const E *line, bl_count width) {
#pragma unroll
  for (int c = 0; c < KEEP; c++) {
    const bl_count at = column_of<E>(c);
    if (at < width && threadIdx.x % 8 == 0) {
      bl_prefetch(line + at);
    }
  }
}

// dx may be dy, x or residual: a thread reads the packs that it writes, before it writes them. While the sums of a row are made
// and its result is written, the next row comes: registers have no room for it.
// lines [gridDim][width] gain parts, then (LayerNorm) [gridDim][width] bias parts; NULL: not wanted.
template <typename E, bool Wide, bool Rms, int KEEP>
__global__ void __launch_bounds__(THREADS_MAX)
    norm_backward(bl_count rows, bl_count width, float offset, const E *dy, const E *x, const float *__restrict__ gain,
                  const float *__restrict__ stats, const E *residual, E *dx, float *__restrict__ lines) {
  __shared__ float rooms[2][2 * WARPS_MAX];
  float dgain[KEEP][bl_pack<E>::WIDTH] = {}, dbias[Rms ? 1 : KEEP][bl_pack<E>::WIDTH] = {};
  int turn = 0;
  for (bl_count row = blockIdx.x; row < rows; row += gridDim.x, turn ^= 1) {
    const bl_count first = row * width;
    bl_pack<E> gradients[KEEP], inputs[KEEP], residuals[KEEP];
    if (fits<E, Rms, KEEP>(1)) {
      load_row<E, Wide, KEEP>(dy + first, width, gradients);
    }
    if (fits<E, Rms, KEEP>(2)) {
      load_row<E, Wide, KEEP>(x + first, width, inputs);
    }
    if (fits<E, Rms, KEEP>(3) && residual != NULL) { // on its way while the sums are made
      load_row<E, Wide, KEEP>(residual + first, width, residuals);
    }
    if (const bl_count next = row + gridDim.x; Wide && KEEP <= 4 && next < rows) { // others have no register for it
      prefetch_row<E, KEEP>(dy + next * width, width);
      prefetch_row<E, KEEP>(x + next * width, width);
      if (residual != NULL) {
        prefetch_row<E, KEEP>(residual + next * width, width);
      }
    }
    const float mean = Rms ? 0.0f : stats[row], inverse = Rms ? stats[row] : stats[rows + row];
    float sum = 0.0f, dot = 0.0f;
#pragma unroll
    for (int c = 0; c < KEEP; c++) {
      const bl_count at = column_of<E>(c);
      if (at < width) {
        float g[bl_pack<E>::WIDTH], values[bl_pack<E>::WIDTH], gains[bl_pack<E>::WIDTH];
        // Zeros behind the end of the row change nothing.
        bl_unpack<E>(fits<E, Rms, KEEP>(1) ? gradients[c] : bl_load<E, Wide>(dy + first, at, width), g);
        bl_unpack<E>(fits<E, Rms, KEEP>(2) ? inputs[c] : bl_load<E, Wide>(x + first, at, width), values);
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
        bl_unpack<E>(fits<E, Rms, KEEP>(1) ? gradients[c] : bl_load<E, Wide>(dy + first, at, width), g);
        bl_unpack<E>(fits<E, Rms, KEEP>(2) ? inputs[c] : bl_load<E, Wide>(x + first, at, width), values);
        bl_load_floats<E, Wide>(gain, at, width, gains);
#pragma unroll
        for (int i = 0; i < bl_pack<E>::WIDTH; i++) {
          const float normalised = (values[i] - mean) * inverse;
          g[i] = inverse * (g[i] * (gains[i] + offset) - centre - normalised * slope);
        }
        if (residual != NULL) {
          bl_unpack<E>(fits<E, Rms, KEEP>(3) ? residuals[c] : bl_load<E, Wide>(residual + first, at, width), values);
#pragma unroll
          for (int i = 0; i < bl_pack<E>::WIDTH; i++) {
            g[i] += values[i];
          }
        }
        bl_store<E, Wide>(dx + first, at, width, bl_repack<E>(g));
      }
    }
  }
  if (lines == NULL) {
    return;
  }
#pragma unroll
  for (int c = 0; c < KEEP; c++) {
    const bl_count at = column_of<E>(c);
#pragma unroll
    for (int i = 0; i < bl_pack<E>::WIDTH; i++) {
      if (at + i < width) {
        lines[(bl_count)blockIdx.x * width + at + i] = dgain[c][i];
        if constexpr (!Rms) {
          lines[((bl_count)gridDim.x + blockIdx.x) * width + at + i] = dbias[c][i];
        }
      }
    }
  }
}

// Threads and packs a thread for rows of `packs` packs: fixed by the shape alone.
struct geometry {
  unsigned threads;
  int keep;
};

static geometry geometry_of(bool bf16, bl_count width) {
  const bl_count packs = bl_over(width, bf16 ? 8 : 4);
  const unsigned threads = packs <= 4 * 128 ? 128 : packs <= 4 * 256 ? 256 : 512;
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

template <typename E, bool W, bool Rms>
static int backward_of(bl__stream_t stream, int keep, unsigned threads, unsigned blocks, bl_count rows, bl_count width,
                       float offset, const E *dy, const E *x, const float *gain, const float *stats, const E *residual,
                       E *dx, float *lines) {
#define BACKWARD(KEEP)                                                                                                 \
  BL_LAUNCH((norm_backward<E, W, Rms, KEEP>), blocks, threads, stream, rows, width, offset, dy, x, gain, stats,        \
            residual, dx, lines)
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
  const geometry g = geometry_of(bf16, width);
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
  const geometry g = geometry_of(bf16, width);
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
