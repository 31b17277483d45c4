// SPDX-License-Identifier: Apache-2.0
#include "model/memory.h"

#include "base/bytes.h"
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
