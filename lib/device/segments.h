// SPDX-License-Identifier: Apache-2.0
// Equal pieces of memory at fixed addresses of one reserved range: the slots of a stage. Each piece can be returned to
// the machine by itself. Addresses do not change while the number of pieces changes.
//
//   bl_segments_t slots;
//   bl_memory_plan(&account, BL_MEMORY_SLOTS, 8 * slot_bytes);
//   bl_segments_init(&slots, device, &account, BL_MEMORY_SLOTS, BL_ARENA_SHAREABLE, 8, slot_bytes, err); // empty
//   bl_segments_resize(&slots, 5, err);            // pieces 0 to 4 exist, zero-filled and faulted in
//   bl_segments_at(&slots, 3), bl_segments_arena(&slots, 3)->fd
//   bl_segments_resize(&slots, 2, err);            // pieces 2 to 4 are returned to the machine
//   bl_segments_cleanup(&slots);
//
// Every piece is an arena (device.h). A shareable piece is a sealed memfd of its own, because holes cannot be punched
// in a sealed memfd. Staging pieces lie in a range of the host, and each is pinned by itself.
// Thread: one at a time. Peers that mapped a piece keep its memory alive until they unmap it.
#ifndef BALLAST_DEVICE_SEGMENTS_H
#define BALLAST_DEVICE_SEGMENTS_H

#include "device/device.h"

typedef struct bl_segments {
  uint8_t *base; // page-aligned; NULL if nothing is reserved
  uint64_t bytes, stride_bytes;
  uint32_t capacity, count;
  bl_arena_kind_t kind;
  bl_memory_tag_t tag;
  bl_memory_account_t *account;
  bl_device_t *device;
  bl_arena_t *arenas; // [capacity], of which the first `count` exist
} bl_segments_t;

// Reserves addresses for `capacity` pieces of `bytes`. BL_EXHAUSTED. After a failure there is nothing to clean up.
BL_MUST_USE bl_status_t bl_segments_init(bl_segments_t *segments, bl_device_t *device, bl_memory_account_t *account,
                                         bl_memory_tag_t tag, bl_arena_kind_t kind, uint32_t capacity, uint64_t bytes,
                                         bl_error_t *err);
void bl_segments_cleanup(bl_segments_t *segments); // a zeroed object is allowed

// Creates or destroys pieces so that exactly the first `count` exist. BL_EXHAUSTED (as bl_arena_create, or more than
// the capacity): the number is unchanged.
BL_MUST_USE bl_status_t bl_segments_resize(bl_segments_t *segments, uint32_t count, bl_error_t *err);

static inline uint8_t *bl_segments_at(const bl_segments_t *segments, uint32_t index) {
  return segments->base + index * segments->stride_bytes;
}
static inline const bl_arena_t *bl_segments_arena(const bl_segments_t *segments, uint32_t index) {
  return &segments->arenas[index];
}

#endif
