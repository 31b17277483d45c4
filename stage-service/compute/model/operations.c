// SPDX-License-Identifier: Apache-2.0
#include "compute/model/operations.h"

#include "compute/model/chunk.h"

// Measures a chunk of one layer; all layers share their plans.
static bl_status_t measure_chunk(const bl_ops_t *ops, uint32_t threads, const bl_chunk_options_t *options,
                                 bl_chunk_sizes_t *sizes, uint64_t *workspace, uint64_t *held, bl_error_t *err) {
  const bl_compute_options_t wanted = {.threads = threads, .device = options->device};
  bl_chunk_options_t of_context = *options;
  bl_chunk_t *chunk;
  bl_status_t status = ops->create(&wanted, &of_context.compute, err);
  if (status != BL_OK) {
    return status;
  }
  ops->attach(of_context.compute);
  status = bl_chunk_create(&of_context, &chunk, err);
  if (status == BL_OK) {
    *sizes = bl_chunk_sizes(chunk);
    *workspace = ops->workspace_bytes(of_context.compute);
    *held = ops->held_bytes == NULL ? 0 : ops->held_bytes(of_context.compute);
    bl_chunk_destroy(chunk);
  }
  ops->destroy(of_context.compute);
  return status;
}

bl_status_t bl_operations_measure(const bl_ops_t *ops, bl_device_t *device, uint32_t threads, const bl_model_t *model,
                                  bl_layout_options_t layout, bl_operation_memory_t *operations, bl_error_t *err) {
  bl_chunk_options_t options = {.ops = ops,
                                .device = device,
                                .model = model,
                                .span = {.first_layer = model->layers - 1, .layer_count = 1},
                                .layout = layout,
                                .micro_batches = 1,
                                .prepack = true};
  bl_operation_memory_t found = {.logits = ops->logits};
  bl_chunk_sizes_t sizes;
  bl_status_t status =
      measure_chunk(ops, threads, &options, &sizes, &found.layer_workspace_bytes, &found.held_bytes, err);
  if (status != BL_OK) {
    return status;
  }
  found.packed_layer_bytes = sizes.packed_layer_bytes;
  options.span.head = true;
  status = measure_chunk(ops, threads, &options, &sizes, &found.head_workspace_bytes, &found.held_bytes, err);
  if (status != BL_OK) {
    return status;
  }
  found.packed_head_bytes = sizes.packed_head_bytes;
  *operations = found;
  return BL_OK;
}
