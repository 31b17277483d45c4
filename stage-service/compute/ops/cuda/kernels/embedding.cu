// SPDX-License-Identifier: Apache-2.0
// The embedding's lookup and its gradient. The forward reads a float (and one of the positions, from the cache) and
// writes an element. The backward reads an element and adds it to a float, which is read and written once per distinct
// token.
//
// Rows of the gradient that share a token are added by one thread, in the order of the rows. `rank` sorts the rows of a
// piece by token: a row's place is the number of smaller tokens plus that of equal tokens before it. This takes count^2
// comparisons, shared by SLICES threads a row, so that 8192 rows take a few percent of the time of moving them.
// `scatter` then processes the runs of equal tokens. There are no atomics.
//
// Tables in parts: a token or position of another part is an addend of 0 forward and is skipped backward. Every part
// sorts all rows, also those whose tokens it does not have. A whole table is one part.
#include "compute/ops/cuda/kernels.h"
#include "compute/ops/cuda/kernels/device.h"

#define THREADS 128
#define PIECE   65536 // rows sorted together; pieces run one after the other, which keeps the order of rows
#define ROWS    32    // that a block ranks: one warp of them for each slice of the tokens that they are compared with
#define SLICES  8
#define CHUNK   128 // tokens that a slice compares at a time
#define TILE    (SLICES * CHUNK)

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

// Rows of a table that a part has.
struct part_rows {
  bl_count first, count;
};

// Copies tokens from pinned host memory once, so that not every warp reads them from there.
__global__ void __launch_bounds__(256) take(int count, const int32_t *__restrict__ tokens, int32_t *__restrict__ here) {
  const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) {
    here[i] = tokens[i];
  }
}

template <typename E, bool Wide>
__global__ void __launch_bounds__(THREADS)
    embed(part_rows token_rows, part_rows position_rows, bl_count start, bl_count seq, bl_count width, float scale,
          const int32_t *__restrict__ tokens, const float *__restrict__ wte, const float *__restrict__ wpe,
          E *__restrict__ x) {
  const bl_count row = blockIdx.x, at = column_of_thread<E>();
  if (at >= width) {
    return;
  }
  float values[bl_pack<E>::WIDTH] = {}, positions[bl_pack<E>::WIDTH];
  const bl_count token = (bl_count)tokens[row] - token_rows.first;
  if (token < token_rows.count) {
    bl_load_floats<E, Wide>(wte + token * width, at, width, values);
#pragma unroll
    for (int i = 0; i < bl_pack<E>::WIDTH; i++) {
      values[i] *= scale;
    }
  }
  const bl_count position = start + (uint32_t)row % (uint32_t)seq - position_rows.first;
  if (wpe != NULL && position < position_rows.count) {
    bl_load_floats<E, Wide>(wpe + position * width, at, width, positions);
#pragma unroll
    for (int i = 0; i < bl_pack<E>::WIDTH; i++) {
      values[i] += positions[i];
    }
  }
  bl_store<E, Wide>(x + row * width, at, width, bl_repack<E>(values));
}

// Sets order[place] = row and sorted[place] = its token, with rows ordered by token, then by row.
__global__ void __launch_bounds__(ROWS *SLICES)
    rank(int count, const int32_t *__restrict__ tokens, int32_t *__restrict__ order, int32_t *__restrict__ sorted) {
  __shared__ uint4 fours[TILE / 4];
  __shared__ int32_t places[SLICES][ROWS];
  const int lane = (int)threadIdx.x % ROWS, slice = (int)threadIdx.x / ROWS, first_row = (int)blockIdx.x * ROWS;
  const int row = first_row + lane;
  int32_t *tile = (int32_t *)fours;
  const int32_t mine = row < count ? tokens[row] : 0;
  int place = 0; // counts within this slice
  for (int first = 0; first < count; first += TILE) {
    __syncthreads();
    for (int i = (int)threadIdx.x; i < TILE; i += ROWS * SLICES) {
      tile[i] = first + i < count ? tokens[first + i] : INT32_MAX; // larger than any token
    }
    __syncthreads();
    const int begin = first + slice * CHUNK;
    if (begin + CHUNK <= first_row || begin >= first_row + ROWS) { // all tokens lie before these rows, or all lie after
                                                                   // them
      const int32_t bound = mine + (begin < first_row);
#pragma unroll 4
      for (int i = 0; i < CHUNK / 4; i++) {
        const uint4 four = fours[slice * CHUNK / 4 + i];
        place += ((int32_t)four.x < bound) + ((int32_t)four.y < bound) + ((int32_t)four.z < bound) +
                 ((int32_t)four.w < bound);
      }
    } else {
      for (int i = 0; i < CHUNK; i++) {
        place += tile[slice * CHUNK + i] < mine + (begin + i < row);
      }
    }
  }
  places[slice][lane] = place;
  __syncthreads();
  if (slice == 0 && row < count) {
    for (int s = 1; s < SLICES; s++) {
      place += places[s][lane];
    }
    order[place] = row;
    sorted[place] = mine;
  }
}

// Returns how many of the sorted tokens from `place` on are equal. Searches with steps of doubling length, then by
// bisection.
static BL_DEVICE int run_from(int place, int count, const int32_t *__restrict__ sorted) {
  const int32_t token = sorted[place];
  int last = place, step = 1; // `last` is in the run
  while (last + step < count && sorted[last + step] == token) {
    last += step;
    step *= 2;
  }
  int behind = last + step < count ? last + step : count;
  while (last + 1 < behind) {
    const int middle = last + (behind - last) / 2;
    if (sorted[middle] == token) {
      last = middle;
    } else {
      behind = middle;
    }
  }
  return last + 1 - place;
}

