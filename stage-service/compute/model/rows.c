// SPDX-License-Identifier: Apache-2.0
// The conversion between what ranks divide by rows (norms, residuals, edges) and what they divide by parts (products).
// If layers are whole there is one part, and own rows are all rows.
#include "compute/model/chunk_internal.h"

#include "base/bytes.h"

#define PARTS_MAX BL_LAYER_PARTS_MAX

// Norms run over the rows of one part after the other, because the result for a part's rows must not depend on the rank
// that has them. Statistics and gradients are stored part by part, too.
static uint64_t part_bytes(const bl_chunk_t *chunk, uint32_t index) {
  return index * chunk->norm.rows * bl__chunk_row_bytes(chunk);
}

static const void *rows_of(const bl_chunk_t *chunk, const void *tensor, uint32_t index) {
  return tensor == NULL ? NULL : (const char *)tensor + part_bytes(chunk, index);
}

static float *stats_of(const bl_chunk_t *chunk, const float *stats, uint32_t index) {
  return (float *)(uintptr_t)stats + index * chunk->norm.rows * bl_model_norm_vectors(&chunk->model);
}

// One part's vectors in a layer's segment of gradients.
static float *partials_of(const bl_chunk_t *chunk, const float *partials, uint32_t index) {
  const uint64_t floats = (uint64_t)bl_model_norm_vectors(&chunk->model) * chunk->model.hidden;
  return (float *)(uintptr_t)partials +
         index * (bl_align_up(floats * sizeof(float), BL_CACHE_LINE_BYTES) / sizeof(float));
}

void bl__norm_forward_rows(bl_chunk_t *chunk, const bl__norm_t *norm, const void *x, void *y, float *stats) {
  for (uint32_t i = 0; i < chunk->here; i++) {
    chunk->ops->norm_forward(chunk->compute, &chunk->norm, rows_of(chunk, x, i), norm->gain, norm->bias,
                             (char *)y + part_bytes(chunk, i), stats_of(chunk, stats, i));
  }
}

void bl__norm_backward_rows(bl_chunk_t *chunk, const bl__norm_t *norm, const void *dy, const void *x,
                            const float *stats, const void *residual_gradient, void *dx, float *partials) {
  for (uint32_t i = 0; i < chunk->here; i++) {
    chunk->ops->norm_backward(chunk->compute, &chunk->norm, rows_of(chunk, dy, i), rows_of(chunk, x, i), norm->gain,
                              stats_of(chunk, stats, i), rows_of(chunk, residual_gradient, i),
                              (char *)dx + part_bytes(chunk, i), partials_of(chunk, partials, i));
  }
}

void bl__ask_sum(bl_chunk_t *chunk, uint64_t rows, uint64_t columns, bl_compute_dtype_t dtype, const void *x,
                 float *sums) {
  if (chunk->sum_count == BL__SUMS) {
    bl__make_sums(chunk);
  }
  bl_column_sum_t *sum = &chunk->sums[chunk->sum_count++];
  *sum = (bl_column_sum_t){.rows = rows, .columns = columns, .dtype = dtype, .x = x};
  sum->sums = sums;
}

void bl__make_sums(bl_chunk_t *chunk) {
  if (chunk->sum_count > 0) {
    chunk->ops->add_columns(chunk->compute, chunk->sum_count, chunk->sums);
    chunk->sum_count = 0;
  }
}

static void ask_line(bl_chunk_t *chunk, uint64_t columns, const float *line, float *sums) {
  bl__ask_sum(chunk, 1, columns, BL_COMPUTE_FP32, line, sums);
}

void bl__norm_add_gradient(bl_chunk_t *chunk, const bl__norm_t *norm, const float *partials) {
  const uint64_t hidden = chunk->model.hidden;
  const uint64_t padded = bl_align_up(hidden, BL_CACHE_LINE_BYTES / sizeof(float)); // as bl_chunk_span_places
  for (uint32_t i = 0; i < chunk->here; i++) {
    const float *from = partials_of(chunk, partials, i);
    ask_line(chunk, hidden, from, norm->gain_gradient + i * padded);
    if (norm->bias_gradient != NULL) {
      ask_line(chunk, hidden, from + hidden, norm->bias_gradient + i * padded);
    }
  }
}

void bl__head_norm_add_gradient(bl_chunk_t *chunk, const bl__layer_t *layer, uint32_t part, const float *partials) {
  const uint64_t width = chunk->model.head_dim, padded = bl_align_up(width, BL_CACHE_LINE_BYTES / sizeof(float));
  ask_line(chunk, width, partials, layer->query_norm.gain_gradient + part * padded);
  ask_line(chunk, width, partials + width, layer->key_norm.gain_gradient + part * padded);
}

static void copy(bl_chunk_t *chunk, void *to, const void *from, uint64_t bytes) {
  bl_device_stream_t *stream = chunk->ops->stream == NULL ? NULL : chunk->ops->stream(chunk->compute);
  bl_error_t err;
  bl_group_fail(chunk->group, bl_device_copy(chunk->device, stream, to, from, bytes, &err), &err);
}

const void *bl__all_rows(bl_chunk_t *chunk, const void *own) {
  if (chunk->ranks == 1) {
    return own;
  }
  bl__make_sums(chunk); // of data in the window
  const uint64_t bytes = chunk->own_rows * bl__chunk_row_bytes(chunk);
  uint8_t *all = bl_group_window(chunk->group, BL_EXCHANGE_BUFFER_ROWS);
  copy(chunk, all + chunk->rank * bytes, own, bytes);
  bl_group_gather(chunk->group, BL_EXCHANGE_BUFFER_ROWS, bytes);
  return all;
}

void *bl__sum_begin(bl_chunk_t *chunk, uint32_t window) {
  return bl_group_window(chunk->group, window);
}

void *bl__sum_of(const bl_chunk_t *chunk, void *sums, uint32_t index) {
  return (uint8_t *)sums + index * chunk->rows * bl__chunk_row_bytes(chunk);
}

void bl__sum_end(bl_chunk_t *chunk, uint32_t window, const float *bias, const void *residual, void *y) {
  const void *blocks[PARTS_MAX];
  bl_group_exchange(chunk->group, window, chunk->own_rows * bl__chunk_row_bytes(chunk), blocks);
  chunk->ops->sum_parts(chunk->compute, chunk->own_rows, chunk->model.hidden, chunk->dtype, chunk->parts, blocks, bias,
                        residual, y);
}
