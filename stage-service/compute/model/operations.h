// SPDX-License-Identifier: Apache-2.0
// What the operations of a stage ask for before there is a stage: the same plans that its chunks make, on a context that is
// given up again. How weights are packed and what products need to work is the back end's library's and the CPU's choice.
//
//   bl_operation_memory_t operations;
//   bl_operations_measure(ops, device, threads, &model, layout, &operations, err);
//
// Thread: any that computes nothing; it becomes one that could (ops->attach).
#ifndef BALLAST_COMPUTE_MODEL_OPERATIONS_H
#define BALLAST_COMPUTE_MODEL_OPERATIONS_H

#include "compute/ops/ops.h"
#include "model/memory.h"

// Of every stage that trains `model` so, wherever it is divided. BL_INVALID as bl_chunk_create; what planning reports.
BL_MUST_USE bl_status_t bl_operations_measure(const bl_ops_t *ops, bl_device_t *device, uint32_t threads,
                                              const bl_model_t *model, bl_layout_options_t layout,
                                              bl_operation_memory_t *operations, bl_error_t *err);

#endif