template <typename E, bool Wide>
__global__ void __launch_bounds__(THREADS)
    scatter(int count, part_rows token_rows, bl_count width, float scale, const int32_t *__restrict__ order,
            const int32_t *__restrict__ sorted, const E *__restrict__ dx, float *__restrict__ dwte) {
  const int place = (int)blockIdx.x;
  const bl_count at = column_of_thread<E>(), token = (bl_count)sorted[place] - token_rows.first;
  if (at >= width || token >= token_rows.count || (place > 0 && sorted[place - 1] == sorted[place])) {
    return;
  }
  const int run = run_from(place, count, sorted);
  float *line = dwte + token * width;
  float sums[bl_pack<E>::WIDTH];
  bl_load_floats<E, Wide>(line, at, width, sums);
#pragma unroll 4
  for (int n = 0; n < run; n++) {
    float values[bl_pack<E>::WIDTH];
    bl_unpack<E>(bl_load<E, Wide>(dx + (bl_count)order[place + n] * width, at, width), values);
#pragma unroll
    for (int i = 0; i < bl_pack<E>::WIDTH; i++) {
      sums[i] += scale * values[i];
    }
  }
  store_floats<E, Wide>(line, at, width, sums);
}

// dx and dwpe begin with the first position of the part.
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

static int launch_take(bl__stream_t stream, int count, const int32_t *tokens, int32_t *here) {
  return BL_LAUNCH((take), (unsigned)bl_over((bl_count)count, 256), 256, stream, count, tokens, here);
}

int bl__launch_embedding_forward(bl__stream_t stream, bool bf16, const bl__embedding_t *part, const int32_t *tokens,
                                 const float *wte, const float *wpe, void *x, void *scratch) {
  int32_t *here = (int32_t *)scratch;
  const bl_count seq = part->seq, width = part->width;
  const part_rows token_rows = {part->first_token, part->tokens}, positions = {part->first_position, part->positions};
  const bool wide = lines_are_wide(bf16, width, x, wte, wpe);
  // If not all rows fit, a piece is a number of whole sequences, because positions start anew in every piece.
  const bl_count rows = part->batch * seq, space = BL__SCRATCH_BYTES / sizeof *here;
  const bl_count piece = rows <= space ? rows : space / seq * seq;
  int result = piece == 0 && rows > 0 ? BL_TOO_LARGE : 0;
  for (bl_count row = 0; result == 0 && row < rows; row += piece) {
    const bl_count count = bl_least(rows - row, piece);
    result = launch_take(stream, (int)count, tokens + row, here);
    if (result == 0) {
      result = BL_TYPED(bf16, wide,
                        BL_LAUNCH((embed<E, W>), grid_for(bf16, count, width), THREADS, stream, token_rows, positions,
                                  part->start, seq, width, part->scale, here, wte, wpe, (E *)x + row * width));
    }
  }
  return result;
}

// Adds the gradients of the positions of this slice that the part has.
static int launch_positions(bl__stream_t stream, bool bf16, const bl__embedding_t *part, const void *dx, float *dwpe) {
  const bl_count seq = part->seq, width = part->width;
  const bl_count first = bl_most(part->start, part->first_position);
  const bl_count end = bl_least(part->start + seq, part->first_position + part->positions);
  if (first >= end) {
    return 0;
  }
  float *lines = dwpe + (first - part->first_position) * width;
  const bool wide = lines_are_wide(bf16, width, dx, lines, NULL);
  return BL_TYPED(bf16, wide,
                  BL_LAUNCH((scatter_positions<E, W>), grid_for(bf16, end - first, width), THREADS, stream, part->batch,
                            seq, width, (const E *)dx + (first - part->start) * width, lines));
}

int bl__launch_embedding_backward(bl__stream_t stream, bool bf16, const bl__embedding_t *part, const int32_t *tokens,
                                  const void *dx, float *dwte, float *dwpe, void *scratch) {
  int32_t *here = (int32_t *)scratch, *order = here + PIECE, *sorted = order + PIECE;
  const bl_count width = part->width, rows = part->batch * part->seq;
  const part_rows token_rows = {part->first_token, part->tokens};
  const bool wide = lines_are_wide(bf16, width, dx, dwte, NULL);
  int result = 0;
  for (bl_count row = 0; result == 0 && row < rows; row += PIECE) {
    const int count = (int)bl_least(rows - row, PIECE);
    result = launch_take(stream, count, tokens + row, here);
    if (result == 0) {
      result = BL_LAUNCH((rank), (unsigned)bl_over((bl_count)count, ROWS), ROWS * SLICES, stream, count, here, order,
                         sorted);
    }
    if (result == 0) {
      result = BL_TYPED(bf16, wide,
                        BL_LAUNCH((scatter<E, W>), grid_for(bf16, (bl_count)count, width), THREADS, stream, count,
                                  token_rows, width, part->scale, order, sorted, (const E *)dx + row * width, dwte));
    }
  }
  return result != 0 || dwpe == NULL ? result : launch_positions(stream, bf16, part, dx, dwpe);
}
