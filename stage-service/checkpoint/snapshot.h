// SPDX-License-Identifier: Apache-2.0
// A stage's part of a checkpoint in memory: the images of its two files, weights and optimizer, as they will be on
// disk. Training stops only while the images are filled. Another thread writes them out.
//
//   bl_snapshot_create(tensors, count, &snapshot, err);
//   ... memory of bl_snapshot_bytes(snapshot) bytes, planned under a tag and faulted in ...
//   bl_snapshot_use_memory(snapshot, memory);
//   bl_snapshot_take(snapshot, err);                               // compute thread, between two steps
//   bl_shard_write(bl_snapshot_image(snapshot, kind), path, ...);  // another thread, checkpoint/shard.h
//
// Thread: one at a time. The caller ensures that nothing is taken while images are being written.
#ifndef BALLAST_STAGE_CHECKPOINT_SNAPSHOT_H
#define BALLAST_STAGE_CHECKPOINT_SNAPSHOT_H

#include "checkpoint/shard.h"
#include "device/device.h"
#include "job/checkpoint.h"
#include "job/checkpoint_folder.h"

typedef struct bl_snapshot bl_snapshot_t;

// A parameter that this stage saves, or this rank's slice of one, and pointers to its parts, each the elements of the
// slice in fp32. All are borrowed.
typedef struct bl_snapshot_tensor {
  bl_parameter_t parameter;
  bl_slice_t slice;
  uint64_t tile; // elements of the equal runs that the whole tensor is cut into; all of its elements: it is not cut
  const float *parts[BL_CHECKPOINT_PARTS]; // NULL: the part is in the files, but another rank writes it
} bl_snapshot_tensor_t;

// Tensors are passed in the order of the files. If there are several slices of one tensor, the first sets its position.
// `writes_head`: this rank writes the head, among those that write the files together. The parts lie in memory of
// `device`, the images in memory of the CPU (preferably staging of the device). BL_EXHAUSTED: no memory for names and
// tables.
BL_MUST_USE bl_status_t bl_snapshot_create(const bl_snapshot_tensor_t *tensors, size_t count, bool writes_head,
                                           bl_device_t *device, bl_snapshot_t **snapshot, bl_error_t *err);
void bl_snapshot_destroy(bl_snapshot_t *snapshot); // NULL is fine; the memory is the caller's

uint64_t bl_snapshot_bytes(const bl_snapshot_t *snapshot);
// Sets `memory` [bl_snapshot_bytes], 64-byte aligned, owned by the caller, and writes the heads of both images into it.
void bl_snapshot_use_memory(bl_snapshot_t *snapshot, uint8_t *memory);
// Copies all tensors as they are now. Whatever writes them must have ended. Returns the status of copying from the
// device.
BL_MUST_USE bl_status_t bl_snapshot_take(bl_snapshot_t *snapshot, bl_error_t *err);
const bl_shard_image_t *bl_snapshot_image(const bl_snapshot_t *snapshot, bl_checkpoint_shard_kind_t kind);

#endif
