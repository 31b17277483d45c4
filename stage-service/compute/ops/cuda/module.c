// SPDX-License-Identifier: Apache-2.0
// What libballast-cuda-compute.so hands out (device/module.h): the operation table.
#include "device/module.h"
#include "compute/ops/ops.h"

#include <string.h>

// The table, where it is part of the build.
const bl_ops_t *bl__ops_cuda(void) __attribute__((weak));

static const void *interface(const char *name, size_t table_bytes) {
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
