// SPDX-License-Identifier: Apache-2.0
// The interface to devices: memory of a stage or store, copies in it, and streams and events that order work which runs
// while the CPU does something else. A device is a small table of operations that is chosen once at start. The host is
// a device (bl_device_host), and so is a GPU (open.h).
//
//   bl_device_t *device = bl_device_host();
//   bl_arena_t edges;
//   bl_memory_plan(&account, BL_MEMORY_EDGES, bytes);
//   if (bl_arena_create(device, &account, BL_MEMORY_EDGES, BL_ARENA_SHAREABLE, bytes, &edges, err) != BL_OK) ...
//   ... the CPU may read and write edges.base; peers that receive edges.fd can only read ...
//   bl_arena_destroy(&edges);
//
// Every arena is faulted in when it is created, never inside a step, because first touch costs 0.8-4.2 s per GiB. Its
// bytes are counted under a tag of an account.
//
// Memory. If device->host_memory is false, the CPU may touch only staging arenas. Everything else is accessed through
// bl_device_copy and bl_device_fill, which accept device memory, staging and ordinary memory on either side.
//
// Streams and events. A stream executes its operations in order while the CPU continues. Only events order two streams.
// An event is done when everything is done that was queued in its stream before the event was recorded. On a device
// without streams (the host) streams and events are NULL. Every call accepts that, and operations are complete when
// their call returns:
//
//   bl_device_copy(device, copies, staging, block, bytes, err);     // a GPU: only queued
//   bl_device_event_record(device, left, copies, err);
//   ...
//   bl_device_event_wait(device, left, deadline_ns, err);           // the CPU waits
//   bl_device_stream_wait_event(device, compute, left, err);        // or later operations of `compute` wait
//
// Devices report failures late: a call may report the failure of work that was queued before. A failure is kept, so
// every later call fails too.
//
// Thread: a device may be used from any thread; an arena, a stream and an event each belong to one thread at a time.
#ifndef BALLAST_DEVICE_DEVICE_H
#define BALLAST_DEVICE_DEVICE_H

#include "base/error.h"
#include "device/account.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct bl_device bl_device_t;
typedef struct bl_device_stream bl_device_stream_t;
typedef struct bl_device_event bl_device_event_t;

typedef enum {
  BL_ARENA_PRIVATE, // memory of the device, for this process only
  // The host: a sealed memfd of fixed size that peers with the descriptor can map read-only. A GPU: memory of the GPU
  // that peers on this machine can import.
  BL_ARENA_SHAREABLE,
  // The same on the host, but without memory. bl_arena_fill allocates it before anything is written.
  BL_ARENA_SHAREABLE_LATER,
  // Memory that the CPU and the device read and write at the same address, for data that they exchange.
  BL_ARENA_STAGING,
  BL_ARENA_STAGING_SHAREABLE, // the same in a sealed memfd
} bl_arena_kind_t;

static inline bool bl_arena_kind_is_staging(bl_arena_kind_t kind) {
  return kind == BL_ARENA_STAGING || kind == BL_ARENA_STAGING_SHAREABLE;
}
static inline bool bl_arena_kind_is_shareable(bl_arena_kind_t kind) {
  return kind == BL_ARENA_SHAREABLE || kind == BL_ARENA_SHAREABLE_LATER || kind == BL_ARENA_STAGING_SHAREABLE;
}

typedef struct bl_arena {
  uint8_t *base;  // at least page-aligned, zero-filled; NULL if bytes is 0. An address of the device
  uint64_t bytes; // as requested
  // Of a shareable arena: the memfd, or the descriptor from which peers import a GPU's memory. Owned by the arena. Else
  // -1.
  int fd;
  bl_arena_kind_t kind;
  uint8_t *place; // its address in a reserved range; NULL: anywhere
  // Bookkeeping of bl_arena_create.
  uint64_t mapped_bytes; // whole pages
  uint64_t handle;       // private to the back end
  bl_memory_tag_t tag;
  bl_memory_account_t *account;
  bl_device_t *device;
} bl_arena_t;

