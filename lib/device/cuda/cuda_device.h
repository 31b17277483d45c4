// SPDX-License-Identifier: Apache-2.0
// The struct of a CUDA device, for code that runs on it: the operations (stage-service/compute/ops/cuda) and the data
// paths (lib/datapath/cuda). These may be in another module with a runtime library of its own. Stream and event handles
// are the driver's, so both runtimes understand them.
//
// Thread: a device is constant after it is opened. Each thread makes it current before its first CUDA call.
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
  uint64_t granularity_bytes; // of memory that can be mapped and exported
  int driver, runtime;        // 13000 is CUDA 13.0
  // The driver exports no memory descriptors, but names of allocations (device/ticket.h), as older CUDA did.
  bool legacy_ipc;
  bool rdma; // its memory can be registered with a network card
  char description[256];
} bl_cuda_device_t;

// Returns the CUDA device of `device`. NULL if `device` is not of this back end.
static inline bl_cuda_device_t *bl_cuda_device(bl_device_t *device) {
  return device != NULL && strcmp(device->ops->name, "cuda") == 0 ? (bl_cuda_device_t *)device : NULL;
}
static inline const bl_cuda_device_t *bl_cuda_device_const(const bl_device_t *device) {
  return device != NULL && strcmp(device->ops->name, "cuda") == 0 ? (const bl_cuda_device_t *)device : NULL;
}

// Makes the device current in the calling thread. Every thread calls this before any other CUDA call.
static inline bl_status_t bl_cuda_make_current(const bl_cuda_device_t *device, bl_error_t *err) {
  return bl_cuda_check(cudaSetDevice(device->ordinal), "cudaSetDevice", err);
}

#endif
