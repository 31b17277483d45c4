// SPDX-License-Identifier: Apache-2.0
#include "datapath/block_memory.h"

#include <stdio.h>
#include <string.h>

void bl_block_memory_describe(bl_device_t *device, const bl_nccl_api_t *api, bool shared_gpu,
                              bl_block_memory_t *block_memory) {
  *block_memory = (bl_block_memory_t){.shared_gpu = shared_gpu};
  if (device == NULL || device->host_memory) {
    return;
  }
  bl_error_t err = {0};
  const bl_device_path_t *path = bl_device_path_of(device, &err);
  if (path == NULL) {
    snprintf(block_memory->gpu, sizeof block_memory->gpu, "unknown");
  } else {
    path->gpu(device, block_memory->gpu);
  }
  if (path == NULL || path->exports(device, &err) != BL_OK) {
    snprintf(block_memory->closed, sizeof block_memory->closed, "%.119s", err.text);
  }
  block_memory->legacy_ipc = path != NULL && path->legacy_ipc != NULL && path->legacy_ipc(device);
  block_memory->nccl = api != NULL ? api->version : 0;
}

bl_path_end_t bl_block_memory_end(const bl_block_memory_t *block_memory, const char *name, const char *machine,
                                  bool unix_address, bool tcp_address) {
  return (bl_path_end_t){.name = name,
                         .machine = machine,
                         .gpu = block_memory->gpu,
                         .closed = block_memory->closed,
                         .legacy_ipc = block_memory->legacy_ipc,
                         .nccl = block_memory->nccl,
                         .shared_gpu = block_memory->shared_gpu,
                         .unix_address = unix_address,
                         .tcp_address = tcp_address};
}
