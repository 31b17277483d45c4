// SPDX-License-Identifier: Apache-2.0
// Softmax cross-entropy over rows of logits, and the sum of losses.
//
// A row of logits is read from memory once, and its gradient is written over it: 8 bytes a logit in fp32, 6 in bf16.
// Between the two, a block waits for a sum over the row. So two blocks share a multiprocessor, and while a block writes
// the gradient of a row, its next row is copied to the shared memory that this frees. Shared memory holds 28672 columns
// of each row on an H100 (20480 on an A100). The rest of longer rows is read from the L2 cache: with 50257 columns and
// two rows on each of 132 multiprocessors, it needs 23 of the cache's 50 MB.
//
// A vocabulary in parts takes two kernels, because the parts exchange their statistics in between: one reads a part's
// logits, 4 bytes each, and one reads them and writes their gradient, 8 bytes in fp32, 6 in bf16. A block has one row.
#include "compute/ops/cuda/kernels.h"
#include "compute/ops/cuda/kernels/device.h"

#define THREADS           512
#define ROW_BLOCKS        2 // per multiprocessor
#define STATISTICS_BLOCKS 4
#define PART_BLOCKS       3
#define STRIP             (THREADS * 4) // columns: a pack of four per thread
#define PACKS             2             // per thread at a time
#define COLUMNS           (STRIP * PACKS)
#define STATIC_BYTES      256 // of shared memory, an upper bound
#define SOFTCAP_THREADS       256
#define LOWEST            (-3.402823466e38f)

// Loads this thread's packs of COLUMNS columns of a row; columns after the end of the row are -infinity and add nothing
// to a sum.
template <bool Wide>
static BL_DEVICE void load_packs(const bl_words *cache, const float *row, unsigned first, unsigned kept, unsigned vocab,
                                 float (&values)[PACKS][4]) {
  const unsigned at = first + threadIdx.x * 4;
  if (first < kept) {
#pragma unroll
    for (int n = 0; n < PACKS; n++) {
      bl_unpack<float>({cache[first / 4 + n * THREADS + threadIdx.x]}, values[n]);
    }
  } else {
#pragma unroll
    for (int n = 0; n < PACKS; n++) {
      if (at + n * STRIP < vocab) {
        bl_unpack<float>(bl_load<float, Wide>(row, at + n * STRIP, vocab), values[n]);
      }
    }
  }
  if (first + COLUMNS > vocab) { // the same for the whole block
#pragma unroll
    for (int n = 0; n < PACKS; n++) {
#pragma unroll
      for (unsigned i = 0; i < 4; i++) {
        values[n][i] = at + n * STRIP + i < vocab ? values[n][i] : -INFINITY;
      }
    }
  }
}

// Starts the copies that load_packs will need.
template <bool Wide>
static BL_DEVICE void fetch_packs(bl_words *cache, const float *row, unsigned first, unsigned kept, unsigned vocab) {
  const unsigned at = first + threadIdx.x * 4;
  if (first < kept) {
#pragma unroll
    for (int n = 0; n < PACKS; n++) {
      if (at + n * STRIP < vocab) {
        bl_fetch<float, Wide>(&cache[first / 4 + n * THREADS + threadIdx.x], row, at + n * STRIP, vocab);
      }
    }
    bl_fetch_group();
  } else if (threadIdx.x % 8 == 0) {
#pragma unroll
    for (int n = 0; n < PACKS; n++) {
      if (at + n * STRIP < vocab) {
        bl_prefetch(row + at + n * STRIP);
      }
    }
  }
}

// The largest logit that a thread has seen, and the sum of exp(logit - largest) over these logits.
struct softmax_t {
  float largest = LOWEST, sum = 0.0f;
};

static BL_DEVICE void include(const float (&values)[PACKS][4], softmax_t *seen) {
  float here = values[0][0];
#pragma unroll
  for (int n = 0; n < PACKS; n++) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      here = fmaxf(here, values[n][i]);
    }
  }
  here = fmaxf(seen->largest, here);
  seen->sum *= bl_exp(seen->largest - here);
  seen->largest = here;
#pragma unroll
  for (int n = 0; n < PACKS; n++) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      seen->sum += bl_exp(values[n][i] - here);
    }
  }
}

// Returns the same of the whole row, in every thread.
static BL_DEVICE softmax_t combine(softmax_t seen, float (&shared)[2][THREADS / 32]) {
  softmax_t all;
  all.largest = bl_block_all(seen.largest, shared[0], bl_larger());
  all.sum = bl_block_all(seen.sum * bl_exp(seen.largest - all.largest), shared[1], bl_plus());
  return all;
}

