// SPDX-License-Identifier: Apache-2.0
// The KV cache of a stage, for sequences cut into slices (pipeline.slices). Pages hold keys and values of the slices
// between their forward and their backward; other pages hold their gradients (model/layout.h). The plan assigns pages
// to blocks (schedule/ir/slots.h).
// Thread: the compute thread.
#ifndef BALLAST_EXECUTOR_KV_CACHE_H
#define BALLAST_EXECUTOR_KV_CACHE_H

#include "executor/engine.h"
#include "executor/plan.h"

// Sets the slice and the pages on the chunk of an operation. Does nothing for whole sequences.
void bl_kv_cache_use(const bl_engine_t *engine, const bl_executor_plan_t *plan, bl_op_t op);
// Sets a slice on a chunk, with the first pages of the cache as its pages, for a run before there is a plan.
void bl_kv_cache_use_first(const bl_engine_t *engine, bl_chunk_t *chunk, uint32_t slice);

#endif
