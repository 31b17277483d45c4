// SPDX-License-Identifier: Apache-2.0
// The embedding's lookup and its gradient. Forward moves a float (and one of the positions, from the cache) and writes
// an element. Backward reads an element and adds to a float, which is read and written once per token that occurs.
//
// Rows of the gradient that share a token are added by one thread, in the order of the rows: `rank` sorts the rows of a
// piece by token (a row's place is the number of smaller tokens and of equal ones before it: PIECE^2 comparisons, far
// below the time of moving the rows), `scatter` then goes through the runs of equal tokens. No atomics.
#include "compute/ops/cuda/kernels.h"
#include "compute/ops/cuda/kernels/device.h"

#define THREADS      128
#define PIECE        65536 // rows sorted together; pieces follow each other, so that the order of rows holds
#define RANK_THREADS 128

template <typename E, bool Wide>
static BL_DEVICE void store_floats(float *line, bl_count at, bl_count count, const float (&values)[bl_pack<E>::WIDTH]) {
#pragma unroll
  for (int i = 0; i < bl_pack<E>::WIDTH; i += 4) {
    const float four[4] = {values[i], values[i + 1], values[i + 2], values[i + 3]};
    bl_store<float, Wide>(line, at + i, count, bl_repack<float>(four));
  }
}

template <typename E> static BL_DEVICE bl_count column_of_thread() {
  return ((bl_count)blockIdx.y * THREADS + threadIdx.x) * bl_pack<E>::WIDTH;
}

template <typename E, bool Wide>
__global__ void __launch_bounds__(THREADS)
    embed(bl_count seq, bl_count width, const int32_t *__restrict__ tokens, const float *__restrict__ wte,
          const float *__restrict__ wpe, E *__restrict__ x) {
  const bl_count row = blockIdx.x, at = column_of_thread<E>();
  if (at >= width) {
    return;
  }
  float values[bl_pack<E>::WIDTH], positions[bl_pack<E>::WIDTH];
  bl_load_floats<E, Wide>(wte + (bl_count)tokens[row] * width, at, width, values);
  if (wpe != NULL) {
    bl_load_floats<E, Wide>(wpe + row % seq * width, at, width, positions);
#pragma unroll
    for (int i = 0; i < bl_pack<E>::WIDTH; i++) {
      values[i] += positions[i];
    }
  }
  bl_store<E, Wide>(x + row * width, at, width, bl_repack<E>(values));
}

// Tokens come from pinned memory of the host: they are brought over once.
__global__ void __launch_bounds__(256) take(int count, const int32_t *__restrict__ tokens, int32_t *__restrict__ here) {
  const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) {
    here[i] = tokens[i];
  }
}

// order[place] = row, rows by token and then by row; runs[place] = rows of that token at the first place of each, else 0.
__global__ void __launch_bounds__(RANK_THREADS)
    rank(int count, const int32_t *__restrict__ tokens, int32_t *__restrict__ order, int32_t *__restrict__ runs) {
  __shared__ int32_t tile[RANK_THREADS];
  const int row = (int)(blockIdx.x * RANK_THREADS + threadIdx.x);
  const int32_t mine = row < count ? tokens[row] : 0;
  int below = 0, before = 0, equal = 0;
  for (int first = 0; first < count; first += RANK_THREADS) {
    __syncthreads();
    const int other = first + (int)threadIdx.x;
    tile[threadIdx.x] = other < count ? tokens[other] : 0;
    __syncthreads();
    const int left = count - first < RANK_THREADS ? count - first : RANK_THREADS;
    for (int i = 0; i < left; i++) {
      const int32_t token = tile[i];
      below += token < mine;
      equal += token == mine;
      before += token == mine && first + i < row;
    }
  }
  if (row < count) {
    order[below + before] = row;
    runs[below + before] = before == 0 ? equal : 0;
  }
}

