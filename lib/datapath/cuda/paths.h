// SPDX-License-Identifier: Apache-2.0
// The members of bl_device_path_t (datapath/device_path.h) for CUDA devices.
#ifndef BALLAST_DATAPATH_CUDA_PATHS_H
#define BALLAST_DATAPATH_CUDA_PATHS_H

#include "datapath/device_path.h"

// imported.c
bl_status_t bl__cuda_exports(bl_device_t *device, bl_error_t *err);
bool bl__cuda_legacy_ipc(bl_device_t *device);
bl_status_t bl__cuda_import(bl_device_t *device, int fd, uint64_t bytes, bl_device_memory_t *memory, bl_error_t *err);
void bl__cuda_release(bl_device_t *device, bl_device_memory_t *memory);
bl_status_t bl__cuda_pin(bl_device_t *device, const void *base, uint64_t bytes, bl_error_t *err);
void bl__cuda_unpin(bl_device_t *device, const void *base);
// nccl_api.c; not built without nccl.h
bl_status_t bl__cuda_nccl(bl_device_t *device, bool shared_gpu, const bl_nccl_api_t **api, bl_error_t *err)
    __attribute__((weak));
bl_status_t bl__cuda_nccl_version(int *version, bl_error_t *err) __attribute__((weak));

#endif
