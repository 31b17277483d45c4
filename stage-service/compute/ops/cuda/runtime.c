// SPDX-License-Identifier: Apache-2.0
#include "compute/ops/cuda/runtime.h"

#include "device/cuda/cuda_device.h"
#include "device/cuda/verdict.h"

#include <stdlib.h>

struct bl__gpu {
  bl_cuda_device_t *device;
  bl_device_stream_t *stream;
};

bl_status_t bl__gpu_create(bl_device_t *device, bl__gpu_t **gpu, bl_error_t *err) {
  bl_cuda_device_t *cuda = bl_cuda_device(device);
  if (cuda == NULL) {
    return bl_error_set(err, BL_INVALID, "operations on a GPU: need a device of the kind cuda, got %s",
                        device != NULL ? device->ops->name : "none");
  }
  bl_status_t status = bl_cuda_make_current(cuda, err);
  if (status != BL_OK) {
    return status;
  }
  int major, minor;
  status = bl_cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, cuda->ordinal),
                         "cudaDeviceGetAttribute", err);
  if (status == BL_OK) {
    status = bl_cuda_check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, cuda->ordinal),
                           "cudaDeviceGetAttribute", err);
  }
  if (status == BL_OK) {
    status = bl_cuda_verdict_capability(bl_device_describe(device), major, minor, err);
  }
  if (status != BL_OK) {
    return status;
  }
  bl__gpu_t *made = calloc(1, sizeof *made);
  if (!made) {
    return bl_error_set(err, BL_EXHAUSTED, "operations on a GPU: out of memory");
  }
  made->device = cuda;
  status = bl_device_stream_create(device, BL_STREAM_COMPUTE, &made->stream, err);
  if (status != BL_OK) {
    free(made);
    return status;
  }
  *gpu = made;
  return BL_OK;
}

void bl__gpu_destroy(bl__gpu_t *gpu) {
  if (!gpu) {
    return;
  }
  (void)bl_cuda_make_current(gpu->device, NULL); // this may not be the compute thread
  cudaStreamSynchronize(gpu->stream->handle);    // queued work may use memory that is freed after this
  bl_device_stream_destroy(&gpu->device->device, gpu->stream);
  free(gpu);
}

bl_status_t bl__gpu_attach(bl__gpu_t *gpu, bl_error_t *err) {
  return bl_cuda_make_current(gpu->device, err);
}

bl__stream_t bl__gpu_stream(const bl__gpu_t *gpu) {
  return gpu->stream->handle;
}

bl_device_stream_t *bl__gpu_device_stream(const bl__gpu_t *gpu) {
  return gpu->stream;
}

const char *bl__gpu_name(const bl__gpu_t *gpu) {
  return bl_device_describe(&gpu->device->device);
}

bl_status_t bl__gpu_allocate(bl__gpu_t *gpu, size_t bytes, void **memory, bl_error_t *err) {
  (void)gpu;
  return bl_cuda_check(cudaMalloc(memory, bytes), "cudaMalloc", err);
}

void bl__gpu_free(bl__gpu_t *gpu, void *memory) {
  (void)bl_cuda_make_current(gpu->device, NULL);
  cudaFree(memory);
}

bl_status_t bl__gpu_copy(bl__gpu_t *gpu, void *to, const void *from, size_t bytes, bl_error_t *err) {
  bl_status_t status =
      bl_cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, gpu->stream->handle), "cudaMemcpyAsync", err);
  return status == BL_OK ? bl_cuda_check(cudaStreamSynchronize(gpu->stream->handle), "cudaStreamSynchronize", err)
                         : status;
}

int bl__gpu_error(const bl__gpu_t *gpu) {
  (void)gpu;
  return (int)cudaPeekAtLastError();
}

const char *bl__gpu_error_text(int error) {
  return cudaGetErrorString((cudaError_t)error);
}
