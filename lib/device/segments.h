// SPDX-License-Identifier: Apache-2.0
// Equal pieces of memory at fixed places of one reserved range of addresses, each of which can be given back to the
// machine by itself: the slots of a stage. An address stays what it is while the number of pieces changes.
//
//   bl_segments_t slots;
//   bl_memory_plan(&account, BL_MEMORY_SLOTS, 8 * slot_bytes);
//   bl_segments_init(&slots, device, &account, BL_MEMORY_SLOTS, BL_ARENA_SHAREABLE, 8, slot_bytes, err); // no memory yet
//   bl_segments_resize(&slots, 5, err);            // pieces 0 to 4 are there, zero-filled and faulted in
//   bl_segments_at(&slots, 3), bl_segments_arena(&slots, 3)->fd
//   bl_segments_resize(&slots, 2, err);            // 2 to 4 are the machine's again
//   bl_segments_cleanup(&slots);
//
// Every piece is an arena (device.h), a shareable one a sealed memfd of its own: holes cannot be made in a sealed one. Staging
// lies in a range of the host, pinned piece by piece.
// Thread: one at a time. Peers that mapped a piece keep its memory alive until they unmap it.
#ifndef BALLAST_DEVICE_SEGMENTS_H
#define BALLAST_DEVICE_SEGMENTS_H

#include "device/device.h"

typedef struct bl_segments {
  uint8_t *base; // page-aligned; NULL when there is nothing to reserve
  uint64_t bytes, stride_bytes;
  uint32_t capacity, count;
  bl_arena_kind_t kind;
  bl_memory_tag_t tag;
  bl_memory_account_t *account;
  bl_device_t *device;
  bl_arena_t *arenas; // [capacity], the first `count` of them are there
} bl_segments_t;

// Reserves addresses for `capacity` pieces of `bytes`. BL_EXHAUSTED. On failure there is nothing to clean up.
BL_MUST_USE bl_status_t bl_segments_init(bl_segments_t *segments, bl_device_t *device, bl_memory_account_t *account,
                                         bl_memory_tag_t tag, bl_arena_kind_t kind, uint32_t capacity, uint64_t bytes,
                                         bl_error_t *err);
void bl_segments_cleanup(bl_segments_t *segments); // a zeroed one is fine

// Makes the first `count` pieces be there and no others. BL_EXHAUSTED (as bl_arena_create, or more than the capacity): the
// number is as before.
BL_MUST_USE bl_status_t bl_segments_resize(bl_segments_t *segments, uint32_t count, bl_error_t *err);

static inline uint8_t *bl_segments_at(const bl_segments_t *segments, uint32_t index) {
  return segments->base + index * segments->stride_bytes;
}
static inline const bl_arena_t *bl_segments_arena(const bl_segments_t *segments, uint32_t index) {
  return &segments->arenas[index];
}

#endif
