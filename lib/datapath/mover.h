// SPDX-License-Identifier: Apache-2.0
// Movers: they copy blocks with the copy engine of a device. Copies are queued on the mover's own stream, in the order
// of the calls, and use none of the device's processors. For memory of the CPU, block.h copies.
//
//   bl_mover_create(device, &mover, err);
//   bl_mover_copy(mover, slot, memory.base + offset, bytes, err);             // returns when the copy is done
//   bl_mover_queue(mover, slot, memory.base + offset, bytes, &ticket, err);   // returns at once
//   bl_mover_wait(mover, ticket, deadline_ns, err);
//
// The copy computes no checksum. The device's own operations (compute/ops/ops.h) hash bytes on a GPU where they are
// produced and check them where they are used. Use one mover per direction, so that the directions do not wait for each
// other.
//
// Thread: any; copies of several threads are queued together.
#ifndef BALLAST_DATAPATH_MOVER_H
#define BALLAST_DATAPATH_MOVER_H

#include "device/device.h"

#define BL_MOVER_COPIES 16u // queued at a time; a caller that queues more waits for one of them

typedef struct bl_mover bl_mover_t;

BL_MUST_USE bl_status_t bl_mover_create(bl_device_t *device, bl_mover_t **mover, bl_error_t *err);
void bl_mover_destroy(bl_mover_t *mover); // no copy may be running. NULL is allowed
BL_MUST_USE bl_status_t bl_mover_copy(bl_mover_t *mover, void *to, const void *from, uint64_t bytes, bl_error_t *err);

// The two halves of bl_mover_copy. Every queued copy must be waited for, by its ticket, until the wait returns anything
// but BL_DEADLINE (on bl_clock_now_ns(); the copy continues).
BL_MUST_USE bl_status_t bl_mover_queue(bl_mover_t *mover, void *to, const void *from, uint64_t bytes, unsigned *ticket,
                                       bl_error_t *err);
BL_MUST_USE bl_status_t bl_mover_wait(bl_mover_t *mover, unsigned ticket, uint64_t deadline_ns, bl_error_t *err);

#endif
