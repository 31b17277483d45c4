// SPDX-License-Identifier: Apache-2.0
// Memory for callers that have no arenas.
#include "client/arena_region.h"

#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

bl_status_t bl_client_region_create(uint64_t bytes, bl_client_region_t *region, bl_error_t *err) {
  bl_arena_t arena;
  if (bytes == 0) {
    return bl_error_set(err, BL_INVALID, "a region has at least one byte");
  }
  bl_status_t status = bl_arena_create(bl_device_host(), NULL, BL_MEMORY_SLOTS, BL_ARENA_SHAREABLE, bytes, &arena, err);
  if (status == BL_OK) {
    *region = bl_client_region_of(&arena); // munmap and close undo this
  }
  return status;
}

void bl_client_region_destroy(bl_client_region_t *region) {
  if (region == NULL) {
    return;
  }
  if (region->base != NULL) {
    munmap(region->base, region->bytes);
    close(region->fd);
  }
  *region = (bl_client_region_t){.fd = -1};
}
