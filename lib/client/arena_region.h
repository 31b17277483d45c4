// SPDX-License-Identifier: Apache-2.0
// An arena as memory that blocks leave from, for programs of this tree: BL_ARENA_SHAREABLE, or a segment of one.
// Thread: pure.
#ifndef BALLAST_CLIENT_ARENA_REGION_H
#define BALLAST_CLIENT_ARENA_REGION_H

#include "client/client.h"
#include "device/device.h"

// The arena stays the caller's.
static inline bl_client_region_t bl_client_region_of(const bl_arena_t *arena) {
  return (bl_client_region_t){.base = arena->base, .bytes = arena->bytes, .fd = arena->fd};
}

#endif
