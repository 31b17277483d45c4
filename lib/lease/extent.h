// SPDX-License-Identifier: Apache-2.0
// Allocator for slots of mixed sizes in arenas, in granules of 64 KiB: best fit, the lowest offset among equals. Free
// neighbours are merged at once, and the largest free run is always known. Allocating and freeing cost O(log extents).
// Nothing allocates after init.
//
//   bl_extents_init(&extents, 2 * slots + 2 * spaces);
//   bl_extent_space_open(&extents, &space, 1024);          // an arena of 64 MiB
//   bl_extent_t slot = bl_extent_allocate(&extents, &space, 3);
//   ... bl_extent_offset(&extents, slot) * BL_LEASE_GRANULE_BYTES ...
//   bl_extent_free(&extents, &space, slot);
//
// One pool serves the spaces of all jobs. Free runs are kept in a treap ordered by (size, offset) whose priorities are
// a hash of the node's index (Seidel and Aragon, 1996).
// Thread: one owner.
#ifndef BALLAST_LEASE_EXTENT_H
#define BALLAST_LEASE_EXTENT_H

#include "base/status.h"
#include "lease/granule.h"

#include <stdbool.h>
#include <stdint.h>

typedef uint32_t bl_extent_t; // 0: none

typedef struct bl_extent_node {
  uint32_t offset, granules;
  uint32_t previous, next; // neighbours in the space by offset; `next` also links unused nodes
  uint32_t left, right;    // treap of free runs
  bool free;
} bl_extent_node_t;

typedef struct bl_extents {
  bl_extent_node_t *nodes; // [0] is unused
  uint32_t capacity;
  uint32_t unused;    // list of nodes that were in use
  uint32_t ever_used; // nodes above have never been touched
} bl_extents_t;

typedef struct bl_extent_space {
  uint32_t first, root;
  uint32_t granules, free_granules;
} bl_extent_space_t;

// Allocates `capacity` extents, free and used ones together: r slots in s spaces need at most 2 r + s.
BL_MUST_USE bl_status_t bl_extents_init(bl_extents_t *extents, uint32_t capacity);
void bl_extents_cleanup(bl_extents_t *extents);

// Opens an empty space of `granules` >= 1. False: the pool has no node left.
bool bl_extent_space_open(bl_extents_t *extents, bl_extent_space_t *space, uint32_t granules);
// Returns all nodes of the space to the pool, also used ones.
void bl_extent_space_close(bl_extents_t *extents, bl_extent_space_t *space);

// Allocates a slot of exactly `granules` >= 1. 0: no free run is that large, or the pool has no node left.
bl_extent_t bl_extent_allocate(bl_extents_t *extents, bl_extent_space_t *space, uint32_t granules);
void bl_extent_free(bl_extents_t *extents, bl_extent_space_t *space, bl_extent_t extent);

uint32_t bl_extent_largest(const bl_extents_t *extents, const bl_extent_space_t *space); // granules; 0 when full
static inline uint32_t bl_extent_offset(const bl_extents_t *extents, bl_extent_t extent) {
  return extents->nodes[extent].offset;
}
static inline uint32_t bl_extent_granules(const bl_extents_t *extents, bl_extent_t extent) {
  return extents->nodes[extent].granules;
}

// Returns whether lists, sums and order are consistent: for tests. O(extents).
bool bl_extent_space_is_sound(const bl_extents_t *extents, const bl_extent_space_t *space);

#endif
