// SPDX-License-Identifier: Apache-2.0
// How large a stage's part of a checkpoint is in memory: images of its two files, weights and optimizer, as they will stand
// on disk. What a stage makes room for (stage-service/checkpoint/snapshot.h), known before there is a stage.
//
// Pure. Thread: values, any thread.
#ifndef BALLAST_JOB_CHECKPOINT_IMAGE_H
#define BALLAST_JOB_CHECKPOINT_IMAGE_H

#include "base/status.h"
#include "model/chunk_span.h"
#include "model/grid.h"

// Bytes before an image so that its tensors, not its head, start on a cache line: copies into it are faster by a tenth.
uint64_t bl_checkpoint_image_gap(uint64_t head_bytes);
// What an image of `size_bytes`, its head among them, takes with the gap before it.
uint64_t bl_checkpoint_image_room(uint64_t head_bytes, uint64_t size_bytes);

// Both images of a stage with these chunks, in the order of virtual stages, on replica `replica` of `copies`.
// BL_INVALID: not a model; BL_EXHAUSTED. A planner's question (bl_footprint_image_fn of plan/evaluate/footprint.h).
BL_MUST_USE bl_status_t bl_checkpoint_image_bytes(const bl_model_t *model, const bl_chunk_span_t *spans,
                                                  uint32_t span_count, bl_copies_t copies, uint32_t replica,
                                                  uint64_t *bytes);

#endif
