// SPDX-License-Identifier: Apache-2.0
// Functions of the CUDA driver, looked up by version at run time. So nothing links libcuda, and the module loads on
// machines without a driver.
//
//   const bl_cuda_driver_t *cu = bl_cuda_driver(err);     // NULL: no driver, or it lacks one of these functions
//   cu->cuMemUnmap(address, bytes);
//
// Thread: any.
#ifndef BALLAST_DEVICE_CUDA_DRIVER_H
#define BALLAST_DEVICE_CUDA_DRIVER_H

#include "base/error.h"

#include <cuda.h>
#include <cudaTypedefs.h>

// X(function, type in cudaTypedefs.h, CUDA version of that type)
#define BL_CUDA_DRIVER_TABLE(X)                                                                                        \
  X(cuGetErrorString, PFN_cuGetErrorString_v6000, 6000)                                                                \
  X(cuDeviceGet, PFN_cuDeviceGet_v2000, 2000)                                                                          \
  X(cuDeviceGetAttribute, PFN_cuDeviceGetAttribute_v2000, 2000)                                                        \
  X(cuMemAddressReserve, PFN_cuMemAddressReserve_v10020, 10020)                                                        \
  X(cuMemAddressFree, PFN_cuMemAddressFree_v10020, 10020)                                                              \
  X(cuMemCreate, PFN_cuMemCreate_v10020, 10020)                                                                        \
  X(cuMemRelease, PFN_cuMemRelease_v10020, 10020)                                                                      \
  X(cuMemMap, PFN_cuMemMap_v10020, 10020)                                                                              \
  X(cuMemUnmap, PFN_cuMemUnmap_v10020, 10020)                                                                          \
  X(cuMemSetAccess, PFN_cuMemSetAccess_v10020, 10020)                                                                  \
  X(cuMemGetAllocationGranularity, PFN_cuMemGetAllocationGranularity_v10020, 10020)                                    \
  X(cuMemExportToShareableHandle, PFN_cuMemExportToShareableHandle_v10020, 10020)                                      \
  X(cuMemImportFromShareableHandle, PFN_cuMemImportFromShareableHandle_v10020, 10020)                                  \
  X(cuMemGetAddressRange, PFN_cuMemGetAddressRange_v3020, 3020)                                                        \
  X(cuIpcGetMemHandle, PFN_cuIpcGetMemHandle_v4010, 4010)                                                              \
  X(cuIpcOpenMemHandle, PFN_cuIpcOpenMemHandle_v11000, 11000)                                                          \
  X(cuIpcCloseMemHandle, PFN_cuIpcCloseMemHandle_v4010, 4010)                                                          \
  X(cuMemcpyBatchAsync, PFN_cuMemcpyBatchAsync_v13000, 13000)

typedef struct bl_cuda_driver {
#define X(function, type, version) type function;
  BL_CUDA_DRIVER_TABLE(X)
#undef X
} bl_cuda_driver_t;

// Returns the functions, which are looked up once. NULL with BL_UNIMPLEMENTED in *err if there is no driver, or it
// lacks one of them.
const bl_cuda_driver_t *bl_cuda_driver(bl_error_t *err);

#endif