// A row without a loss has a label below 0, which is no column of any part, and a scale of 0.
static BL_DEVICE bool has_loss(int32_t label) {
  return label >= 0;
}

// Computes the gradients of four logits, of which the first has column `at`. `label` is a column too, `share` is scale /
// the sum of exponentials. Returns whether the label is among the four.
template <bool Softcapped>
static BL_DEVICE bool gradients_of(const float (&values)[4], float top, float share, float scale, float inverse_softcap,
                                   unsigned at, unsigned label, unsigned vocab, float (&gradients)[4]) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    gradients[i] = bl_exp(values[i] - top) * share;
  }
  const bool has_label = label < vocab && label - at < 4;
  if (has_label) {
#pragma unroll
    for (unsigned i = 0; i < 4; i++) {
      gradients[i] -= at + i == label ? scale : 0.0f;
    }
  }
  if constexpr (Softcapped) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float t = values[i] * inverse_softcap;
      gradients[i] *= 1.0f - t * t;
    }
  }
  return has_label;
}

// `kept` columns of a row are in shared memory, where each thread reads its own packs.
//
// bf16: elements of the gradient overlay the first half of the row's logits. If they overwrite kept columns, no thread
// reads these columns from memory any more. Otherwise all threads must have read theirs first.
template <typename E, bool Wide, bool Softcapped>
__global__ void __launch_bounds__(THREADS, ROW_BLOCKS)
    cross_entropy(unsigned rows, unsigned vocab, bl_count stride, unsigned kept, const int32_t *__restrict__ labels,
                  float loss_scale, float inverse_softcap, float *logits, double *row_losses) {
  BL_DYNAMIC_SHARED(bl_words, cache);
  __shared__ float shared[2][THREADS / 32];
  __shared__ unsigned shared_labels[2];
  // Thread 0 reads the label of a row from host memory once, one row ahead.
  unsigned fetched = threadIdx.x == 0 ? (unsigned)labels[blockIdx.x] : 0;
  for (unsigned first = 0; first < vocab; first += COLUMNS) {
    fetch_packs<Wide>(cache, logits + (bl_count)blockIdx.x * stride, first, kept, vocab);
  }
  int parity = 0;
  for (unsigned at_row = blockIdx.x; at_row < rows; at_row += gridDim.x, parity ^= 1) {
    float *row = logits + (bl_count)at_row * stride;
    const bool more = at_row + gridDim.x < rows;
    if (threadIdx.x == 0) {
      shared_labels[parity] = fetched;
      fetched = more ? (unsigned)labels[at_row + gridDim.x] : 0;
    }
    softmax_t seen;
    unsigned groups = kept / COLUMNS;
    for (unsigned first = 0; first < vocab; first += COLUMNS) {
      float values[PACKS][4];
      if (first < kept) {
        bl_fetch_wait(--groups);
      }
      load_packs<Wide>(cache, row, first, kept, vocab, values);
      include(values, &seen);
    }
    const softmax_t all = combine(seen, shared);
    const unsigned label = shared_labels[parity];
    const bool counts = has_loss((int32_t)label);
    const float scale = counts ? loss_scale : 0.0f, share = scale / all.sum;
    float of_label = 0.0f;
    bool says_loss = label >= vocab && threadIdx.x == 0;
    for (unsigned first = 0; first < vocab; first += COLUMNS) {
      float values[PACKS][4];
      load_packs<Wide>(cache, row, first, kept, vocab, values);
      if (sizeof(E) < sizeof(float) && kept < vocab && (first + COLUMNS) / 2 > kept) { // the same for the whole block
        __syncthreads();
      }
      if (more) {
        fetch_packs<Wide>(cache, row + gridDim.x * stride, first, kept, vocab);
      }
#pragma unroll
      for (int n = 0; n < PACKS; n++) {
        const unsigned at = first + n * STRIP + threadIdx.x * 4;
        float gradients[4];
        if (gradients_of<Softcapped>(values[n], all.largest, share, scale, inverse_softcap, at, label, vocab,
                                     gradients)) {
          says_loss = true;
#pragma unroll
          for (unsigned i = 0; i < 4; i++) {
            of_label = at + i == label ? values[n][i] : of_label;
          }
        }
        if (at < vocab) {
          bl_store_four<E, Wide>((E *)row, at, vocab, gradients);
        }
      }
    }
    if (says_loss) {
      row_losses[at_row] = counts ? (double)all.largest + log((double)all.sum) - (double)of_label : 0.0;
    }
  }
}

