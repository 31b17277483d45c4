// SPDX-License-Identifier: Apache-2.0
// Softmax cross-entropy over rows of logits, the sum of losses, and sums of squares.
//
// A row of logits is read twice, the second time from the L2 cache, and its gradient is written over it: 8 bytes a logit of
// the memory in fp32, 6 in bf16. That asks for few rows under way: blocks are as large as they can be, and one of them fills
// a multiprocessor (132 rows of 32000 logits are 17 MB of the 50 MB of an H100's cache). Sums of squares read 4 bytes an
// element.
#include "compute/ops/cuda/kernels.h"
#include "compute/ops/cuda/kernels/device.h"

#define THREADS     1024
#define PACKS       4 // of four logits, a thread
#define COLUMNS     (THREADS * PACKS * 4)
#define CAP_THREADS 256
#define LOWEST      (-3.402823466e38f)

// PACKS packs of the row from `first` on, all on their way at once.
template <bool Wide>
static BL_DEVICE void load_packs(const float *row, bl_count first, bl_count vocab, float (&values)[PACKS][4]) {
#pragma unroll
  for (int n = 0; n < PACKS; n++) {
    const bl_count at = first + ((bl_count)n * THREADS + threadIdx.x) * 4;
    if (at < vocab) {
      bl_unpack<float>(bl_load<float, Wide>(row, at, vocab), values[n]);
    } else {
      values[n][0] = values[n][1] = values[n][2] = values[n][3] = 0.0f; // not looked at
    }
  }
}

// A block per row. bf16: elements of the gradient lie in the first half of the row's logits. COLUMNS of them are
// written once all threads have read theirs: they land on logits of this piece or of pieces before it.
// Capped: the gradient is that of the logits before cap_logits, whose inverse cap is given.
template <typename E, bool Wide, bool Capped>
__global__ void __launch_bounds__(THREADS, 1)
    cross_entropy(bl_count vocab, bl_count stride, const int32_t *__restrict__ labels, float scale, float inverse_cap,
                  float *logits, double *row_losses) {
  __shared__ float rooms[2][THREADS / 32];
  __shared__ int32_t label_room;
  // From memory of the host, once a row; nobody waits for it before the logits are on their way.
  const int32_t fetched = threadIdx.x == 0 ? labels[blockIdx.x] : 0;
  float *row = logits + (bl_count)blockIdx.x * stride;

  float largest = LOWEST, sum = 0.0f; // of this thread, the sum in units of exp(largest)
  for (bl_count first = 0; first < vocab; first += COLUMNS) {
    float values[PACKS][4];
    load_packs<Wide>(row, first, vocab, values);
#pragma unroll
    for (int n = 0; n < PACKS; n++) {
      const bl_count at = first + ((bl_count)n * THREADS + threadIdx.x) * 4;
      float here = largest;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        here = at + i < vocab ? fmaxf(here, values[n][i]) : here;
      }
      sum *= bl_exp(largest - here);
      largest = here;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        sum += at + i < vocab ? bl_exp(values[n][i] - largest) : 0.0f;
      }
    }
  }
  if (threadIdx.x == 0) {
    label_room = fetched;
  }
  const float top = bl_block_all(largest, rooms[0], bl_larger());
  const float total = bl_block_all(sum * bl_exp(largest - top), rooms[1], bl_plus());
  const bl_count label = (bl_count)label_room;
  const float share = scale / total;
  float of_label = 0.0f;
  bool has_label = false; // one thread
  for (bl_count first = 0; first < vocab; first += COLUMNS) {
    float values[PACKS][4];
    load_packs<Wide>(row, first, vocab, values);
    if constexpr (sizeof(E) < sizeof(float)) {
      __syncthreads();
    }
#pragma unroll
    for (int n = 0; n < PACKS; n++) {
      const bl_count at = first + ((bl_count)n * THREADS + threadIdx.x) * 4;
      if (at < vocab) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const bool is_label = at + i == label;
          of_label = is_label ? values[n][i] : of_label;
          has_label = has_label || is_label;
          const float z = values[n][i];
          values[n][i] = bl_exp(z - top) * share - (is_label ? scale : 0.0f);
          if constexpr (Capped) {
            values[n][i] *= 1.0f - z * inverse_cap * (z * inverse_cap);
          }
        }
        bl_store_four<E, Wide>((E *)row, at, vocab, values[n]);
      }
    }
  }
  if (has_label) {
    row_losses[blockIdx.x] = (double)top + log((double)total) - (double)of_label;
  }
}

