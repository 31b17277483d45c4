// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/driver.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static bl_cuda_driver_t table;
static bl_error_t failure;

static void look_up(const char *name, unsigned version, void *place) {
  void *function = NULL;
  enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  cudaError_t result = cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &found);
  if (result == cudaSuccess && found == cudaDriverEntryPointSuccess && function != NULL) {
    memcpy(place, &function, sizeof function); // ISO C has no cast from object to function pointer
  } else if (failure.status == BL_OK) {
    (void)bl_error_set(&failure, BL_UNIMPLEMENTED,
                       "the NVIDIA driver has no %s of CUDA %u.%u (%s): install a newer driver", name, version / 1000,
                       version % 1000 / 10, result == cudaSuccess ? "not found" : cudaGetErrorString(result));
  }
}

static void look_up_all(void) {
#define X(function, type, version) look_up(#function, version, &table.function);
  BL_CUDA_DRIVER_TABLE(X)
#undef X
}

const bl_cuda_driver_t *bl_cuda_driver(bl_error_t *err) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, look_up_all);
  if (failure.status != BL_OK) {
    (void)bl_error_set(err, failure.status, "%s", failure.text);
    return NULL;
  }
  return &table;
}