typedef enum {
  BL_STREAM_COMPUTE,
  // Has priority over compute: copies are short and other work waits for them.
  BL_STREAM_COPY,
} bl_device_stream_kind_t;

// The operations of one back end. Optional members may be NULL; the comment then names the fallback. Functions that can
// fail take `err`, which may be NULL.
typedef struct bl_device_ops {
  const char *name; // "host", "cuda"
  // Sets base, fd, handle and mapped_bytes of `arena`, whose bytes (> 0), kind and place are set. The memory is zero
  // and resident.
  bl_status_t (*arena_map)(bl_device_t *device, bl_arena_t *arena, bl_error_t *err);
  // As bl_arena_fill. NULL: memory is allocated by arena_map.
  bl_status_t (*arena_fill)(bl_device_t *device, const bl_arena_t *arena, uint64_t offset, uint64_t bytes,
                            bl_error_t *err);
  // Unmaps the arena. If it has a place, its addresses stay reserved.
  void (*arena_unmap)(bl_device_t *device, bl_arena_t *arena);
  // Reserves addresses without memory. Arenas are placed there at multiples of device->place_bytes.
  bl_status_t (*range_reserve)(bl_device_t *device, uint64_t bytes, uint8_t **base, bl_error_t *err);
  void (*range_release)(bl_device_t *device, uint8_t *base, uint64_t bytes);
  // Copies between any memory that the device can reach. With a stream it may return before the copy is done.
  bl_status_t (*copy)(bl_device_t *device, bl_device_stream_t *stream, void *to, const void *from, uint64_t bytes,
                      bl_error_t *err);
  bl_status_t (*fill)(bl_device_t *device, bl_device_stream_t *stream, void *to, uint8_t value, uint64_t bytes,
                      bl_error_t *err);
  // Describes the device for logs, reports and ballastctl: "NVIDIA H200, 139 GiB, compute capability 9.0". NULL: `name`
  // is used.
  const char *(*describe)(const bl_device_t *device);
  // Returns the bytes of free memory and of all memory. NULL: not known.
  bl_status_t (*memory)(bl_device_t *device, uint64_t *free_bytes, uint64_t *total_bytes, bl_error_t *err);
  // Either all of the following are set, or all are NULL. NULL: streams and events are NULL, and operations are
  // complete on return.
  bl_status_t (*stream_create)(bl_device_t *device, bl_device_stream_kind_t kind, bl_device_stream_t **stream,
                               bl_error_t *err);
  void (*stream_destroy)(bl_device_t *device, bl_device_stream_t *stream);
  bl_status_t (*stream_wait_event)(bl_device_t *device, bl_device_stream_t *stream, bl_device_event_t *event,
                                   bl_error_t *err);
  bl_status_t (*event_create)(bl_device_t *device, bool timed, bl_device_event_t **event, bl_error_t *err);
  void (*event_destroy)(bl_device_t *device, bl_device_event_t *event);
  bl_status_t (*event_record)(bl_device_t *device, bl_device_event_t *event, bl_device_stream_t *stream,
                              bl_error_t *err);
  bl_status_t (*event_query)(bl_device_t *device, bl_device_event_t *event, bool *done, bl_error_t *err);
  bl_status_t (*event_elapsed)(bl_device_t *device, bl_device_event_t *from, bl_device_event_t *to, uint64_t *ns,
                               bl_error_t *err);
} bl_device_ops_t;

struct bl_device {
  const bl_device_ops_t *ops;
  // Arenas in a reserved range are placed at multiples of this.
  uint64_t place_bytes;
  bool host_memory; // the CPU may touch every arena
  // range_reserve allocates the memory of the whole range, and arenas in the range allocate none.
  bool whole_ranges;
};

// Returns the host as a device. Never NULL, never destroyed.
bl_device_t *bl_device_host(void);

// Returns a description of the device as text, which lives as long as the device.
const char *bl_device_describe(const bl_device_t *device);

