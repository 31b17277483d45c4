// SPDX-License-Identifier: Apache-2.0
#include "model/workspace.h"

#include "base/bytes.h"
#include "base/minmax.h"

static uint64_t aligned_bytes(uint64_t elements, uint64_t element_bytes) {
  return bl_align_up(elements * element_bytes, BL_CACHE_LINE_BYTES);
}

// Divides the rows into pieces of equal length if possible.
uint64_t bl_workspace_head_rows(const bl_model_t *model, bl_layout_options_t options) {
  const uint64_t rows = bl_layout_rows(model, options);
  const uint64_t logits = options.logits.piece_elements != 0 ? options.logits.piece_elements : BL_HEAD_LOGITS_ELEMENTS;
  uint64_t most = logits / model->vocab / BL_HEAD_ROWS_MULTIPLE * BL_HEAD_ROWS_MULTIPLE;
  most = bl_max_u64(most, BL_HEAD_ROWS_MULTIPLE);
  const uint64_t pieces = (rows + most - 1) / most;
  return pieces == 1 ? rows : bl_align_up((rows + pieces - 1) / pieces, BL_HEAD_ROWS_MULTIPLE);
}

static uint64_t head_bytes(bl_workspace_t *workspace, const bl_layout_t *layout, uint64_t rows) {
  const bl_model_t *model = &layout->model;
  const bl_layer_parts_t layer_parts = layout->options.layer_parts;
  uint64_t columns = bl_layer_parts_table_rows(model->vocab, bl_layer_parts_count(layer_parts)); // of a part
  if (layout->options.logits.row_multiple != 0) {
    columns = workspace->logits_stride = bl_logits_stride(layout->options.logits, columns);
  }
  workspace->head_rows = bl_workspace_head_rows(model, layout->options);
  uint64_t bytes = aligned_bytes(rows * model->hidden, bl_dtype_bytes(layout->options.dtype));
  workspace->stats_offset_bytes = bytes;
  bytes += aligned_bytes(rows * bl_model_norm_vectors(model), sizeof(float));
  workspace->losses_offset_bytes = bytes;
  bytes += aligned_bytes(rows, sizeof(double));
  workspace->logits_offset_bytes = bytes;
  return bytes + aligned_bytes(bl_layer_parts_here(layer_parts) * workspace->head_rows * columns, sizeof(float));
}

// Returns the bytes that an F that keeps nothing needs. They overlay the bytes that only I needs.
static uint64_t forward_bytes(bl_workspace_t *workspace, const bl_layout_t *layout) {
  const uint64_t x = bl_align_up(layout->edge_bytes, BL_CACHE_LINE_BYTES);
  const uint32_t layers = layout->span.layer_count;
  uint64_t end = workspace->scratch_offset_bytes;
  workspace->layer_offset_bytes = end;
  end += bl_layout_layer_bytes(layout);
  workspace->x_offset_bytes[0] = workspace->x_offset_bytes[1] = end;
  if (layers > 2) { // layer 1 reads the odd one and writes the even one
    end += x;
    workspace->x_offset_bytes[0] = end;
  }
  return layers > 1 ? end + x : end;
}

bl_workspace_t bl_workspace_plan(const bl_layout_t *layout) {
  const bl_model_t *model = &layout->model;
  const uint64_t rows = bl_layout_rows(model, layout->options);
  const bl_layer_parts_t layer_parts = layout->options.layer_parts;
  const bl_model_t part = bl_layer_part_model(model, bl_layer_parts_count(layer_parts));
  const uint64_t own = rows / bl_layer_parts_ranks(layer_parts) * model->hidden;
  const uint64_t widest = bl_max_u64(own, rows * bl_max_u64(part.ffn, bl_model_query_width(&part)));
  bl_workspace_t workspace = {.backward_offset_bytes = layout->shared_bytes};
  workspace.scratch_offset_bytes =
      workspace.backward_offset_bytes + layout->span.layer_count * layout->backward_stride_bytes;
  workspace.bytes = workspace.scratch_offset_bytes + aligned_bytes(widest, bl_dtype_bytes(layout->options.dtype));
  if (layout->options.recompute == BL_RECOMPUTE_FULL) {
    workspace.bytes = bl_max_u64(workspace.bytes, forward_bytes(&workspace, layout));
  }
  if (layout->span.head) {
    workspace.bytes = bl_max_u64(workspace.bytes, head_bytes(&workspace, layout, rows));
  }
  if (bl_layer_parts_ranks(layer_parts) == 1) {
    workspace.exchange_buffers = bl_exchange_buffers_plan(model, layout->options, layout->span.head);
    workspace.exchange_buffers_offset_bytes = bl_align_up(workspace.bytes, BL_CACHE_LINE_BYTES);
    workspace.bytes = workspace.exchange_buffers.bytes > 0
                          ? workspace.exchange_buffers_offset_bytes + workspace.exchange_buffers.bytes
                          : workspace.bytes;
  }
  return workspace;
}
