// SPDX-License-Identifier: Apache-2.0
// Private to lib/rpc: memory for one unpacked message. It is allocated in pieces, freed as a whole, and limited. The
// first bytes are part of the object, so that a small message costs no allocation.
// Thread: belongs to its call or request.
#ifndef BALLAST_RPC_ARENA_H
#define BALLAST_RPC_ARENA_H

#include <protobuf-c/protobuf-c.h>

#include <stdbool.h>
#include <stddef.h>

#define BL__ARENA_FIRST_BYTES 1024

typedef struct bl__arena_block bl__arena_block_t;

typedef struct bl__arena {
  ProtobufCAllocator allocator; // for protobuf-c; its free does nothing
  size_t limit_bytes;           // for all allocations together
  size_t total_bytes;           // allocated since the last reset
  bool exceeded;                // an allocation was refused
  unsigned char *next;          // free bytes of the current block
  size_t left_bytes;
  bl__arena_block_t *blocks; // from malloc, newest first
  _Alignas(max_align_t) unsigned char first[BL__ARENA_FIRST_BYTES];
} bl__arena_t;

void bl__arena_init(bl__arena_t *arena, size_t limit_bytes);
// Frees all allocations. The arena can then be reused. Also ends its life.
void bl__arena_reset(bl__arena_t *arena);
// Returns NULL beyond the limit or if the system has no memory.
void *bl__arena_take(bl__arena_t *arena, size_t size_bytes);

#endif
