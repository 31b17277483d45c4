// SPDX-License-Identifier: Apache-2.0
// One safetensors file of a checkpoint, written from its image in memory.
//
// Thread: any, one per image and path.
#ifndef BALLAST_STAGE_CHECKPOINT_SHARD_H
#define BALLAST_STAGE_CHECKPOINT_SHARD_H

#include "base/error.h"
#include "formats/safetensors.h"

// A whole file. Everything is borrowed.
typedef struct bl_shard_image {
  uint8_t *bytes; // [size_bytes]: head, then the tensors back to back
  uint64_t size_bytes;
  uint64_t head_bytes;
  const bl_tensor_entry_t *tensors; // [tensor_count]
  size_t tensor_count;
} bl_shard_image_t;

typedef struct bl_shard_checksums {
  uint64_t head;
  uint64_t *tensors; // [tensor_count], the caller's
} bl_shard_checksums_t;

// Writes and syncs the file `path` and sets the checksums (XXH3) of its parts. A file that is there is overwritten. The
// folder is not synced. BL_EXHAUSTED: no room (or over a limit); BL_DENIED, BL_NOT_FOUND, BL_IO; all name the path. On
// failure the file is removed, so that it does not take up room.
BL_MUST_USE bl_status_t bl_shard_write(const bl_shard_image_t *image, const char *path, bl_shard_checksums_t *checksums,
                                       bl_error_t *err);

#endif
