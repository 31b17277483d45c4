// SPDX-License-Identifier: Apache-2.0
// Allocator for pieces of a region, of any size, so that what is created there can be parked without a copy:
//
//   bl_client_region_create(UINT64_C(1) << 30, &memory, err);     // registered with stores as one region
//   bl_client_heap_create(&memory, &heap, err);
//   bl_client_heap_acquire(heap, bytes, &at, err);                // create something at `at`, evict it from there
//   bl_client_heap_release(heap, at, err);                        // after the wait for its evict
//   bl_client_heap_destroy(heap);
//   bl_client_region_destroy(&memory);
//
// Takes the smallest piece that is large enough, and merges neighbours that are free. Each call looks at every piece.
// The bookkeeping lies outside of the memory and grows with the maximum number of pieces at a time.
// Thread: any, except for create and destroy.
#ifndef BALLAST_CLIENT_HEAP_H
#define BALLAST_CLIENT_HEAP_H

#include "client/client.h"

#define BL_CLIENT_HEAP_ALIGNMENT 256 // bytes: of pieces, counted from the start of the memory

typedef struct bl_client_heap bl_client_heap_t;

// The memory belongs to the caller and outlives the heap. BL_INVALID: less than one aligned piece. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_client_heap_create(const bl_client_region_t *memory, bl_client_heap_t **heap,
                                              bl_error_t *err);
// Pieces need not be released before. NULL is fine.
void bl_client_heap_destroy(bl_client_heap_t *heap);
// Acquires at least `bytes`, with undefined content. BL_EXHAUSTED: no piece is large enough; the text says how much is
// free in total and in one piece. BL_INVALID: 0 bytes.
BL_MUST_USE bl_status_t bl_client_heap_acquire(bl_client_heap_t *heap, uint64_t bytes, void **at, bl_error_t *err);
// NULL is fine. BL_INVALID: no acquired piece begins there.
BL_MUST_USE bl_status_t bl_client_heap_release(bl_client_heap_t *heap, void *at, bl_error_t *err);
// One of several pieces of any memory that are evicted as one block: bl_client_heap_gather acquires memory for all of
// them and copies them there, one after the other. bl_client_heap_gathered computes where each lies, without a table.
typedef struct bl_client_part {
  const void *base; // any memory; NULL if there are no bytes
  uint64_t bytes;
} bl_client_part_t;
// Evict *bytes from *at afterwards. BL_EXHAUSTED as above. BL_INVALID: no bytes at all, more than 2^62, or a part
// with bytes and no base.
BL_MUST_USE bl_status_t bl_client_heap_gather(bl_client_heap_t *heap, const bl_client_part_t *parts, size_t count,
                                              void **at, uint64_t *bytes, bl_error_t *err);
// Returns where part `index` of `parts` begins in the gathered or loaded block: bytes from its start, a multiple of
// BL_CLIENT_PART_ALIGNMENT. With `index` = count: where all of them end.
#define BL_CLIENT_PART_ALIGNMENT 64
uint64_t bl_client_heap_gathered(const bl_client_part_t *parts, size_t index);

// Sets the free bytes, of all pieces and of the largest one. Either may be NULL.
void bl_client_heap_free_bytes(bl_client_heap_t *heap, uint64_t *all_bytes, uint64_t *largest_bytes);

#endif
