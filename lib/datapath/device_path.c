// SPDX-License-Identifier: Apache-2.0
#include "datapath/device_path.h"

#include "device/module.h"

const bl_device_path_t *bl_device_path_of(const bl_device_t *device, bl_error_t *err) {
  const bl_module_info_t *module;
  if (device == NULL || device->host_memory) {
    (void)bl_error_set(err, BL_UNIMPLEMENTED, "memory of the host has no data paths of its own");
    return NULL;
  }
  if (bl_module_open(device->ops->name, &module, err) != BL_OK) {
    return NULL;
  }
  return bl_module_interface(module, BL_DEVICE_PATH_INTERFACE, sizeof(bl_device_path_t), err);
}
