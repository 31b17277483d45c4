// SPDX-License-Identifier: Apache-2.0
#include "datapath/endpoint.h"

#include <stdio.h>
#include <string.h>

void bl_endpoint_describe(bl_device_t *device, const bl_nccl_api_t *api, bool shared_gpu, bl_endpoint_t *endpoint) {
  *endpoint = (bl_endpoint_t){.shared_gpu = shared_gpu};
  if (device == NULL || device->host_memory) {
    return;
  }
  bl_error_t err = {0};
  const bl_device_path_t *path = bl_device_path_of(device, &err);
  if (path == NULL) {
    snprintf(endpoint->gpu, sizeof endpoint->gpu, "unknown");
  } else {
    path->gpu(device, endpoint->gpu);
  }
  if (path == NULL || path->exports(device, &err) != BL_OK) {
    snprintf(endpoint->closed, sizeof endpoint->closed, "%.119s", err.text);
  }
  endpoint->legacy_ipc = path != NULL && path->legacy_ipc != NULL && path->legacy_ipc(device);
  endpoint->nccl = api != NULL ? api->version : 0;
}

bl_path_end_t bl_endpoint_end(const bl_endpoint_t *endpoint, const char *name, const char *machine, bool unix_address,
                              bool tcp_address) {
  return (bl_path_end_t){.name = name,
                         .machine = machine,
                         .gpu = endpoint->gpu,
                         .closed = endpoint->closed,
                         .legacy_ipc = endpoint->legacy_ipc,
                         .nccl = endpoint->nccl,
                         .shared_gpu = endpoint->shared_gpu,
                         .unix_address = unix_address,
                         .tcp_address = tcp_address};
}
