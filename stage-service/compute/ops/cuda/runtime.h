// SPDX-License-Identifier: Apache-2.0
// The parts of the CUDA runtime that the operations use: a current device, a stream, memory that the context holds, two
// copies. A separate interface, so that tests run everything above it without a GPU (tests/ops/emulation).
//
// Thread: the compute thread. Private to ops/cuda.
#ifndef BALLAST_COMPUTE_OPS_CUDA_RUNTIME_H
#define BALLAST_COMPUTE_OPS_CUDA_RUNTIME_H

#include "base/error.h"
#include "compute/ops/cuda/kernels.h"
#include "device/device.h"

typedef struct bl__gpu bl__gpu_t;

// Makes the device current on this thread and creates a stream on it. BL_INVALID: not a device of this back end;
// BL_UNIMPLEMENTED: its compute capability is below the one that the kernels are built for.
bl_status_t bl__gpu_create(bl_device_t *device, bl__gpu_t **gpu, bl_error_t *err) BL_MUST_USE;
void bl__gpu_destroy(bl__gpu_t *gpu); // NULL is fine; waits for the stream
// Makes the device current on a thread other than that of create.
bl_status_t bl__gpu_attach(bl__gpu_t *gpu, bl_error_t *err) BL_MUST_USE;
bl__stream_t bl__gpu_stream(const bl__gpu_t *gpu);
bl_device_stream_t *bl__gpu_device_stream(const bl__gpu_t *gpu);
const char *bl__gpu_name(const bl__gpu_t *gpu);

// Allocates device memory, 256-byte aligned; only at configuration. BL_EXHAUSTED.
bl_status_t bl__gpu_allocate(bl__gpu_t *gpu, size_t bytes, void **memory, bl_error_t *err) BL_MUST_USE;
void bl__gpu_free(bl__gpu_t *gpu, void *memory); // NULL is fine
// Copies between ordinary memory and the device, after all work queued on the stream. The copy is complete on return.
bl_status_t bl__gpu_copy(bl__gpu_t *gpu, void *to, const void *from, size_t bytes, bl_error_t *err) BL_MUST_USE;

// Returns the number of the error that the device is in, 0: none. Never waits.
int bl__gpu_error(const bl__gpu_t *gpu);
const char *bl__gpu_error_text(int error);

#endif
