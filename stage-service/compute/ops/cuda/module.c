// SPDX-License-Identifier: Apache-2.0
// Exports the operation table of libballast-cuda-compute.so (device/module.h).
#include "device/module.h"
#include "compute/ops/cuda/flash.h"
#include "compute/ops/cuda/matmul.h"
#include "compute/ops/ops.h"
#include "device/libraries.h"

#include <stdio.h>
#include <string.h>

// The table, if it is part of the build.
const bl_ops_t *bl__ops_cuda(void) __attribute__((weak));

static bool version_of(const char *library, char text[BL_DEVICE_LIBRARY_VERSION_BYTES]) {
  char line[64];
  if (strcmp(library, "cudnn") == 0) {
    bl__flash_describe(line, sizeof line);
  } else if (strcmp(library, "cublaslt") == 0) {
    bl__matmul_describe(line, sizeof line);
  } else {
    return false;
  }
  return sscanf(line, "%*s %31[0-9.]", text) == 1;
}

static const void *interface(const char *name, size_t table_bytes) {
  static const bl_device_versions_t versions = {.version = version_of};
  if (strcmp(name, BL_DEVICE_LIBRARIES_INTERFACE) == 0) {
    return table_bytes == sizeof versions ? &versions : NULL;
  }
  bool asked = strcmp(name, "ops") == 0 && table_bytes == sizeof(bl_ops_t);
  return asked && bl__ops_cuda != NULL ? bl__ops_cuda() : NULL;
}

extern const bl_module_info_t bl_module;
BL_MODULE_EXPORT const bl_module_info_t bl_module = {.abi = BL_MODULE_ABI,
                                                     .info_bytes = sizeof bl_module,
                                                     .name = "cuda-compute",
                                                     .version = BALLAST_VERSION,
                                                     .built_with = BALLAST_CUDA_BUILT_WITH,
                                                     .interface = interface};
