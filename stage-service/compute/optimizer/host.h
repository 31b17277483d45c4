// SPDX-License-Identifier: Apache-2.0
// Updates weights on the CPU for a device with its own memory (train.optimizer_memory: host): the host back end's
// AdamW, and a stream of the device on which gradients are copied to the host and weights back. The chunks of a stage
// share one.
//
//   bl_host_optimizer_create(device, threads, &made, err);
//   ... chunks, bl_chunk_options_t.host ...
//   bl_host_optimizer_destroy(made);
//
// Thread: the compute thread.
#ifndef BALLAST_COMPUTE_OPTIMIZER_HOST_H
#define BALLAST_COMPUTE_OPTIMIZER_HOST_H

#include "compute/ops/ops.h"
#include "device/device.h"

typedef struct bl_host_optimizer {
  const bl_ops_t *ops;
  bl_compute_t *compute;
  bl_device_t *device;        // of the chunks; borrowed
  bl_device_stream_t *copies; // owned
} bl_host_optimizer_t;

// BL_UNIMPLEMENTED: this build has no operations on the host. BL_EXHAUSTED; the status of creating streams of the
// device.
BL_MUST_USE bl_status_t bl_host_optimizer_create(bl_device_t *device, uint32_t threads, bl_host_optimizer_t **made,
                                                 bl_error_t *err);
// No copy may be in flight any more (bl_chunk_destroy waits for them). NULL is fine.
void bl_host_optimizer_destroy(bl_host_optimizer_t *optimizer);

#endif