// Creates an arena of `bytes` under `tag` of `account` (NULL: bytes are not counted). 0 bytes give an empty arena.
// BL_EXHAUSTED if the plan of the tag or the memory of the device is too small; `err` names the tag and both numbers.
// On failure *arena is untouched.
BL_MUST_USE bl_status_t bl_arena_create(bl_device_t *device, bl_memory_account_t *account, bl_memory_tag_t tag,
                                        bl_arena_kind_t kind, uint64_t bytes, bl_arena_t *arena, bl_error_t *err);
// The same at an address inside a reserved range of the device that nothing else uses (segments.h).
BL_MUST_USE bl_status_t bl_arena_create_at(bl_device_t *device, bl_memory_account_t *account, bl_memory_tag_t tag,
                                           bl_arena_kind_t kind, uint64_t bytes, uint8_t *place, bl_arena_t *arena,
                                           bl_error_t *err);
// Allocates memory for a part of a BL_ARENA_SHAREABLE_LATER arena, so that writing there cannot fail. Bytes already
// written stay unchanged. Does nothing for other kinds. Any thread. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_arena_fill(const bl_arena_t *arena, uint64_t offset, uint64_t bytes, bl_error_t *err);
// Unmaps the memory and closes the descriptor. Peers that mapped the descriptor keep their pages until they unmap.
// Leaves an empty arena, so a second call does nothing.
void bl_arena_destroy(bl_arena_t *arena);

// Copies non-overlapping memory, or sets every byte to `value`. The operation completes in the order of the stream, or
// before the return if stream is NULL. Neither side may change until then. A call without a stream waits for no other
// stream.
BL_MUST_USE bl_status_t bl_device_copy(bl_device_t *device, bl_device_stream_t *stream, void *to, const void *from,
                                       uint64_t bytes, bl_error_t *err);
BL_MUST_USE bl_status_t bl_device_fill(bl_device_t *device, bl_device_stream_t *stream, void *to, uint8_t value,
                                       uint64_t bytes, bl_error_t *err);

// ---- streams; NULL on a device without them
BL_MUST_USE bl_status_t bl_device_stream_create(bl_device_t *device, bl_device_stream_kind_t kind,
                                                bl_device_stream_t **stream, bl_error_t *err);
// Does not wait for queued work. If the caller needs that work, it waits before. NULL is allowed.
void bl_device_stream_destroy(bl_device_t *device, bl_device_stream_t *stream);
// Makes later operations of the stream wait for the event. The CPU does not wait.
BL_MUST_USE bl_status_t bl_device_stream_wait_event(bl_device_t *device, bl_device_stream_t *stream,
                                                    bl_device_event_t *event, bl_error_t *err);

// ---- events; NULL on a device without them, and then always done. An event that was never recorded is done.
// A `timed` event can be passed to bl_device_event_elapsed and costs a little more.
BL_MUST_USE bl_status_t bl_device_event_create(bl_device_t *device, bool timed, bl_device_event_t **event,
                                               bl_error_t *err);
void bl_device_event_destroy(bl_device_t *device, bl_device_event_t *event); // NULL is allowed
BL_MUST_USE bl_status_t bl_device_event_record(bl_device_t *device, bl_device_event_t *event,
                                               bl_device_stream_t *stream, bl_error_t *err);
// Sets *done; never blocks.
BL_MUST_USE bl_status_t bl_device_event_query(bl_device_t *device, bl_device_event_t *event, bool *done,
                                              bl_error_t *err);
// Makes the CPU wait. Spins briefly, then polls with short sleeps. deadline_ns is on bl_clock_now_ns(), UINT64_MAX:
// none. BL_DEADLINE.
BL_MUST_USE bl_status_t bl_device_event_wait(bl_device_t *device, bl_device_event_t *event, uint64_t deadline_ns,
                                             bl_error_t *err);
// Sets *ns to the device's nanoseconds between two timed events that are done. 0 if either is NULL.
BL_MUST_USE bl_status_t bl_device_event_elapsed(bl_device_t *device, bl_device_event_t *from, bl_device_event_t *to,
                                                uint64_t *ns, bl_error_t *err);

#endif
