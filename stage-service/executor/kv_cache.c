// SPDX-License-Identifier: Apache-2.0
#include "executor/kv_cache.h"

static void *page_at(const bl_engine_t *engine, uint32_t index) {
  return index == BL_NONE ? NULL : engine->kv_cache.base + index * engine->page_bytes;
}

static float *gradients_at(const bl_engine_t *engine, uint32_t index) {
  uint8_t *first = engine->kv_cache.base + engine->page_count * engine->page_bytes;
  return index == BL_NONE ? NULL : (float *)(void *)(first + index * engine->page_gradient_bytes);
}

void bl_kv_cache_use(const bl_engine_t *engine, const bl_executor_plan_t *plan, bl_op_t op) {
  if (plan->stage.page_of == NULL) {
    return;
  }
  const bl_chunk_slice_t slice = {.index = op.slice, .pages = engine->pages, .gradients = engine->page_gradients};
  for (uint32_t i = 0; i <= slice.index; i++) {
    op.slice = (uint8_t)i;
    const size_t block = bl_schedule_block(plan->schedule, op);
    engine->pages[i] = page_at(engine, plan->stage.page_of[block]);
    engine->page_gradients[i] = gradients_at(engine, plan->stage.page_gradient_of[block]);
  }
  bl_chunk_use_slice(bl_engine_chunk(engine, op.virtual_stage), &slice);
}

void bl_kv_cache_use_first(const bl_engine_t *engine, bl_chunk_t *chunk, uint32_t slice) {
  if (engine->page_bytes == 0) {
    return;
  }
  for (uint32_t i = 0; i <= slice; i++) {
    engine->pages[i] = page_at(engine, i);
    engine->page_gradients[i] = gradients_at(engine, i + 1 < engine->training.schedule->slices ? i : BL_NONE);
  }
  bl_chunk_use_slice(chunk,
                     &(bl_chunk_slice_t){.index = slice, .pages = engine->pages, .gradients = engine->page_gradients});
}
