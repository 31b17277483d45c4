// SPDX-License-Identifier: Apache-2.0
// Converts an arena to a region, for programs of this tree: a BL_ARENA_SHAREABLE arena, or a segment of one.
// Thread: pure.
#ifndef BALLAST_CLIENT_ARENA_REGION_H
#define BALLAST_CLIENT_ARENA_REGION_H

#include "client/client.h"
#include "device/device.h"

// The arena still belongs to the caller.
static inline bl_client_region_t bl_client_region_of(const bl_arena_t *arena) {
  return (bl_client_region_t){.base = arena->base, .bytes = arena->bytes, .fd = arena->fd};
}

#endif
