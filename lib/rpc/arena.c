// SPDX-License-Identifier: Apache-2.0
#include "rpc/arena.h"

#include "base/bytes.h"

#include <stdint.h>
#include <stdlib.h>

#define BLOCK_BYTES ((size_t)16 << 10) // minimum size of one malloc

struct bl__arena_block {
  bl__arena_block_t *next;
  _Alignas(max_align_t) unsigned char bytes[];
};

static void *take(void *arena, size_t size_bytes) {
  return bl__arena_take(arena, size_bytes);
}

static void keep(void *arena, void *pointer) {
  (void)arena;
  (void)pointer;
}

void bl__arena_init(bl__arena_t *arena, size_t limit_bytes) {
  arena->allocator = (ProtobufCAllocator){.alloc = take, .free = keep, .allocator_data = arena};
  arena->limit_bytes = limit_bytes;
  arena->blocks = NULL;
  bl__arena_reset(arena);
}

void bl__arena_reset(bl__arena_t *arena) {
  while (arena->blocks != NULL) {
    bl__arena_block_t *next = arena->blocks->next;
    free(arena->blocks);
    arena->blocks = next;
  }
  arena->total_bytes = 0;
  arena->exceeded = false;
  arena->next = arena->first;
  arena->left_bytes = sizeof arena->first;
}

void *bl__arena_take(bl__arena_t *arena, size_t size_bytes) {
  size_t left_to_limit = arena->limit_bytes - arena->total_bytes;
  size_t padded_bytes = (size_t)bl_align_up(size_bytes > 0 ? size_bytes : 1, _Alignof(max_align_t));
  if (size_bytes > left_to_limit || padded_bytes > left_to_limit) { // check size_bytes too, because rounding up may
                                                                    // overflow
    arena->exceeded = true;
    return NULL;
  }
  if (padded_bytes > arena->left_bytes) {
    size_t block_bytes = padded_bytes > BLOCK_BYTES ? padded_bytes : BLOCK_BYTES;
    bl__arena_block_t *block = malloc(sizeof *block + block_bytes);
    if (block == NULL) {
      arena->exceeded = true;
      return NULL;
    }
    block->next = arena->blocks;
    arena->blocks = block;
    arena->next = block->bytes;
    arena->left_bytes = block_bytes;
  }
  void *pointer = arena->next;
  arena->next += padded_bytes;
  arena->left_bytes -= padded_bytes;
  arena->total_bytes += padded_bytes;
  return pointer;
}
