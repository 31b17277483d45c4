// SPDX-License-Identifier: Apache-2.0
// Results of the CUDA runtime and driver as a status and a message that names the call: "cudaMemcpyAsync: out of memory
// (2)".
//
//   status = bl_cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync", err);
//
// Thread: any.
#ifndef BALLAST_DEVICE_CUDA_CHECK_H
#define BALLAST_DEVICE_CUDA_CHECK_H

#include "base/error.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

// BL_EXHAUSTED: memory; BL_NOT_FOUND: device; BL_UNIMPLEMENTED: driver, device or kernel do not fit; BL_UNAVAILABLE: the
// device cannot be used now; BL_DATA_LOSS: its memory reports errors; BL_INTERNAL: all else.
bl_status_t bl_cuda_check_failed(cudaError_t result, const char *call, bl_error_t *err);
bl_status_t bl_cuda_driver_check_failed(CUresult result, const char *call, bl_error_t *err);

static inline bl_status_t bl_cuda_check(cudaError_t result, const char *call, bl_error_t *err) {
  return __builtin_expect(result == cudaSuccess, 1) ? BL_OK : bl_cuda_check_failed(result, call, err);
}
static inline bl_status_t bl_cuda_driver_check(CUresult result, const char *call, bl_error_t *err) {
  return __builtin_expect(result == CUDA_SUCCESS, 1) ? BL_OK : bl_cuda_driver_check_failed(result, call, err);
}

#endif
