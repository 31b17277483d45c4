// SPDX-License-Identifier: Apache-2.0
// Memory that a peer shares by descriptor. A sealed memfd is mapped read-only (and pinned if a device copies from it).
// Any other descriptor is imported by the device.
//
//   bl_peer_memory_open(&memory, device, fd, bytes, err);          // device NULL or the host: only a memfd
//   memory.base ...
//   bl_peer_memory_close(&memory);
//
// Thread: any; an object belongs to its caller.
#ifndef BALLAST_DATAPATH_PEER_MEMORY_H
#define BALLAST_DATAPATH_PEER_MEMORY_H

#include "datapath/device_path.h"
#include "datapath/shared_map.h"

typedef struct bl_peer_memory {
  const uint8_t *base; // NULL: none. An address of the device
  uint64_t bytes;
  bl_device_t *device; // copies from it; NULL: the CPU does
  const bl_device_path_t *path;
  bl_shared_map_t map; // of a memfd
  bool pinned;
  bl_device_memory_t imported;
} bl_peer_memory_t;

// The caller keeps `fd` and may close it. Failures as bl_shared_map_open and bl_device_path_t's import.
BL_MUST_USE bl_status_t bl_peer_memory_open(bl_peer_memory_t *memory, bl_device_t *device, int fd, uint64_t bytes,
                                            bl_error_t *err);
// Called when all copies from it are over. A second call is allowed.
void bl_peer_memory_close(bl_peer_memory_t *memory);

#endif
