// SPDX-License-Identifier: Apache-2.0
// What modules of devices that are none share: looking up their tables, and being a module.
//
//   static const fake_interface_t tables[] = {FAKE_INTERFACE("device", driver), ...};
//   static const void *interface(const char *name, size_t bytes) { return fake_interface(tables, count, name, bytes); }
//   FAKE_MODULE("threads", interface);
#ifndef TESTS_FAKE_GPU_FAKE_MODULE_H
#define TESTS_FAKE_GPU_FAKE_MODULE_H

#include "datapath/device_path.h"
#include "device/module.h"

#include <string.h>

typedef struct fake_interface {
  const char *name;
  const void *table;
  size_t bytes;
} fake_interface_t;

#define FAKE_INTERFACE(name_, table_)                                                                                  \
  { .name = name_, .table = &(table_), .bytes = sizeof(table_) }

static inline const void *fake_interface(const fake_interface_t *tables, size_t count, const char *name, size_t bytes) {
  for (size_t i = 0; i < count; i++) {
    if (strcmp(tables[i].name, name) == 0) {
      return tables[i].bytes == bytes ? tables[i].table : NULL;
    }
  }
  return NULL;
}

// The version of what `nccl` of a bl_device_path_t gives.
static inline bl_status_t fake_nccl_version(bl_status_t (*nccl)(bl_device_t *device, bool shared_gpu,
                                                                const bl_nccl_api_t **api, bl_error_t *err),
                                            int *version, bl_error_t *err) {
  const bl_nccl_api_t *api = NULL;
  bl_status_t status = nccl(NULL, false, &api, err);
  if (status == BL_OK) {
    *version = api->version;
  }
  return status;
}

#define FAKE_MODULE(built_with_, interface_)                                                                           \
  extern const bl_module_info_t bl_module;                                                                             \
  BL_MODULE_EXPORT const bl_module_info_t bl_module = {.abi = BL_MODULE_ABI,                                           \
                                                       .info_bytes = sizeof bl_module,                                 \
                                                       .name = "cuda",                                                 \
                                                       .version = BALLAST_VERSION,                                     \
                                                       .built_with = built_with_,                                      \
                                                       .interface = interface_}

#endif
