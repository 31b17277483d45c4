// SPDX-License-Identifier: Apache-2.0
// The interfaces of libballast-cuda.so (device/module.h). Data paths add theirs by defining the functions below.
#include "device/module.h"

#include "device/cuda/discover.h"
#include "device/cuda/profiler.h"
#include "device/cuda/versions.h"
#include "sys/version.h"

#include <cuda_runtime_api.h>
#include <string.h>

// Tables of the data paths, if they are part of the build. NULL if there is none of that name and size.
const void *bl__cuda_datapath_interface(const char *name, size_t table_bytes) __attribute__((weak));
// Missing in a build without cupti.h.
extern const bl_device_profiler_t bl__cuda_profiler __attribute__((weak));

static const void *interface(const char *name, size_t table_bytes) {
  static const bl_device_driver_t device = {
      .describe = bl__cuda_describe_driver, .list = bl__cuda_list, .open = bl__cuda_open, .close = bl__cuda_close};
  if (strcmp(name, "device") == 0) {
    return table_bytes == sizeof device ? &device : NULL;
  }
  if (strcmp(name, BL_DEVICE_LIBRARIES_INTERFACE) == 0) {
    return table_bytes == sizeof bl__cuda_versions ? &bl__cuda_versions : NULL;
  }
  if (strcmp(name, BL_DEVICE_PROFILER_INTERFACE) == 0) {
    return table_bytes == sizeof bl__cuda_profiler ? &bl__cuda_profiler : NULL;
  }
  return bl__cuda_datapath_interface != NULL ? bl__cuda_datapath_interface(name, table_bytes) : NULL;
}

extern const bl_module_info_t bl_module;
BL_MODULE_EXPORT const bl_module_info_t bl_module = {.abi = BL_MODULE_ABI,
                                                     .info_bytes = sizeof bl_module,
                                                     .name = "cuda",
                                                     .version = BALLAST_VERSION,
                                                     .built_with = BALLAST_CUDA_BUILT_WITH,
                                                     .interface = interface};
