// SPDX-License-Identifier: Apache-2.0
// The size of a stage's share of a checkpoint in memory: images of its two files, weights and optimizer, as they will
// be on disk. The planner needs to know what a stage allocates (stage-service/checkpoint/snapshot.h) before the stage
// exists.
//
// Pure. Thread: values, any thread.
#ifndef BALLAST_JOB_CHECKPOINT_IMAGE_H
#define BALLAST_JOB_CHECKPOINT_IMAGE_H

#include "base/status.h"
#include "model/chunk_span.h"
#include "model/grid.h"
#include "model/layer_parts.h"

// Returns the bytes before an image so that its tensors, not its header, start on a cache line: copies into it are
// faster by a tenth.
uint64_t bl_checkpoint_image_gap(uint64_t head_bytes);
// Returns the bytes of an image of `size_bytes`, its header included, with the gap before it.
uint64_t bl_checkpoint_image_buffer_bytes(uint64_t head_bytes, uint64_t size_bytes);

// Computes the bytes of both images of a stage with these chunks, in the order of virtual stages, on replica `replica`
// of `copies`, of the part of the tensors that a rank writes. BL_INVALID: not a model; BL_EXHAUSTED. The planner calls it as bl_footprint_image_fn
// (plan/evaluate/footprint.h).
BL_MUST_USE bl_status_t bl_checkpoint_image_bytes(const bl_model_t *model, const bl_chunk_span_t *spans,
                                                  uint32_t span_count, bl_layer_parts_t layer_parts, bl_copies_t copies,
                                                  uint32_t replica, uint64_t *bytes);

#endif
