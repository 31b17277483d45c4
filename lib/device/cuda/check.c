// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/check.h"

#include "device/cuda/driver.h"

static bl_status_t status_of(cudaError_t result) {
  switch (result) {
  case cudaSuccess:
    return BL_OK;
  case cudaErrorMemoryAllocation:
  case cudaErrorLaunchOutOfResources:
    return BL_EXHAUSTED;
  case cudaErrorNoDevice:
  case cudaErrorInvalidDevice:
    return BL_NOT_FOUND;
  case cudaErrorInsufficientDriver:
  case cudaErrorNoKernelImageForDevice:
  case cudaErrorInvalidPtx:
  case cudaErrorUnsupportedPtxVersion:
  case cudaErrorJitCompilerNotFound:
  case cudaErrorNotSupported:
  case cudaErrorCompatNotSupportedOnDevice:
    return BL_UNIMPLEMENTED;
  case cudaErrorDevicesUnavailable:
  case cudaErrorSystemNotReady:
  case cudaErrorSystemDriverMismatch:
  case cudaErrorInitializationError:
    return BL_UNAVAILABLE;
  case cudaErrorECCUncorrectable:
    return BL_DATA_LOSS;
  default:
    return BL_INTERNAL;
  }
}

bl_status_t bl_cuda_check_failed(cudaError_t result, const char *call, bl_error_t *err) {
  return bl_error_set(err, status_of(result), "%s: %s (%d)", call, cudaGetErrorString(result), (int)result);
}

bl_status_t bl_cuda_driver_check_failed(CUresult result, const char *call, bl_error_t *err) {
  const bl_cuda_driver_t *cu = bl_cuda_driver(err);
  const char *text = "unknown";
  if (cu != NULL) {
    (void)cu->cuGetErrorString(result, &text);
  }
  // Where both the driver and the runtime have an error, its number is the same.
  return bl_error_set(err, status_of((cudaError_t)result), "%s: %s (%d)", call, text == NULL ? "unknown" : text,
                      (int)result);
}
