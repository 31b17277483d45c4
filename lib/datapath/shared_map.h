// SPDX-License-Identifier: Apache-2.0
// A peer's shareable arena, mapped read-only from the descriptor it passed.
// Thread: any; a map belongs to its caller.
#ifndef BALLAST_DATAPATH_SHARED_MAP_H
#define BALLAST_DATAPATH_SHARED_MAP_H

#include "base/error.h"

#include <stdint.h>

typedef struct bl_shared_map {
  const uint8_t *base;
  uint64_t bytes;
} bl_shared_map_t;

// Maps `bytes` (> 0) of `fd`, and faults them in if their memory is allocated. The caller keeps `fd` and may close it.
// Refuses a descriptor that is not a memfd sealed against shrinking (BL_DENIED: its owner could make reading it fatal)
// or is too small (BL_INVALID).
BL_MUST_USE bl_status_t bl_shared_map_open(bl_shared_map_t *map, int fd, uint64_t bytes, bl_error_t *err);
void bl_shared_map_close(bl_shared_map_t *map);

#endif
