// SPDX-License-Identifier: Apache-2.0
// Pieces of memory that blocks leave from, of any size, so that what is made there can be parked without a copy:
//
//   bl_client_region_create(UINT64_C(1) << 30, &memory, err);     // shown to stores as one region
//   bl_client_heap_create(&memory, &heap, err);
//   bl_client_heap_acquire(heap, bytes, &at, err);                // make something at `at`, evict it from there
//   bl_client_heap_release(heap, at, err);                        // after the wait for its evict
//   bl_client_heap_destroy(heap);
//   bl_client_region_destroy(&memory);
//
// The smallest piece that is large enough is taken; neighbours that are free become one. Costs: a look at every piece.
// Bookkeeping lies outside of the memory, and grows with the most pieces there were at a time.
// Thread: any, but for create and destroy.
#ifndef BALLAST_CLIENT_HEAP_H
#define BALLAST_CLIENT_HEAP_H

#include "client/client.h"

#define BL_CLIENT_HEAP_ALIGNMENT 256 // bytes: of pieces, counted from the start of the memory

typedef struct bl_client_heap bl_client_heap_t;

// The memory stays the caller's, and outlives the heap. BL_INVALID: less than one aligned piece. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_client_heap_create(const bl_client_region_t *memory, bl_client_heap_t **heap,
                                              bl_error_t *err);
// With pieces that were not released, too. NULL is fine.
void bl_client_heap_destroy(bl_client_heap_t *heap);
// At least `bytes`, of any content. BL_EXHAUSTED: no piece is large enough; the text says how much is free, and in one
// piece. BL_INVALID: 0 bytes.
BL_MUST_USE bl_status_t bl_client_heap_acquire(bl_client_heap_t *heap, uint64_t bytes, void **at, bl_error_t *err);
// NULL is fine. BL_INVALID: nothing that was acquired begins there.
BL_MUST_USE bl_status_t bl_client_heap_release(bl_client_heap_t *heap, void *at, bl_error_t *err);
// Many pieces of any memory as one, so that they leave as one block: acquires what all of them take and copies them
// there, one after the other. Where a piece lies in it is known without a table: bl_client_heap_gathered.
typedef struct bl_client_part {
  const void *base; // any; NULL where there are no bytes
  uint64_t bytes;
} bl_client_part_t;
// *bytes: what there is to evict, from *at. BL_EXHAUSTED as above. BL_INVALID: no bytes at all, or more than 2^62.
BL_MUST_USE bl_status_t bl_client_heap_gather(bl_client_heap_t *heap, const bl_client_part_t *parts, size_t count,
                                              void **at, uint64_t *bytes, bl_error_t *err);
// Where part `index` of `parts` begins in what was gathered, or loaded again: bytes from the start, a multiple of
// BL_CLIENT_PART_ALIGNMENT. `count` itself says where all of them end.
#define BL_CLIENT_PART_ALIGNMENT 64
uint64_t bl_client_heap_gathered(const bl_client_part_t *parts, size_t index);

// Bytes that are free, all together, and of the largest piece. Either may be NULL.
void bl_client_heap_free_bytes(bl_client_heap_t *heap, uint64_t *all_bytes, uint64_t *largest_bytes);

#endif
