// SPDX-License-Identifier: Apache-2.0
// The KV cache of a stage, where sequences are cut into slices (pipeline.slices): pages that hold keys and values of the
// slices whose forwards have been and whose backwards have not, and pages of their gradients (model/layout.h). Which page a
// block has is the plan's to say (schedule/ir/slots.h).
// Thread: the compute thread.
#ifndef BALLAST_EXECUTOR_KV_CACHE_H
#define BALLAST_EXECUTOR_KV_CACHE_H

#include "executor/engine.h"
#include "executor/plan.h"

// Tells the chunk of an operation which slice it is of and where its pages are. Nothing to do for whole sequences.
void bl_kv_cache_use(const bl_engine_t *engine, const bl_executor_plan_t *plan, bl_op_t op);

#endif
