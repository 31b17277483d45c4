// SPDX-License-Identifier: Apache-2.0
// Restores the weights and optimizer state of a chunk from a checkpoint, whatever partition wrote it.
#ifndef BALLAST_STAGE_CHECKPOINT_RESTORE_H
#define BALLAST_STAGE_CHECKPOINT_RESTORE_H

#include "compute/model/chunk.h"
#include "job/checkpoint.h"

// Fills weights and both moments of every parameter that the chunk holds, including a tied embedding that another chunk
// saves. The chunk's arenas, in memory of `device`, must be zero before. BL_INVALID, BL_DATA_LOSS as
// bl_checkpoint_read; BL_EXHAUSTED. Thread: the chunk's.
BL_MUST_USE bl_status_t bl_chunk_restore(bl_chunk_t *chunk, const bl_checkpoint_t *checkpoint, bl_device_t *device,
                                         bl_error_t *err);

#endif
