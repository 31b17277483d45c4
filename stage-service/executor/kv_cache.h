// SPDX-License-Identifier: Apache-2.0
// The KV cache of a stage, for sequences cut into slices (pipeline.slices). Pages hold keys and values of the slices
// between their forward and their backward; other pages hold their gradients (model/layout.h). The plan assigns pages
// to blocks (schedule/ir/stage_plan.h).
// Thread: the compute thread.
#ifndef BALLAST_EXECUTOR_KV_CACHE_H
#define BALLAST_EXECUTOR_KV_CACHE_H

#include "executor/engine.h"
#include "executor/plan.h"

// Pages by number; NULL for BL_NONE.
static inline void *bl_kv_cache_page(const bl_engine_t *engine, uint32_t index) {
  return index == BL_NONE ? NULL : engine->kv_cache.base + index * engine->page_bytes;
}
static inline float *bl_kv_cache_gradients(const bl_engine_t *engine, uint32_t index) {
  uint8_t *first = engine->kv_cache.base + engine->page_count * engine->page_bytes;
  return index == BL_NONE ? NULL : (float *)(void *)(first + index * engine->page_gradient_bytes);
}

// Sets the slice and the pages on the chunk of an operation. Does nothing for whole sequences.
void bl_kv_cache_use(const bl_engine_t *engine, const bl_executor_plan_t *plan, bl_op_t op);
#endif