template <typename E, bool Wide>
__global__ void __launch_bounds__(THREADS)
    scatter(bl_count width, const int32_t *__restrict__ tokens, const int32_t *__restrict__ order,
            const int32_t *__restrict__ runs, const E *__restrict__ dx, float *__restrict__ dwte) {
  const int place = (int)blockIdx.x, run = runs[place];
  const bl_count at = column_of_thread<E>();
  if (run == 0 || at >= width) {
    return;
  }
  float *line = dwte + (bl_count)tokens[order[place]] * width;
  float sums[bl_pack<E>::WIDTH];
  bl_load_floats<E, Wide>(line, at, width, sums);
#pragma unroll 4
  for (int n = 0; n < run; n++) {
    float values[bl_pack<E>::WIDTH];
    bl_unpack<E>(bl_load<E, Wide>(dx + (bl_count)order[place + n] * width, at, width), values);
#pragma unroll
    for (int i = 0; i < bl_pack<E>::WIDTH; i++) {
      sums[i] += values[i];
    }
  }
  store_floats<E, Wide>(line, at, width, sums);
}

template <typename E, bool Wide>
__global__ void __launch_bounds__(THREADS) scatter_positions(bl_count batch, bl_count seq, bl_count width,
                                                             const E *__restrict__ dx, float *__restrict__ dwpe) {
  const bl_count position = blockIdx.x, at = column_of_thread<E>();
  if (at >= width) {
    return;
  }
  float sums[bl_pack<E>::WIDTH];
  bl_load_floats<E, Wide>(dwpe + position * width, at, width, sums);
#pragma unroll 4
  for (bl_count b = 0; b < batch; b++) {
    float values[bl_pack<E>::WIDTH];
    bl_unpack<E>(bl_load<E, Wide>(dx + (b * seq + position) * width, at, width), values);
#pragma unroll
    for (int i = 0; i < bl_pack<E>::WIDTH; i++) {
      sums[i] += values[i];
    }
  }
  store_floats<E, Wide>(dwpe + position * width, at, width, sums);
}

static dim3 grid_for(bool bf16, bl_count rows, bl_count width) {
  return dim3((unsigned)rows, (unsigned)bl_over(width, THREADS * (bf16 ? 8 : 4)));
}

static bool lines_are_wide(bool bf16, bl_count width, const void *x, const float *wte, const float *wpe) {
  return width % (bf16 ? 8 : 4) == 0 && bl_is_wide(x) && bl_is_wide(wte) && bl_is_wide(wpe);
}

int bl__launch_embedding_forward(bl__stream_t stream, bool bf16, uint64_t batch, uint64_t seq, uint64_t width,
                                 const int32_t *tokens, const float *wte, const float *wpe, void *x) {
  return BL_TYPED(bf16, lines_are_wide(bf16, width, x, wte, wpe),
                  BL_LAUNCH((embed<E, W>), grid_for(bf16, batch * seq, width), THREADS, stream, seq, width, tokens, wte,
                            wpe, (E *)x));
}

int bl__launch_embedding_backward(bl__stream_t stream, bool bf16, uint64_t batch, uint64_t seq, uint64_t width,
                                  const int32_t *tokens, const void *dx, float *dwte, float *dwpe, void *scratch) {
  int32_t *here = (int32_t *)scratch, *order = here + PIECE, *runs = order + PIECE;
  const bool wide = lines_are_wide(bf16, width, dx, dwte, dwpe);
  const bl_count rows = batch * seq;
  int result = 0;
  for (bl_count row = 0; result == 0 && row < rows; row += PIECE) {
    const int count = (int)bl_least(rows - row, PIECE);
    result = BL_LAUNCH((take), (unsigned)bl_over((bl_count)count, 256), 256, stream, count, tokens + row, here);
    if (result == 0) {
      result = BL_LAUNCH((rank), (unsigned)bl_over((bl_count)count, RANK_THREADS), RANK_THREADS, stream, count, here,
                         order, runs);
    }
    if (result == 0) {
      result = BL_TYPED(bf16, wide,
                        BL_LAUNCH((scatter<E, W>), grid_for(bf16, (bl_count)count, width), THREADS, stream, width, here,
                                  order, runs, (const E *)dx + row * width, dwte));
    }
  }
  if (result != 0 || dwpe == NULL) {
    return result;
  }
  return BL_TYPED(bf16, wide,
                  BL_LAUNCH((scatter_positions<E, W>), grid_for(bf16, seq, width), THREADS, stream, batch, seq, width,
                            (const E *)dx, dwpe));
}
