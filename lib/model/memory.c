// SPDX-License-Identifier: Apache-2.0
#include "model/memory.h"

#include "base/bytes.h"
#include "base/minmax.h"
#include "model/workspace.h"

#include <stddef.h>

#define CACHE_LINE_ELEMENTS (BL_CACHE_LINE_BYTES / sizeof(float))

bl_status_t bl_chunk_memory(const bl_model_t *model, bl_chunk_span_t span, bl_layout_options_t options,
                            bl_chunk_memory_t *memory) {
  bl_layout_t layout;
  bl_status_t status = bl_layout_init(&layout, model, span, options);
  if (status != BL_OK) {
    return status;
  }
  uint64_t weight_bytes = bl_chunk_span_places(model, span, NULL) * sizeof(float);
  uint64_t gradient_bytes = weight_bytes;
  if (bl_chunk_span_two_gradients(model, span)) {
    gradient_bytes += bl_align_up((uint64_t)model->vocab * model->hidden, CACHE_LINE_ELEMENTS) * sizeof(float);
  }
  *memory = (bl_chunk_memory_t){.weight_bytes = weight_bytes,
                                .gradient_bytes = gradient_bytes,
                                .optimizer_bytes = 2 * weight_bytes,
                                .slot_bytes = layout.slot_bytes,
                                .evict_bytes = layout.evict_bytes,
                                .edge_bytes = layout.edge_bytes,
                                .workspace_bytes = bl_workspace_plan(&layout).bytes};
  return BL_OK;
}

// Every part begins on a cache line.
static uint64_t lines(uint64_t bytes) {
  return bl_align_up(bytes, BL_CACHE_LINE_BYTES);
}

static void add_chunk(const bl_stage_memory_request_t *request, bl_chunk_span_t span, const bl_chunk_memory_t *chunk,
                      bl_stage_memory_t *sum) {
  const uint64_t packed = span.layer_count * request->operations.packed_layer_bytes +
                          (span.head ? request->operations.packed_head_bytes : 0);
  sum->weight_bytes += lines(chunk->weight_bytes) + lines(packed);
  sum->gradient_bytes += lines(chunk->gradient_bytes);
  sum->optimizer_bytes += 2 * lines(chunk->optimizer_bytes / 2);
  sum->shadow_bytes +=
      request->post_validation ? lines(chunk->weight_bytes) + 2 * lines(chunk->optimizer_bytes / 2) : 0;
  sum->chunk_bytes = bl_max_u64(sum->chunk_bytes, lines(chunk->workspace_bytes));
  sum->slot_bytes = bl_max_u64(sum->slot_bytes, lines(chunk->slot_bytes));
  sum->evict_bytes = bl_max_u64(sum->evict_bytes, chunk->evict_bytes);
  sum->edge_bytes = bl_max_u64(sum->edge_bytes, lines(chunk->edge_bytes));
}

// Losses, a square for every tensor, the checksum of a block, tokens, labels.
static void lay_out_data(const bl_stage_memory_request_t *request, uint64_t tensors, bl_stage_memory_t *memory) {
  const uint64_t batch =
      (uint64_t)request->options.micro_batch * request->model->seq * sizeof(int32_t) * request->batches;
  memory->squares_at = lines((uint64_t)request->micro_batches * BL_STAGE_LOSS_BYTES);
  memory->hash_at = lines(memory->squares_at + tensors * sizeof(double));
  memory->tokens_at = memory->hash_at + BL_CACHE_LINE_BYTES;
  memory->labels_at = lines(memory->tokens_at + batch);
  memory->data_bytes = memory->labels_at + batch;
}

bl_status_t bl_stage_memory(const bl_stage_memory_request_t *request, bl_stage_memory_t *memory) {
  const bl_model_t *model = request->model;
  bl_stage_memory_t sum = {0};
  uint64_t tensors = 0;
  bool head = false, exchanges = false; // with another chunk, the gradient of a tied embedding
  for (uint32_t i = 0; i < request->span_count; i++) {
    const bl_chunk_span_t span = request->spans[i];
    bl_chunk_memory_t chunk;
    bl_status_t status = bl_chunk_memory(model, span, request->options, &chunk);
    if (status != BL_OK) {
      return status;
    }
    add_chunk(request, span, &chunk, &sum);
    tensors += bl_chunk_span_owned_count(model, span);
    head = head || span.head;
    exchanges = exchanges || (model->tied && span.embedding != span.head);
  }
  sum.tied_bytes = exchanges ? (uint64_t)model->vocab * model->hidden * sizeof(float) : 0;
  sum.operation_bytes = head ? request->operations.head_workspace_bytes : request->operations.layer_workspace_bytes;
  lay_out_data(request, tensors, &sum);
  *memory = sum;
  return BL_OK;
}
