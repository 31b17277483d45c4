// SPDX-License-Identifier: Apache-2.0
#include "datapath/shared_map.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

bl_status_t bl_shared_map_open(bl_shared_map_t *map, int fd, uint64_t bytes, bl_error_t *err) {
  int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return bl_error_set(err, BL_DENIED, "shared memory of the peer is not sealed against shrinking");
  }
  struct stat info;
  if (fstat(fd, &info) != 0 || info.st_size < 0 || (uint64_t)info.st_size < bytes) {
    return bl_error_set(err, BL_INVALID, "shared memory of the peer has %lld bytes, %" PRIu64 " announced",
                        (long long)info.st_size, bytes);
  }
  // Memory that the owner has not allocated yet must not be allocated by faulting it in here.
  bool resident = (uint64_t)info.st_blocks >= bytes / 512;
  void *base = mmap(NULL, bytes, PROT_READ, MAP_SHARED | (resident ? MAP_POPULATE : 0), fd, 0);
  if (base == MAP_FAILED) {
    return bl_error_set(err, bl_status_from_errno(errno), "mapping %" PRIu64 " bytes of the peer failed: %s", bytes,
                        strerror(errno));
  }
  *map = (bl_shared_map_t){.base = base, .bytes = bytes};
  return BL_OK;
}

void bl_shared_map_close(bl_shared_map_t *map) {
  if (map->base != NULL) {
    munmap((void *)map->base, map->bytes);
  }
  *map = (bl_shared_map_t){0};
}
