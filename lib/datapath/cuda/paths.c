// SPDX-License-Identifier: Apache-2.0
// The tables of libballast-cuda.so for data paths (device/cuda/module.c uses them).
#include "datapath/cuda/paths.h"

#include "device/cuda/cuda_device.h"
#include "device/cuda/discover.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

#define SEEN_MAX 64 // GPUs of one machine that are distinguished

const void *bl__cuda_datapath_interface(const char *name, size_t table_bytes);

static void name_gpu(const uint8_t uuid[16], char text[BL_GPU_BYTES]) {
  int length = snprintf(text, BL_GPU_BYTES, "GPU-");
  for (int i = 0; i < 16; i++) {
    length += snprintf(text + length, BL_GPU_BYTES - (size_t)length, "%02x", uuid[i]);
  }
}

static void gpu(bl_device_t *device, char text[BL_GPU_BYTES]) {
  name_gpu(bl_cuda_device(device)->summary.uuid, text);
}

static bl_status_t reaches(bl_device_t *device, const char *name, bl_error_t *err) {
  const bl_cuda_device_t *cuda = bl_cuda_device(device);
  bl_device_summary_t seen[SEEN_MAX];
  uint32_t count = 0;
  bl_status_t status = bl__cuda_list(seen, SEEN_MAX, &count, err);
  for (uint32_t i = 0; status == BL_OK && i < count && i < SEEN_MAX; i++) {
    char text[BL_GPU_BYTES];
    int can = (int)seen[i].ordinal == cuda->ordinal;
    name_gpu(seen[i].uuid, text);
    if (strcmp(text, name) != 0) {
      continue;
    }
    if (!can) {
      status = bl_cuda_check(cudaDeviceCanAccessPeer(&can, cuda->ordinal, (int)seen[i].ordinal),
                             "cudaDeviceCanAccessPeer", err);
    }
    return status != BL_OK || can
               ? status
               : bl_error_set(err, BL_UNIMPLEMENTED, "the machine has no peer access between GPUs at %s and %s",
                              cuda->summary.address, seen[i].address);
  }
  return status != BL_OK ? status
                         : bl_error_set(err, BL_UNIMPLEMENTED, "this process sees %u GPUs, and not that one", count);
}

static bl_status_t no_nccl(bl_error_t *err) {
  return bl_error_set(err, BL_UNIMPLEMENTED, "this build has no NCCL path: there was no nccl.h");
}

static bl_status_t nccl(bl_device_t *device, bool shared_gpu, const bl_nccl_api_t **api, bl_error_t *err) {
  return bl__cuda_nccl == NULL ? no_nccl(err) : bl__cuda_nccl(device, shared_gpu, api, err);
}

static bl_status_t nccl_version(int *version, bl_error_t *err) {
  return bl__cuda_nccl_version == NULL ? no_nccl(err) : bl__cuda_nccl_version(version, err);
}

const void *bl__cuda_datapath_interface(const char *name, size_t table_bytes) {
  static const bl_device_path_t path = {.gpu = gpu,
                                        .exports = bl__cuda_exports,
                                        .reaches = reaches,
                                        .legacy_ipc = bl__cuda_legacy_ipc,
                                        .import = bl__cuda_import,
                                        .release = bl__cuda_release,
                                        .pin = bl__cuda_pin,
                                        .unpin = bl__cuda_unpin,
                                        .nccl = nccl,
                                        .nccl_version = nccl_version};
  return strcmp(name, BL_DEVICE_PATH_INTERFACE) == 0 && table_bytes == sizeof path ? &path : NULL;
}
