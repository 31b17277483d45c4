// SPDX-License-Identifier: Apache-2.0
#include "model/exchange_buffers.h"

#include "base/bytes.h"
#include "base/minmax.h"
#include "model/workspace.h"

#define STATISTICS 3 // floats per row and part of the vocabulary (compute/ops/ops.h)

static void add(bl_exchange_buffers_t *buffers, uint64_t *offset_bytes, uint64_t bytes) {
  *offset_bytes = buffers->bytes;
  buffers->bytes += bl_align_up(bytes, BL_CACHE_LINE_BYTES);
}

bl_exchange_buffers_t bl_exchange_buffers_plan(const bl_model_t *model, bl_layout_options_t options, bool head) {
  const uint64_t parts = bl_layer_parts_count(options.layer_parts), here = bl_layer_parts_here(options.layer_parts);
  const uint64_t rows = bl_layout_rows(model, options);
  const uint64_t tensor = rows * model->hidden * bl_dtype_bytes(options.dtype);
  const bool shared = here < parts;
  bl_exchange_buffers_t buffers = {0};
  if (parts == 1) {
    return buffers;
  }
  buffers.bytes = shared ? BL_EXCHANGE_BUFFERS_PAGE_BYTES : 0;
  const uint64_t norm =
      bl_align_up((uint64_t)bl_max_u64(model->hidden, model->head_dim) * sizeof(float), BL_CACHE_LINE_BYTES);
  add(&buffers, &buffers.offset_bytes[BL_EXCHANGE_BUFFER_ROWS], shared ? bl_max_u64(tensor, parts * norm) : 0);
  add(&buffers, &buffers.offset_bytes[BL_EXCHANGE_BUFFER_SUM], here * tensor);
  add(&buffers, &buffers.staging_offset_bytes,
      shared ? (parts - here) * (tensor / bl_layer_parts_ranks(options.layer_parts)) : 0);
  if (head) {
    const uint64_t statistics = bl_workspace_head_rows(model, options) * STATISTICS;
    const uint64_t logits = bl_layer_parts_table_rows(model->vocab, (uint32_t)parts);
    add(&buffers, &buffers.offset_bytes[BL_EXCHANGE_BUFFER_HEAD_SUM], here * tensor);
    add(&buffers, &buffers.offset_bytes[BL_EXCHANGE_BUFFER_SCORES],
        parts * bl_max_u64(statistics, logits) * sizeof(float));
  }
  return buffers;
}
