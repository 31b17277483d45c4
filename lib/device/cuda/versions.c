// SPDX-License-Identifier: Apache-2.0
// Versions of the libraries that libballast-cuda.so uses (device/libraries.h).
#include "device/cuda/versions.h"

#include "device/cuda/profiler.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

// Missing in a build without cupti.h.
const char *bl__cuda_describe_profiler(void) __attribute__((weak));

static bool cuda_version(int version, char text[BL_DEVICE_LIBRARY_VERSION_BYTES]) {
  snprintf(text, BL_DEVICE_LIBRARY_VERSION_BYTES, "%d.%d", version / 1000, version % 1000 / 10);
  return version > 0;
}

// Loads the library only to read its version. The data path loads it when it is used.
static bool nccl_version(char text[BL_DEVICE_LIBRARY_VERSION_BYTES]) {
  int version = 0, (*get)(int *) = NULL;
  void *library = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL);
  void *found = library != NULL ? dlsym(library, "ncclGetVersion") : NULL;
  memcpy(&get, &found, sizeof found); // ISO C has no cast from object to function pointer
  const bool told = get != NULL && get(&version) == 0;
  snprintf(text, BL_DEVICE_LIBRARY_VERSION_BYTES, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
  if (library != NULL) {
    dlclose(library);
  }
  return told;
}

static bool version_of(const char *library, char text[BL_DEVICE_LIBRARY_VERSION_BYTES]) {
  int version = 0;
  if (strcmp(library, "driver") == 0) {
    return cudaDriverGetVersion(&version) == cudaSuccess && cuda_version(version, text);
  }
  if (strcmp(library, "cuda") == 0) {
    return cudaRuntimeGetVersion(&version) == cudaSuccess && cuda_version(version, text);
  }
  if (strcmp(library, "nccl") == 0) {
    return nccl_version(text);
  }
  return strcmp(library, "cupti") == 0 && bl__cuda_describe_profiler != NULL &&
         sscanf(bl__cuda_describe_profiler(), "CUPTI %31[0-9.]", text) == 1;
}

const bl_device_versions_t bl__cuda_versions = {.version = version_of};
