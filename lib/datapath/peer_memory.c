// SPDX-License-Identifier: Apache-2.0
#include "datapath/peer_memory.h"

#include <fcntl.h>
#include <stddef.h>

static bl_status_t open_file(bl_peer_memory_t *made, int fd, uint64_t bytes, bl_error_t *err) {
  bl_status_t status = bl_shared_map_open(&made->map, fd, bytes, err);
  if (status == BL_OK) {
    made->base = made->map.base;
    made->pinned = made->path != NULL && made->path->pin(made->device, made->base, bytes, NULL) == BL_OK;
  }
  return status;
}

bl_status_t bl_peer_memory_open(bl_peer_memory_t *memory, bl_device_t *device, int fd, uint64_t bytes,
                                bl_error_t *err) {
  bl_peer_memory_t made = {.bytes = bytes};
  bl_status_t status;
  if (device != NULL && !device->host_memory) {
    made.device = device;
    made.path = bl_device_path_of(device, err);
    if (made.path == NULL) {
      return BL_UNIMPLEMENTED;
    }
  }
  int seals = fcntl(fd, F_GET_SEALS); // shared memory of the host is sealed against shrinking
  if (made.path == NULL || (seals >= 0 && (seals & F_SEAL_SHRINK) != 0)) {
    status = open_file(&made, fd, bytes, err);
  } else {
    status = made.path->import(device, fd, bytes, &made.imported, err);
    made.base = made.imported.base;
  }
  if (status == BL_OK) {
    *memory = made;
  }
  return status;
}

void bl_peer_memory_close(bl_peer_memory_t *memory) {
  if (memory->pinned) {
    memory->path->unpin(memory->device, memory->base);
  }
  bl_shared_map_close(&memory->map);
  if (memory->imported.base != NULL) {
    memory->path->release(memory->device, &memory->imported);
  }
  *memory = (bl_peer_memory_t){0};
}
