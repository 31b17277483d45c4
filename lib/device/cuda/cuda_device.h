// SPDX-License-Identifier: Apache-2.0
// A device of this back end from inside, for what runs on it: the operations (stage-service/compute/ops/cuda) and the
// data paths (lib/datapath/cuda), which may be in another module with a runtime library of its own. Handles of streams
// and events are the driver's, so both understand them.
//
// Thread: a device is constant once it is open. Each thread makes it current before its first CUDA call.
#ifndef BALLAST_DEVICE_CUDA_CUDA_DEVICE_H
#define BALLAST_DEVICE_CUDA_CUDA_DEVICE_H

#include "device/cuda/check.h"
#include "device/device.h"
#include "device/open.h"

#include <cuda_runtime_api.h>
#include <string.h>

struct bl_device_stream {
  cudaStream_t handle;
  bool copies; // of BL_STREAM_COPY
};

struct bl_device_event {
  cudaEvent_t handle;
};

typedef struct bl_cuda_device {
  bl_device_t device; // first
  int ordinal;
  bl_device_summary_t summary;
  uint64_t granularity_bytes;   // of memory that can be mapped and exported
  uint64_t shared_memory_bytes; // of one block, opted in
  uint64_t l2_bytes;
  int driver, runtime; // 13000 is CUDA 13.0
  bool legacy_ipc; // it hands out no descriptors of memory: names of allocations (device/ticket.h), as older CUDA did
  bool rdma;       // its memory can be registered with a network card
  char description[256];
} bl_cuda_device_t;

// The device behind the seam; NULL when it is not one of this back end.
static inline bl_cuda_device_t *bl_cuda_device(bl_device_t *device) {
  return device != NULL && strcmp(device->ops->name, "cuda") == 0 ? (bl_cuda_device_t *)device : NULL;
}
static inline const bl_cuda_device_t *bl_cuda_device_const(const bl_device_t *device) {
  return device != NULL && strcmp(device->ops->name, "cuda") == 0 ? (const bl_cuda_device_t *)device : NULL;
}

// Makes it the calling thread's. Every thread, before any other CUDA call.
static inline bl_status_t bl_cuda_make_current(const bl_cuda_device_t *device, bl_error_t *err) {
  return bl_cuda_check(cudaSetDevice(device->ordinal), "cudaSetDevice", err);
}

#endif
