// SPDX-License-Identifier: Apache-2.0
// Describes the memory that holds a process's blocks, so that its peers can choose a path (choice.h).
// Thread: any.
#ifndef BALLAST_DATAPATH_BLOCK_MEMORY_H
#define BALLAST_DATAPATH_BLOCK_MEMORY_H

#include "datapath/choice.h"
#include "datapath/device_path.h"

#define BL_BLOCK_MEMORY_CLOSED_BYTES 120

typedef struct bl_block_memory {
  char gpu[BL_GPU_BYTES];                    // "": memory of the host
  char closed[BL_BLOCK_MEMORY_CLOSED_BYTES]; // why it cannot be shared with other processes; "": it can
  bool legacy_ipc;                           // it is shared by name
  int nccl;                                  // version; 0: none
  bool shared_gpu;
} bl_block_memory_t;

// Describes the memory of a device (NULL: the host). `api`: NCCL, if this process has it.
void bl_block_memory_describe(bl_device_t *device, const bl_nccl_api_t *api, bool shared_gpu,
                              bl_block_memory_t *block_memory);
// Returns the memory as one end of a choice. The texts still belong to it.
bl_path_end_t bl_block_memory_end(const bl_block_memory_t *block_memory, const char *name, const char *machine,
                                  bool unix_address, bool tcp_address);

#endif
