// SPDX-License-Identifier: Apache-2.0
// One safetensors file of a checkpoint, written from an image in memory. Ranks that share layers (model/layer_parts.h)
// write one file together; each writes its runs of the tensors.
//
// Thread: any, one per image and path.
#ifndef BALLAST_STAGE_CHECKPOINT_SHARD_H
#define BALLAST_STAGE_CHECKPOINT_SHARD_H

#include "base/error.h"
#include "formats/safetensors.h"
#include "model/layer_parts.h"

// The part of a tensor of the file that this rank has.
typedef struct bl_shard_piece {
  size_t tensor;
  bl_slice_t slice;
  uint64_t offset_bytes; // in the image
} bl_shard_piece_t;

// What this rank writes of a file. All pointers are borrowed.
typedef struct bl_shard_image {
  uint8_t *bytes;       // [image_bytes]: head, then the pieces back to back
  uint64_t image_bytes; // size_bytes if the rank writes all of it
  uint64_t size_bytes;  // of the file
  uint64_t head_bytes;
  bool writes_head;
  const bl_tensor_entry_t *tensors; // [tensor_count], of the file
  const uint64_t
      // [tensor_count]: elements of the equal runs that each tensor is cut into; all of its elements: it is not cut.
      *tiles;
  size_t tensor_count;
  const bl_shard_piece_t *pieces; // [piece_count]
  size_t piece_count;
} bl_shard_image_t;

typedef struct bl_shard_checksums {
  uint64_t head;
  uint64_t *tensors; // [tensor_count], the caller's: the sum over this rank's part (formats/checkpoint_state.h)
} bl_shard_checksums_t;

// Writes and syncs this rank's part of the file `path` and sets its checksums. Parts of other ranks stay. The folder is
// not synced. BL_DATA_LOSS: numbers are not finite (names the tensor), nothing is written. BL_EXHAUSTED: no space (or
// over a limit); BL_DENIED, BL_NOT_FOUND, BL_IO; all name the path. On failure the file stays, because other ranks may
// have written to it: who asked discards the folder.
BL_MUST_USE bl_status_t bl_shard_write(const bl_shard_image_t *image, const char *path, bl_shard_checksums_t *checksums,
                                       bl_error_t *err);

#endif
