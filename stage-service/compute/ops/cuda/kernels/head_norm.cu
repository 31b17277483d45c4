// SPDX-License-Identifier: Apache-2.0
// RMSNorm of single query and key heads inside rows of qkv. Values are copied.
//
// A group of 1 to 32 neighbouring lanes takes a head and holds it in registers, so it is read once. The forward moves 2
// elements per element of qkv. The backward moves 3 (dy, x, dqkv; 2 for values) and recomputes the statistics. Query,
// key and value heads are distributed to separate blocks, at most BLOCKS_MAX of each, so that the heads of a group have
// the same gain. A block adds the sums of its groups in order and writes them to scratch. A second kernel adds the sums
// of the blocks in order.
#include "compute/ops/cuda/kernels.h"
#include "compute/ops/cuda/kernels/device.h"
#include "compute/ops/cuda/kernels/lines.h"

#define THREADS    256
#define BLOCKS_MAX 512

// A lane has KEEP packs; its pack c begins at element (c lanes + lane) WIDTH of the head.
template <typename E> static BL_DEVICE bl_count element_of(int c, int lanes) {
  return ((bl_count)c * lanes + threadIdx.x % lanes) * bl_pack<E>::WIDTH;
}

// Loads zeros after the end of the head, and for a group without a head.
template <typename E, bool Wide, int KEEP>
static BL_DEVICE void load_head(const E *line, bl_count size, int lanes, bool is_there, bl_pack<E> (&packs)[KEEP]) {
#pragma unroll
  for (int c = 0; c < KEEP; c++) {
    const bl_count at = element_of<E>(c, lanes);
    if (is_there && at < size) {
      packs[c] = bl_load<E, Wide>(line, at, size);
    } else {
      packs[c].raw = {{0, 0, 0, 0}};
    }
  }
}

template <typename E, bool Wide, int KEEP>
static BL_DEVICE void store_head(E *line, bl_count size, int lanes, const bl_pack<E> (&packs)[KEEP]) {
#pragma unroll
  for (int c = 0; c < KEEP; c++) {
    const bl_count at = element_of<E>(c, lanes);
    if (at < size) {
      bl_store<E, Wide>(line, at, size, packs[c]);
    }
  }
}

// Heads are counted with 32 bits, because a 64-bit division takes longer than moving a pack.
template <typename E, bool Wide, int KEEP>
__global__ void __launch_bounds__(THREADS)
    head_norm_forward(const bl__head_norm_t shape, int lanes, const E *__restrict__ x,
                      const float *__restrict__ query_gain, const float *__restrict__ key_gain, E *__restrict__ y) {
  const uint32_t of_row = (uint32_t)(shape.heads + 2 * shape.kv_heads);
  const bl_count head = (bl_count)blockIdx.x * (THREADS / lanes) + threadIdx.x / lanes, size = shape.head_dim;
  const uint32_t slot = (uint32_t)head % of_row;
  const bool is_there = head < shape.rows * of_row, is_value = slot >= shape.heads + shape.kv_heads;
  const E *line = x + head * size;
  bl_pack<E> packs[KEEP];
  load_head<E, Wide, KEEP>(line, size, lanes, is_there, packs);
  float squares = 0.0f;
#pragma unroll
  for (int c = 0; c < KEEP; c++) {
    float values[bl_pack<E>::WIDTH];
    bl_unpack<E>(packs[c], values);
#pragma unroll
    for (int i = 0; i < bl_pack<E>::WIDTH; i++) {
      squares += values[i] * values[i];
    }
  }
  squares = bl_group_all(squares, lanes, bl_plus());
  if (!is_there) {
    return;
  }
  if (!is_value) {
    const float inverse = 1.0f / sqrtf(squares / (float)size + shape.epsilon);
    const float *gain = slot < shape.heads ? query_gain : key_gain;
#pragma unroll
    for (int c = 0; c < KEEP; c++) {
      const bl_count at = element_of<E>(c, lanes);
      if (at < size) {
        float values[bl_pack<E>::WIDTH], gains[bl_pack<E>::WIDTH];
        bl_unpack<E>(packs[c], values);
        bl_load_floats<E, Wide>(gain, at, size, gains);
#pragma unroll
        for (int i = 0; i < bl_pack<E>::WIDTH; i++) {
          values[i] = values[i] * inverse * (gains[i] + shape.offset);
        }
        packs[c] = bl_repack<E>(values);
      }
    }
  }
  store_head<E, Wide, KEEP>(y + head * size, size, lanes, packs);
}

