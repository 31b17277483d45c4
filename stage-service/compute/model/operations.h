// SPDX-License-Identifier: Apache-2.0
// Measures what the operations of a stage need before the stage exists. It makes the same plans as the chunks of the
// stage, on a context that it destroys again. How weights are packed and what memory products need depends on the back
// end's library and the CPU.
//
//   bl_operation_memory_t operations;
//   bl_operations_measure(ops, device, threads, &model, layout, &operations, err);
//
// Thread: any that computes nothing; the call prepares it for compute (ops->attach).
#ifndef BALLAST_COMPUTE_MODEL_OPERATIONS_H
#define BALLAST_COMPUTE_MODEL_OPERATIONS_H

#include "compute/ops/ops.h"
#include "model/memory.h"

// The result holds for every stage that trains `model` this way, wherever the model is divided. BL_INVALID as
// bl_chunk_create; the status of planning.
BL_MUST_USE bl_status_t bl_operations_measure(const bl_ops_t *ops, bl_device_t *device, uint32_t threads,
                                              const bl_model_t *model, bl_layout_options_t layout,
                                              bl_operation_memory_t *operations, bl_error_t *err);

#endif
