// SPDX-License-Identifier: Apache-2.0
// What a process says about the memory that its blocks lie in, so that its peers can choose a path (choice.h).
// Thread: any.
#ifndef BALLAST_DATAPATH_ENDPOINT_H
#define BALLAST_DATAPATH_ENDPOINT_H

#include "datapath/choice.h"
#include "datapath/device_path.h"

#define BL_ENDPOINT_CLOSED_BYTES 120

typedef struct bl_endpoint {
  char gpu[BL_GPU_BYTES];                // "": memory of the host
  char closed[BL_ENDPOINT_CLOSED_BYTES]; // why it cannot be handed to other processes; "": it can
  bool legacy_ipc;                       // it is handed out by name
  int nccl;                              // version; 0: none
  bool shared_gpu;
} bl_endpoint_t;

// Of a device (NULL: the host). `api`: NCCL, if this process has it.
void bl_endpoint_describe(bl_device_t *device, const bl_nccl_api_t *api, bool shared_gpu, bl_endpoint_t *endpoint);
// As one side of a choice; the texts stay the endpoint's.
bl_path_end_t bl_endpoint_end(const bl_endpoint_t *endpoint, const char *name, const char *machine, bool unix_address,
                              bool tcp_address);

#endif