// The statistics of a row's columns in one part. first: the token of the first column.
template <bool Wide>
__global__ void __launch_bounds__(THREADS, STATISTICS_BLOCKS)
    softmax_statistics(unsigned vocab, bl_count stride, unsigned first_token, const int32_t *__restrict__ labels,
                       const float *__restrict__ logits, float *__restrict__ statistics) {
  __shared__ float shared[2][THREADS / 32];
  const float *row = logits + (bl_count)blockIdx.x * stride;
  // Thread 0 asks for the label, which is in host memory, before it reads logits.
  const unsigned label = threadIdx.x == 0 ? (unsigned)labels[blockIdx.x] - first_token : 0;
  softmax_t seen;
  for (unsigned first = 0; first < vocab; first += COLUMNS) {
    float values[PACKS][4];
    load_packs<Wide>(NULL, row, first, 0, vocab, values);
    include(values, &seen);
  }
  const softmax_t all = combine(seen, shared);
  if (threadIdx.x == 0) {
    float *to = statistics + (bl_count)blockIdx.x * BL__STATISTICS;
    to[0] = all.largest;
    to[1] = all.sum;
    to[2] = label < vocab ? row[label] : 0.0f;
  }
}

// Combines the statistics of all parts, in their order, and writes the gradient of one part's columns. In bf16 it
// overlays logits as in cross_entropy.
template <typename E, bool Wide, bool Softcapped>
__global__ void __launch_bounds__(THREADS, PART_BLOCKS)
    cross_entropy_part(unsigned vocab, bl_count stride, unsigned first_token, const int32_t *__restrict__ labels,
                       float loss_scale, float inverse_softcap, unsigned parts, const float *__restrict__ statistics,
                       float *logits, double *row_losses) {
  __shared__ float of_parts[BL__PARTS_MAX * BL__STATISTICS];
  __shared__ int32_t shared_label;
  float *row = logits + (bl_count)blockIdx.x * stride;
  for (unsigned first = 0; first < vocab; first += COLUMNS) {
    fetch_packs<Wide>(NULL, row, first, 0, vocab);
  }
  if (threadIdx.x == 0) {
    shared_label = labels[blockIdx.x];
  }
  if (threadIdx.x < parts * BL__STATISTICS) {
    const bl_count line = (bl_count)(threadIdx.x / BL__STATISTICS) * gridDim.x + blockIdx.x;
    of_parts[threadIdx.x] = statistics[line * BL__STATISTICS + threadIdx.x % BL__STATISTICS];
  }
  __syncthreads();
  softmax_t all;
  float of_label = 0.0f; // one part has it, the others add 0
  for (unsigned part = 0; part < parts; part++) {
    all.largest = fmaxf(all.largest, of_parts[part * BL__STATISTICS]);
    of_label += of_parts[part * BL__STATISTICS + 2];
  }
  for (unsigned part = 0; part < parts; part++) {
    all.sum += of_parts[part * BL__STATISTICS + 1] * bl_exp(of_parts[part * BL__STATISTICS] - all.largest);
  }
  const bool counts = has_loss(shared_label);
  const unsigned label = (unsigned)shared_label - first_token;
  const float scale = counts ? loss_scale : 0.0f, share = scale / all.sum;
  for (unsigned first = 0; first < vocab; first += COLUMNS) {
    float values[PACKS][4];
    load_packs<Wide>(NULL, row, first, 0, vocab, values);
    if (sizeof(E) < sizeof(float)) {
      __syncthreads();
    }
#pragma unroll
    for (int n = 0; n < PACKS; n++) {
      const unsigned at = first + n * STRIP + threadIdx.x * 4;
      float gradients[4];
      (void)gradients_of<Softcapped>(values[n], all.largest, share, scale, inverse_softcap, at, label, vocab,
                                     gradients);
      if (at < vocab) {
        bl_store_four<E, Wide>((E *)row, at, vocab, gradients);
      }
    }
  }
  if (row_losses != NULL && threadIdx.x == 0) {
    row_losses[blockIdx.x] = counts ? (double)all.largest + log((double)all.sum) - (double)of_label : 0.0;
  }
}

// Moves 8 bytes a logit. A row has `blocks` blocks.
template <bool Wide>
__global__ void __launch_bounds__(SOFTCAP_THREADS)
    softcap_logits(unsigned blocks, bl_count vocab, bl_count stride, float softcap, float inverse_softcap,
                   float *logits) {
  const bl_count at = ((bl_count)(blockIdx.x % blocks) * SOFTCAP_THREADS + threadIdx.x) * 4;
  if (at >= vocab) {
    return;
  }
  float values[4], *row = logits + (bl_count)(blockIdx.x / blocks) * stride;
  bl_load_four<float, Wide>(row, at, vocab, values);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    values[i] = bl_softcap(values[i], softcap, inverse_softcap);
  }
  bl_store_four<float, Wide>(row, at, vocab, values);
}

