// SPDX-License-Identifier: Apache-2.0
// Memory for one unpacked message, inside lib/rpc: allocated piece by piece, freed whole, and limited. The first bytes
// come from the object itself, so that a small message costs no allocation.
// Thread: belongs to its call or request.
#ifndef BALLAST_RPC_ARENA_H
#define BALLAST_RPC_ARENA_H

#include <protobuf-c/protobuf-c.h>

#include <stdbool.h>
#include <stddef.h>

#define BL__ARENA_FIRST_BYTES 1024

typedef struct bl__arena_block bl__arena_block_t;

typedef struct bl__arena {
  ProtobufCAllocator allocator; // what protobuf-c is given; its free does nothing
  size_t limit_bytes;           // for all allocations together
  size_t total_bytes;           // handed out since the last reset
  bool exceeded;                // an allocation was refused
  unsigned char *next;          // free bytes of the current block
  size_t left_bytes;
  bl__arena_block_t *blocks; // from malloc, newest first
  _Alignas(max_align_t) unsigned char first[BL__ARENA_FIRST_BYTES];
} bl__arena_t;

void bl__arena_init(bl__arena_t *arena, size_t limit_bytes);
// Frees everything handed out; the arena can be used again. Also what ends its life.
void bl__arena_reset(bl__arena_t *arena);
// NULL past the limit or when the system has no memory.
void *bl__arena_take(bl__arena_t *arena, size_t size_bytes);

#endif
