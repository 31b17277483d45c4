// SPDX-License-Identifier: Apache-2.0
// The initial weights of a chunk: read from the folder `model.init`, or drawn from the seed. In both cases each tensor
// depends on its global name alone, so the partition does not matter.
//
// Reads files. Thread: any; `arena` belongs to the caller.
#ifndef BALLAST_STAGE_DATA_WEIGHTS_H
#define BALLAST_STAGE_DATA_WEIGHTS_H

#include "config/job.h"
#include "device/device.h"
#include "model/chunk_span.h"

typedef struct bl_chunk_start {
  const bl_job_t *job;
  const bl_model_t *model;
  bl_chunk_span_t span;
  bl_layer_parts_t layer_parts;
  bl_device_t *device;
  uint32_t threads; // threads that draw weights; 0: 1
} bl_chunk_start_t;

// Fills arena [bl_chunk_span_places(model, span, layer_parts, NULL)], fp32, in memory of `device`: every parameter of
// the chunk, or every part of it that this rank has, at its place (in the element order of bl_parameter_t), zeros
// between them. BL_NOT_FOUND, BL_INVALID, BL_DATA_LOSS, BL_IO name folder or file and tensor; BL_EXHAUSTED. On failure
// the arena is undefined.
BL_MUST_USE bl_status_t bl_chunk_weights_load(const bl_chunk_start_t *start, float *arena, bl_error_t *err);

#endif
