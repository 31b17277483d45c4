// SPDX-License-Identifier: Apache-2.0
// Copies blocks with the copy engine of a device: queued on a stream of its own, in the order in which they come, while
// nothing runs on the device's processors. Where the memory is the CPU's, block.h copies.
//
//   bl_mover_create(device, &mover, err);
//   bl_mover_copy(mover, slot, memory.base + offset, bytes, err);     // returns when the bytes are there
//   bl_mover_queue(mover, slot, memory.base + offset, bytes, &ticket, err);   // at once
//   bl_mover_wait(mover, ticket, deadline_ns, err);
//
// No checksum is computed on the way: bytes on a GPU are hashed by whoever made them and checked where they are used, by
// the device's own operations (compute/ops/ops.h). One mover per direction, so that they do not wait for each other.
// Thread: any; copies of several threads are queued together.
#ifndef BALLAST_DATAPATH_MOVER_H
#define BALLAST_DATAPATH_MOVER_H

#include "device/device.h"

#define BL_MOVER_COPIES 16u // that are queued at a time; whoever asks for more waits for one of them

typedef struct bl_mover bl_mover_t;

BL_MUST_USE bl_status_t bl_mover_create(bl_device_t *device, bl_mover_t **mover, bl_error_t *err);
void bl_mover_destroy(bl_mover_t *mover); // no copy runs. NULL is fine
BL_MUST_USE bl_status_t bl_mover_copy(bl_mover_t *mover, void *to, const void *from, uint64_t bytes, bl_error_t *err);

// Both halves of it. Every copy that was queued is waited for, by its ticket, until the wait gives anything but BL_DEADLINE
// (on bl_clock_now_ns(); the copy goes on).
BL_MUST_USE bl_status_t bl_mover_queue(bl_mover_t *mover, void *to, const void *from, uint64_t bytes, unsigned *ticket,
                                       bl_error_t *err);
BL_MUST_USE bl_status_t bl_mover_wait(bl_mover_t *mover, unsigned ticket, uint64_t deadline_ns, bl_error_t *err);

#endif