// 8 bytes a logit. `blocks` a row.
template <bool Wide>
__global__ void __launch_bounds__(CAP_THREADS)
    cap_logits(unsigned blocks, bl_count vocab, bl_count stride, float cap, float inverse_cap, float *logits) {
  const bl_count at = ((bl_count)(blockIdx.x % blocks) * CAP_THREADS + threadIdx.x) * 4;
  if (at >= vocab) {
    return;
  }
  float values[4], *row = logits + (bl_count)(blockIdx.x / blocks) * stride;
  bl_load_four<float, Wide>(row, at, vocab, values);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    values[i] = bl_capped(values[i], cap, inverse_cap);
  }
  bl_store_four<float, Wide>(row, at, vocab, values);
}

// One block: a tile of losses at a time, added by one thread in row order.
__global__ void __launch_bounds__(256)
    loss_sum(bl_count rows, const double *__restrict__ row_losses, double *loss, int64_t *first_bad_row) {
  __shared__ double tile[1024];
  double sum = 0.0;
  int64_t bad = -1;
  for (bl_count first = 0; first < rows; first += 1024) {
    __syncthreads();
    for (bl_count i = threadIdx.x; i < 1024 && first + i < rows; i += 256) {
      tile[i] = row_losses[first + i];
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      const int left = rows - first < 1024 ? (int)(rows - first) : 1024;
      for (int i = 0; i < left; i++) {
        sum += tile[i];
        if (bad < 0 && !isfinite(tile[i])) {
          bad = (int64_t)first + i;
        }
      }
    }
  }
  if (threadIdx.x == 0) {
    *loss = sum;
    *first_bad_row = bad;
  }
}

// Dense rows are one long row.
int bl__launch_cap_logits(bl__stream_t stream, uint64_t rows, uint64_t vocab, uint64_t stride, float cap,
                          float *logits) {
  const uint64_t lines = stride == vocab ? 1 : rows, columns = stride == vocab ? rows * vocab : vocab;
  if (rows == 0) {
    return 0;
  }
  const bl_count blocks = bl_over(columns, CAP_THREADS * 4);
  const bool wide = bl_is_wide(logits) && (lines > 1 ? stride : columns) % 4 == 0;
  return wide ? BL_LAUNCH((cap_logits<true>), (unsigned)(lines * blocks), CAP_THREADS, stream, (unsigned)blocks,
                          columns, stride, cap, 1.0f / cap, logits)
              : BL_LAUNCH((cap_logits<false>), (unsigned)(lines * blocks), CAP_THREADS, stream, (unsigned)blocks,
                          columns, stride, cap, 1.0f / cap, logits);
}

int bl__launch_cross_entropy(bl__stream_t stream, bool bf16, uint64_t rows, uint64_t vocab, uint64_t stride,
                             const int32_t *labels, float scale, float cap, float *logits, double *row_losses) {
  if (rows == 0) {
    return 0;
  }
  const bool wide = stride % 4 == 0 && bl_is_wide(logits);
  if (cap != 0.0f) {
    return BL_TYPED(bf16, wide,
                    BL_LAUNCH((cross_entropy<E, W, true>), (unsigned)rows, THREADS, stream, vocab, stride, labels,
                              scale, 1.0f / cap, logits, row_losses));
  }
  return BL_TYPED(bf16, wide,
                  BL_LAUNCH((cross_entropy<E, W, false>), (unsigned)rows, THREADS, stream, vocab, stride, labels, scale,
                            0.0f, logits, row_losses));
}

int bl__launch_loss_sum(bl__stream_t stream, uint64_t rows, const double *row_losses, double *loss,
                        int64_t *first_bad_row) {
  return BL_LAUNCH((loss_sum), 1, 256, stream, rows, row_losses, loss, first_bad_row);
}