// blockIdx.y: queries, keys, values. dqkv may be x: a lane reads the packs that it writes before it writes them.
// lines [2][gridDim.x][head_dim]; NULL: not wanted.
template <typename E, bool Wide, int KEEP>
__global__ void __launch_bounds__(THREADS)
    head_norm_backward(const bl__head_norm_t shape, int lanes, const E *dy, const E *x,
                       const float *__restrict__ query_gain, const float *__restrict__ key_gain, E *dqkv,
                       float *__restrict__ lines) {
  __shared__ float shared[THREADS][bl_pack<E>::WIDTH];
  const uint32_t kind = blockIdx.y, of_kind = (uint32_t)(kind == 0 ? shape.heads : shape.kv_heads);
  const bl_count of_row = shape.heads + 2 * shape.kv_heads, size = shape.head_dim, groups = THREADS / lanes;
  const bl_count before = kind == 0 ? 0 : kind == 1 ? shape.heads : shape.heads + shape.kv_heads; // in a row
  const bl_count heads = shape.rows * of_kind, group = threadIdx.x / lanes;
  const float *gain = kind == 0 ? query_gain : key_gain;
  float dgain[KEEP][bl_pack<E>::WIDTH] = {};
  for (bl_count base = blockIdx.x * groups; base < heads;
       // All lanes of a warp stay in the loop together.
       base += gridDim.x * groups) {
    const bl_count head = base + group;
    const bool is_there = head < heads;
    const bl_count first = ((uint32_t)head / of_kind * of_row + before + (uint32_t)head % of_kind) * size;
    bl_pack<E> gradients[KEEP], inputs[KEEP];
    load_head<E, Wide, KEEP>(dy + first, size, lanes, is_there, gradients);
    if (kind < 2) {
      load_head<E, Wide, KEEP>(x + first, size, lanes, is_there, inputs);
      float squares = 0.0f, dot = 0.0f;
#pragma unroll
      for (int c = 0; c < KEEP; c++) {
        const bl_count at = element_of<E>(c, lanes);
        if (at < size) {
          float g[bl_pack<E>::WIDTH], values[bl_pack<E>::WIDTH], gains[bl_pack<E>::WIDTH];
          bl_unpack<E>(gradients[c], g);
          bl_unpack<E>(inputs[c], values);
          bl_load_floats<E, Wide>(gain, at, size, gains);
#pragma unroll
          for (int i = 0; i < bl_pack<E>::WIDTH; i++) {
            squares += values[i] * values[i];
            dot += g[i] * (gains[i] + shape.offset) * values[i];
          }
        }
      }
      squares = bl_group_all(squares, lanes, bl_plus());
      dot = bl_group_all(dot, lanes, bl_plus());
      const float inverse = 1.0f / sqrtf(squares / (float)size + shape.epsilon), slope = inverse * dot / (float)size;
#pragma unroll
      for (int c = 0; c < KEEP; c++) {
        const bl_count at = element_of<E>(c, lanes);
        if (is_there && at < size) {
          float g[bl_pack<E>::WIDTH], values[bl_pack<E>::WIDTH], gains[bl_pack<E>::WIDTH];
          bl_unpack<E>(gradients[c], g);
          bl_unpack<E>(inputs[c], values);
          bl_load_floats<E, Wide>(gain, at, size, gains);
#pragma unroll
          for (int i = 0; i < bl_pack<E>::WIDTH; i++) {
            const float normalised = values[i] * inverse;
            dgain[c][i] += g[i] * normalised;
            g[i] = inverse * (g[i] * (gains[i] + shape.offset) - normalised * slope);
          }
          gradients[c] = bl_repack<E>(g);
        }
      }
    }
    if (is_there) {
      store_head<E, Wide, KEEP>(dqkv + first, size, lanes, gradients);
    }
  }
  if (lines == NULL || kind == 2) {
    return;
  }
#pragma unroll
  for (int c = 0; c < KEEP; c++) {
    const bl_count at = element_of<E>(c, lanes);
    __syncthreads(); // every thread has read them
#pragma unroll
    for (int i = 0; i < bl_pack<E>::WIDTH; i++) {
      shared[threadIdx.x][i] = dgain[c][i];
    }
    __syncthreads();
    if (group == 0) {
#pragma unroll
      for (int i = 0; i < bl_pack<E>::WIDTH; i++) {
        float sum = shared[threadIdx.x][i];
        for (int other = (int)threadIdx.x + lanes; other < THREADS; other += lanes) {
          sum += shared[other][i];
        }
        if (at + i < size) {
          lines[((bl_count)kind * gridDim.x + blockIdx.x) * size + at + i] = sum;
        }
      }
    }
  }
}

