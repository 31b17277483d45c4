// SPDX-License-Identifier: Apache-2.0
// The device seam: where the memory of a stage or store lives and how bytes move inside it. A device is a small
// table of operations chosen once at start; the host is one, a GPU back end is another.
//
//   bl_device_t *device = bl_device_host();
//   bl_arena_t edges;
//   bl_memory_plan(&account, BL_MEMORY_EDGES, bytes);
//   if (bl_arena_create(device, &account, BL_MEMORY_EDGES, BL_ARENA_SHAREABLE, bytes, &edges, err) != BL_OK) ...
//   ... edges.base is readable and writable here; edges.fd may be handed to peers, who can only read ...
//   bl_arena_destroy(&edges);
//
// Every arena is faulted in when it is created (first touch costs 0.8-4.2 s per GiB, so never inside a step), and its
// bytes are counted under a tag of an account.
//
// Thread: a device may be used from any thread; an arena and a stream each belong to one thread at a time.
#ifndef BALLAST_DEVICE_DEVICE_H
#define BALLAST_DEVICE_DEVICE_H

#include "base/error.h"
#include "device/account.h"

#include <stdint.h>

typedef struct bl_device bl_device_t;
typedef struct bl_stream bl_stream_t;

typedef enum {
  BL_ARENA_PRIVATE,   // anonymous memory of this process
  BL_ARENA_SHAREABLE, // a sealed memfd: its size is fixed, peers that get the descriptor can map it read-only
} bl_arena_kind_t;

typedef struct bl_arena {
  uint8_t *base;  // page-aligned (host), zero-filled; NULL when bytes is 0
  uint64_t bytes; // as asked for
  int fd;         // BL_ARENA_SHAREABLE on the host: the memfd, owned by the arena; -1 otherwise
  bl_arena_kind_t kind;
  uint8_t *place; // where in a reserved range it was put; NULL: anywhere
  // Bookkeeping of bl_arena_create.
  uint64_t mapped_bytes; // whole pages
  bl_memory_tag_t tag;
  bl_memory_account_t *account;
  bl_device_t *device;
} bl_arena_t;

// One back end. Optional members may be NULL; their fallback is named.
typedef struct bl_device_ops {
  const char *name; // "host", "cuda"
  // Fills base, fd and mapped_bytes of `arena`, whose bytes (> 0), kind and place are set; memory is zero and resident.
  bl_status_t (*arena_map)(bl_device_t *device, bl_arena_t *arena, bl_error_t *err);
  // Its place, if it has one, is reserved again.
  void (*arena_unmap)(bl_device_t *device, bl_arena_t *arena);
  // Addresses without memory, for arenas to be put there.
  bl_status_t (*range_reserve)(bl_device_t *device, uint64_t bytes, uint8_t **base, bl_error_t *err);
  void (*range_release)(bl_device_t *device, uint8_t *base, uint64_t bytes);
  // Copies between memory of this device; with a stream it may return before the copy is done.
  bl_status_t (*copy)(bl_device_t *device, bl_stream_t *stream, void *to, const void *from, uint64_t bytes);
  // Optional, all three or none: streams are NULL and every copy is complete when it returns.
  bl_status_t (*stream_create)(bl_device_t *device, bl_stream_t **stream);
  void (*stream_destroy)(bl_device_t *device, bl_stream_t *stream);
  bl_status_t (*stream_wait)(bl_device_t *device, bl_stream_t *stream);
} bl_device_ops_t;

struct bl_device {
  const bl_device_ops_t *ops;
};

// The host's memory. Never NULL, never destroyed.
bl_device_t *bl_device_host(void);

// Creates an arena of `bytes` under `tag` of `account` (which may be NULL: nothing is counted). 0 bytes give an empty
// arena. BL_EXHAUSTED when the plan of the tag or the memory of the machine does not allow it; `err` names the tag and
// both numbers. On failure *arena is untouched.
BL_MUST_USE bl_status_t bl_arena_create(bl_device_t *device, bl_memory_account_t *account, bl_memory_tag_t tag,
                                        bl_arena_kind_t kind, uint64_t bytes, bl_arena_t *arena, bl_error_t *err);
// The same at an address inside of a range of the device that nothing else uses (segments.h).
BL_MUST_USE bl_status_t bl_arena_create_at(bl_device_t *device, bl_memory_account_t *account, bl_memory_tag_t tag,
                                           bl_arena_kind_t kind, uint64_t bytes, uint8_t *place, bl_arena_t *arena,
                                           bl_error_t *err);
// Unmaps and closes; peers that mapped the descriptor keep their pages until they unmap. Leaves an empty arena, so a
// second call does nothing.
void bl_arena_destroy(bl_arena_t *arena);

// Streams order copies; a device without streams gives NULL, which every call accepts.
BL_MUST_USE bl_status_t bl_stream_create(bl_device_t *device, bl_stream_t **stream);
void bl_stream_destroy(bl_device_t *device, bl_stream_t *stream);
// Returns once every copy given to the stream is done.
BL_MUST_USE bl_status_t bl_stream_wait(bl_device_t *device, bl_stream_t *stream);
// Copies non-overlapping memory; done after bl_stream_wait(stream), or at once when stream is NULL.
BL_MUST_USE bl_status_t bl_device_copy(bl_device_t *device, bl_stream_t *stream, void *to, const void *from,
                                       uint64_t bytes);

#endif
