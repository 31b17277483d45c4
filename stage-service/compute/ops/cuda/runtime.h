// SPDX-License-Identifier: Apache-2.0
// All that the operations ask of the CUDA runtime: a device made current, a stream, memory that the context holds, two
// copies. A seam of its own, so that tests run everything above it where there is no GPU (tests/ops/emulation).
//
// Thread: the compute thread. Internal to ops/cuda.
#ifndef BALLAST_COMPUTE_OPS_CUDA_RUNTIME_H
#define BALLAST_COMPUTE_OPS_CUDA_RUNTIME_H

#include "base/error.h"
#include "compute/ops/cuda/kernels.h"
#include "device/device.h"

typedef struct bl__gpu bl__gpu_t;

// Makes the device current on this thread and a stream on it. BL_INVALID: not a device of this back end;
// BL_UNIMPLEMENTED: its compute capability is below what the kernels are built for.
bl_status_t bl__gpu_create(bl_device_t *device, bl__gpu_t **gpu, bl_error_t *err) BL_MUST_USE;
void bl__gpu_destroy(bl__gpu_t *gpu); // NULL is fine; waits for the stream
// On another thread than create's.
bl_status_t bl__gpu_attach(bl__gpu_t *gpu, bl_error_t *err) BL_MUST_USE;
bl__stream_t bl__gpu_stream(const bl__gpu_t *gpu);
bl_device_stream_t *bl__gpu_device_stream(const bl__gpu_t *gpu);
const char *bl__gpu_name(const bl__gpu_t *gpu);

// Memory of the device, 256-byte aligned; at configuration only. BL_EXHAUSTED.
bl_status_t bl__gpu_allocate(bl__gpu_t *gpu, size_t bytes, void **memory, bl_error_t *err) BL_MUST_USE;
void bl__gpu_free(bl__gpu_t *gpu, void *memory); // NULL is fine
// Copies between ordinary memory and the device, over on return and after everything that the stream was given.
bl_status_t bl__gpu_copy(bl__gpu_t *gpu, void *to, const void *from, size_t bytes, bl_error_t *err) BL_MUST_USE;

// The number of the error that the device is in, 0: none. Never waits.
int bl__gpu_error(const bl__gpu_t *gpu);
const char *bl__gpu_error_text(int error);

#endif