// Lanes per head and packs per lane for heads of `size`; the shape alone determines them.
struct geometry {
  int lanes, keep;
};

static geometry geometry_of(bool bf16, bl_count size) {
  const bl_count packs = bl_over(size, bf16 ? 8 : 4);
  int lanes = 1;
  while (lanes < 32 && (bl_count)lanes < packs) {
    lanes *= 2;
  }
  const bl_count each = bl_over(packs, lanes);
  return {lanes, each <= 2 ? (int)each : bf16 ? 4 : 8};
}

template <typename E, bool W>
static int forward_of(bl__stream_t stream, geometry g, const bl__head_norm_t *shape, const E *x,
                      const float *query_gain, const float *key_gain, E *y) {
  const bl_count heads = shape->rows * (shape->heads + 2 * shape->kv_heads);
  const unsigned blocks = (unsigned)bl_over(heads, THREADS / g.lanes);
#define FORWARD(KEEP)                                                                                                  \
  BL_LAUNCH((head_norm_forward<E, W, KEEP>), blocks, THREADS, stream, *shape, g.lanes, x, query_gain, key_gain, y)
  constexpr int most = sizeof(E) == sizeof(float) ? 8 : 4;
  return g.keep == 1 ? FORWARD(1) : g.keep == 2 ? FORWARD(2) : FORWARD(most);
}

template <typename E, bool W>
static int backward_of(bl__stream_t stream, geometry g, unsigned blocks, const bl__head_norm_t *shape, const E *dy,
                       const E *x, const float *query_gain, const float *key_gain, E *dqkv, float *lines) {
#define BACKWARD(KEEP)                                                                                                 \
  BL_LAUNCH((head_norm_backward<E, W, KEEP>), dim3(blocks, 3), THREADS, stream, *shape, g.lanes, dy, x, query_gain,    \
            key_gain, dqkv, lines)
  constexpr int most = sizeof(E) == sizeof(float) ? 8 : 4;
  return g.keep == 1 ? BACKWARD(1) : g.keep == 2 ? BACKWARD(2) : BACKWARD(most);
}

static bool heads_are_wide(bool bf16, bl_count size, const void *a, const void *b, const void *c,
                           const float *query_gain, const float *key_gain) {
  return size % (bf16 ? 8 : 4) == 0 && bl_is_wide(a) && bl_is_wide(b) && bl_is_wide(c) && bl_is_wide(query_gain) &&
         bl_is_wide(key_gain);
}

static bool are_too_many(const bl__head_norm_t *shape) {
  return shape->rows * (shape->heads + 2 * shape->kv_heads) > UINT32_MAX;
}

int bl__launch_head_norm_forward(bl__stream_t stream, bool bf16, const bl__head_norm_t *shape, const void *qkv,
                                 const float *query_gain, const float *key_gain, void *y) {
  if (shape->rows == 0 || are_too_many(shape)) {
    return shape->rows == 0 ? 0 : BL_TOO_LARGE;
  }
  const geometry g = geometry_of(bf16, shape->head_dim);
  return BL_TYPED(bf16, heads_are_wide(bf16, shape->head_dim, qkv, y, NULL, query_gain, key_gain),
                  (forward_of<E, W>(stream, g, shape, (const E *)qkv, query_gain, key_gain, (E *)y)));
}

int bl__launch_head_norm_backward(bl__stream_t stream, bool bf16, const bl__head_norm_t *shape, const void *dy,
                                  const void *qkv, const float *query_gain, const float *key_gain, void *dqkv,
                                  float *partials, float *scratch) {
  if (shape->rows == 0 || are_too_many(shape)) {
    return shape->rows == 0 ? 0 : BL_TOO_LARGE;
  }
  const geometry g = geometry_of(bf16, shape->head_dim);
  const unsigned blocks = (unsigned)bl_least(bl_over(shape->rows * shape->heads, THREADS / g.lanes), BLOCKS_MAX);
  float *lines = partials != NULL ? scratch : NULL;
  const int result = BL_TYPED(bf16, heads_are_wide(bf16, shape->head_dim, dy, qkv, dqkv, query_gain, key_gain),
                              (backward_of<E, W>(stream, g, blocks, shape, (const E *)dy, (const E *)qkv, query_gain,
                                                 key_gain, (E *)dqkv, lines)));
  if (result != 0 || partials == NULL) {
    return result;
  }
  const bl_count size = shape->head_dim;
  const bl__lines_t sums[2] = {{lines, partials, blocks, size, 0, false},
                               {lines + blocks * size, partials + size, blocks, size, 0, false}};
  return bl_add_lines(stream, 2, sums);
}
