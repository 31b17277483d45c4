// SPDX-License-Identifier: Apache-2.0
// The tensor ranks of a stage on devices: a group of NCCL, whose collectives are put on the stream of the operations,
// so that the CPU waits for none of them. It implements what code of a layer asks of its group (collective/group.h).
//
// When an attempt begins, all ranks tell each other by notes (datapath/boundary.h) which communicator they have. If
// they have not all the same one, they create a new one, whose id the first rank draws. So an attempt that is aborted
// may leave collectives on the streams: each rank aborts its communicator, and the stream continues.
//
// Thread: the compute thread, except bl_device_group_interrupt.
#ifndef BALLAST_EXECUTOR_DEVICE_GROUP_H
#define BALLAST_EXECUTOR_DEVICE_GROUP_H

#include "datapath/nccl/engine.h"
#include "executor/tensor_group.h"

#include <pthread.h>

struct bl_device_group {
  bl_tensor_group_t *owner;
  pthread_mutex_t mutex;
  bl_nccl_channel_t *channel; // [m] NULL: none. The compute thread alone sets it, and reads it without the mutex
  uint32_t generation;        // of the channel
  uint32_t notes;             // exchanged in this attempt
  bl_nccl_piece_t *pieces;    // [most of an exchange]
};

// BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_device_group_create(bl_tensor_group_t *owner, bl_device_group_t **group, bl_error_t *err);
void bl_device_group_destroy(bl_device_group_t *group); // NULL is fine
// BL_CANCELLED; BL_UNAVAILABLE, ...: a rank, from transport or NCCL.
BL_MUST_USE bl_status_t bl_device_group_begin(bl_device_group_t *group, bl_error_t *err);
// Call it when the stream has no collective left. Returns why the communicator has failed, or BL_OK.
BL_MUST_USE bl_status_t bl_device_group_check(bl_device_group_t *group, bl_error_t *err);
// Ends the collectives that the stream waits in. Any thread.
void bl_device_group_interrupt(bl_device_group_t *group);
extern const bl_group_transport_t bl_device_group_transport;

#endif
