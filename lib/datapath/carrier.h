// SPDX-License-Identifier: Apache-2.0
// Moves boundary tensors from device memory to device memory without the CPU between them: what the hub (boundary.h) is
// for memory of the host. A table that a back end fills; NCCL is one.
//
// The rules of boundary.h hold: keys are unique within one attempt, link and direction of travel; the order of posts on
// both sides of a link comes from the plan. What differs: everything is queued, so a buffer is named with the event from
// which on it may be read or written, and waits make a stream wait, not only the CPU:
//
//   carrier->ops->post_receive(carrier, peer, key, x, bytes, free, err);         // x may be written once `free` is done
//   carrier->ops->wait_received(carrier, peer, key, compute, deadline_ns, err);  // what `compute` is given now sees x
//   carrier->ops->post_send(carrier, peer, key, y, bytes, ready, err);           // y is there once `ready` is done
//   carrier->ops->wait_sent(carrier, peer, key, compute, deadline_ns, err);      // what `compute` is given may write y
//
// An event that was passed is recorded again by its owner only after the wait on the same buffer. NULL: now.
//
// Thread: abort from any; everything else from the compute thread.
#ifndef BALLAST_DATAPATH_CARRIER_H
#define BALLAST_DATAPATH_CARRIER_H

#include "base/error.h"
#include "datapath/key.h"
#include "device/device.h"

typedef struct bl_carrier bl_carrier_t;

typedef struct bl_carrier_ops {
  const char *name; // "nccl"
  // As bl_hub_begin: only `attempt` is valid from now on, and nothing of older ones touches memory any more.
  bl_status_t (*begin)(bl_carrier_t *carrier, uint64_t attempt, bl_error_t *err);
  bl_status_t (*post_receive)(bl_carrier_t *carrier, int32_t peer, bl_tensor_key_t key, void *to, uint64_t bytes,
                              bl_device_event_t *free, bl_error_t *err);
  bl_status_t (*post_send)(bl_carrier_t *carrier, int32_t peer, bl_tensor_key_t key, const void *from, uint64_t bytes,
                           bl_device_event_t *ready, bl_error_t *err);
  // BL_DEADLINE, BL_UNAVAILABLE, BL_CANCELLED, ... as the hub's waits.
  bl_status_t (*wait_received)(bl_carrier_t *carrier, int32_t peer, bl_tensor_key_t key, bl_device_stream_t *stream,
                               uint64_t deadline_ns, bl_error_t *err);
  bl_status_t (*wait_sent)(bl_carrier_t *carrier, int32_t peer, bl_tensor_key_t key, bl_device_stream_t *stream,
                           uint64_t deadline_ns, bl_error_t *err);
  bool (*received)(bl_carrier_t *carrier, int32_t peer, bl_tensor_key_t key); // wait_received would not wait
  void (*abort)(bl_carrier_t *carrier);                                       // wakes waits with BL_CANCELLED
  void (*destroy)(bl_carrier_t *carrier);
} bl_carrier_ops_t;

struct bl_carrier {
  const bl_carrier_ops_t *ops;
};

#endif
