// SPDX-License-Identifier: Apache-2.0
// Converts results of the CUDA runtime and driver to a status and a message that names the call: "cudaMemcpyAsync: out
// of memory (2)".
//
//   status = bl_cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync", err);
//
// Thread: any.
#ifndef BALLAST_DEVICE_CUDA_CHECK_H
#define BALLAST_DEVICE_CUDA_CHECK_H

#include "base/error.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

// BL_EXHAUSTED: out of memory; BL_NOT_FOUND: no such device; BL_UNIMPLEMENTED: the driver, device or kernel image does
// not fit; BL_UNAVAILABLE: the device cannot be used now; BL_DATA_LOSS: its memory reports errors; BL_INTERNAL: any
// other error.
bl_status_t bl_cuda_check_failed(cudaError_t result, const char *call, bl_error_t *err);
bl_status_t bl_cuda_driver_check_failed(CUresult result, const char *call, bl_error_t *err);

static inline bl_status_t bl_cuda_check(cudaError_t result, const char *call, bl_error_t *err) {
  return __builtin_expect(result == cudaSuccess, 1) ? BL_OK : bl_cuda_check_failed(result, call, err);
}
static inline bl_status_t bl_cuda_driver_check(CUresult result, const char *call, bl_error_t *err) {
  return __builtin_expect(result == CUDA_SUCCESS, 1) ? BL_OK : bl_cuda_driver_check_failed(result, call, err);
}

#endif
