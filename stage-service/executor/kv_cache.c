// SPDX-License-Identifier: Apache-2.0
#include "executor/kv_cache.h"

void bl_kv_cache_use(const bl_engine_t *engine, const bl_executor_plan_t *plan, bl_op_t op) {
  if (plan->stage.page_of == NULL) {
    return;
  }
  const bl_chunk_slice_t slice = {.index = op.slice, .pages = engine->pages, .gradients = engine->page_gradients};
  for (uint32_t i = 0; i <= slice.index; i++) {
    op.slice = (uint8_t)i;
    const size_t block = bl_schedule_block(plan->schedule, op);
    engine->pages[i] = bl_kv_cache_page(engine, plan->stage.page_of[block]);
    engine->page_gradients[i] = bl_kv_cache_gradients(engine, plan->stage.page_gradient_of[block]);
  }
  bl_chunk_use_slice(bl_engine_chunk(engine, op.virtual_stage), &slice);
}
