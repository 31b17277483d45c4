// SPDX-License-Identifier: Apache-2.0
// What libballast-cuda.so hands out for data paths (device/cuda/module.c asks).
#include "datapath/cuda/paths.h"

#include "device/cuda/cuda_device.h"

#include <stdio.h>
#include <string.h>

const void *bl__cuda_datapath_interface(const char *name, size_t table_bytes);

static void gpu(bl_device_t *device, char text[BL_GPU_BYTES]) {
  const uint8_t *uuid = bl_cuda_device(device)->summary.uuid;
  int length = snprintf(text, BL_GPU_BYTES, "GPU-");
  for (int i = 0; i < 16; i++) {
    length += snprintf(text + length, BL_GPU_BYTES - (size_t)length, "%02x", uuid[i]);
  }
}

static bl_status_t nccl(bl_device_t *device, bool shared_gpu, const bl_nccl_api_t **api, bl_error_t *err) {
  if (bl__cuda_nccl == NULL) {
    return bl_error_set(err, BL_UNIMPLEMENTED, "this build has no NCCL path: there was no nccl.h");
  }
  return bl__cuda_nccl(device, shared_gpu, api, err);
}

const void *bl__cuda_datapath_interface(const char *name, size_t table_bytes) {
  static const bl_device_path_t path = {.gpu = gpu,
                                        .exports = bl__cuda_exports,
                                        .import = bl__cuda_import,
                                        .release = bl__cuda_release,
                                        .pin = bl__cuda_pin,
                                        .unpin = bl__cuda_unpin,
                                        .nccl = nccl};
  return strcmp(name, BL_DEVICE_PATH_INTERFACE) == 0 && table_bytes == sizeof path ? &path : NULL;
}