// A single block: loads a tile of losses at a time, which one thread adds in row order.
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

// Dense rows are treated as one long row.
int bl__launch_softcap_logits(bl__stream_t stream, uint64_t rows, uint64_t vocab, uint64_t stride, float softcap,
                          float *logits) {
  const uint64_t lines = stride == vocab ? 1 : rows, columns = stride == vocab ? rows * vocab : vocab;
  if (rows == 0) {
    return 0;
  }
  const bl_count blocks = bl_over(columns, SOFTCAP_THREADS * 4);
  const bool wide = bl_is_wide(logits) && (lines > 1 ? stride : columns) % 4 == 0;
  return wide ? BL_LAUNCH((softcap_logits<true>), (unsigned)(lines * blocks), SOFTCAP_THREADS, stream,
                          (unsigned)blocks, columns, stride, softcap, 1.0f / softcap, logits)
              : BL_LAUNCH((softcap_logits<false>), (unsigned)(lines * blocks), SOFTCAP_THREADS, stream,
                          (unsigned)blocks, columns, stride, softcap, 1.0f / softcap, logits);
}

int bl__launch_cross_entropy(bl__stream_t stream, bool bf16, uint64_t rows, uint64_t vocab, uint64_t stride,
                             const int32_t *labels, float scale, float softcap, float *logits, double *row_losses) {
  if (rows == 0) {
    return 0;
  }
  const bool wide = stride % 4 == 0 && bl_is_wide(logits);
  const uint64_t space = bl_shared_bytes(ROW_BLOCKS), part_bytes = COLUMNS * sizeof(float);
  const uint64_t parts =
      bl_least(bl_over(vocab, COLUMNS), space > STATIC_BYTES ? (space - STATIC_BYTES) / part_bytes : 0);
  const unsigned columns = (unsigned)vocab, kept = (unsigned)(parts * COLUMNS);
  const unsigned blocks = (unsigned)bl_least(rows, (uint64_t)ROW_BLOCKS * bl_multiprocessors());
  if (softcap != 0.0f) {
    return BL_TYPED(bf16, wide,
                    BL_LAUNCH_SHARED((cross_entropy<E, W, true>), blocks, THREADS, parts * part_bytes, stream,
                                     (unsigned)rows, columns, stride, kept, labels, scale, 1.0f / softcap, logits,
                                     row_losses));
  }
  return BL_TYPED(bf16, wide,
                  BL_LAUNCH_SHARED((cross_entropy<E, W, false>), blocks, THREADS, parts * part_bytes, stream,
                                   (unsigned)rows, columns, stride, kept, labels, scale, 0.0f, logits, row_losses));
}

int bl__launch_softmax_statistics(bl__stream_t stream, uint64_t rows, uint64_t vocab, uint64_t stride, uint64_t first,
                                  const int32_t *labels, const float *logits, float *statistics) {
  if (rows == 0) {
    return 0;
  }
  return stride % 4 == 0 && bl_is_wide(logits)
             ? BL_LAUNCH((softmax_statistics<true>), (unsigned)rows, THREADS, stream, (unsigned)vocab, stride,
                         (unsigned)first, labels, logits, statistics)
             : BL_LAUNCH((softmax_statistics<false>), (unsigned)rows, THREADS, stream, (unsigned)vocab, stride,
                         (unsigned)first, labels, logits, statistics);
}

int bl__launch_cross_entropy_part(bl__stream_t stream, bool bf16, uint64_t rows, uint64_t vocab, uint64_t stride,
                                  uint64_t first, const int32_t *labels, float scale, float softcap, unsigned parts,
                                  const float *statistics, float *logits, double *row_losses) {
  if (rows == 0) {
    return 0;
  }
  const bool wide = stride % 4 == 0 && bl_is_wide(logits);
  if (softcap != 0.0f) {
    return BL_TYPED(bf16, wide,
                    BL_LAUNCH((cross_entropy_part<E, W, true>), (unsigned)rows, THREADS, stream, (unsigned)vocab,
                              stride, (unsigned)first, labels, scale, 1.0f / softcap, parts, statistics, logits,
                              row_losses));
  }
  return BL_TYPED(bf16, wide,
                  BL_LAUNCH((cross_entropy_part<E, W, false>), (unsigned)rows, THREADS, stream, (unsigned)vocab, stride,
                            (unsigned)first, labels, scale, 0.0f, parts, statistics, logits, row_losses));
}

int bl__launch_loss_sum(bl__stream_t stream, uint64_t rows, const double *row_losses, double *loss,
                        int64_t *first_bad_row) {
  return BL_LAUNCH((loss_sum), 1, 256, stream, rows, row_losses, loss, first_bad_row);
}
