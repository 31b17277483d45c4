// SPDX-License-Identifier: Apache-2.0
// The device seam: where the memory of a stage or store lives, how bytes move inside it, and what orders work that goes
// on while the CPU does something else. A device is a small table of operations chosen once at start; the host is one
// (bl_device_host), a GPU is another (open.h).
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
// Memory. Where device->host_memory is false only staging arenas may be touched by the CPU; everything else goes through
// bl_device_copy and bl_device_fill, which take device memory, staging and ordinary memory on either side.
//
// Streams and events. A stream does what it was given one after the other while the CPU goes on; two streams know of
// each other only through events. An event stands for everything that its stream had been given when it was recorded. On
// a device without them (the host) streams and events are NULL, every call accepts that, and everything is done when the
// call that asked for it returns:
//
//   bl_device_copy(device, copies, staging, block, bytes, err);     // a GPU: only queued
//   bl_device_event_record(device, left, copies, err);
//   ...
//   bl_device_event_wait(device, left, deadline_ns, err);           // the CPU waits
//   bl_device_stream_wait_event(device, compute, left, err);        // or what `compute` is given from now on does
//
// Failures of a device come late: what a call reports may be the failure of work that was queued before. They are kept,
// so every later call fails too.
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
  BL_ARENA_PRIVATE,   // memory of the device, of this process alone
  BL_ARENA_SHAREABLE, // the host: a sealed memfd; its size is fixed, peers that get the descriptor can map it read-only.
                      // A GPU: memory of the GPU that peers on this node can import
  BL_ARENA_SHAREABLE_LATER, // the same on the host, but no memory yet: bl_arena_fill takes it, before anything is written
  BL_ARENA_STAGING, // memory that the CPU and the device read and write at one address: what they tell each other
  BL_ARENA_STAGING_SHAREABLE, // the same in a sealed memfd
} bl_arena_kind_t;

static inline bool bl_arena_kind_is_staging(bl_arena_kind_t kind) {
  return kind == BL_ARENA_STAGING || kind == BL_ARENA_STAGING_SHAREABLE;
}
static inline bool bl_arena_kind_is_shareable(bl_arena_kind_t kind) {
  return kind == BL_ARENA_SHAREABLE || kind == BL_ARENA_SHAREABLE_LATER || kind == BL_ARENA_STAGING_SHAREABLE;
}

typedef struct bl_arena {
  uint8_t *base;  // at least page-aligned, zero-filled; NULL when bytes is 0. An address of the device
  uint64_t bytes; // as asked for
  int fd;         // of a shareable one, owned by the arena: the memfd, or what a GPU's memory is imported from; else -1
  bl_arena_kind_t kind;
  uint8_t *place; // where in a reserved range it was put; NULL: anywhere
  // Bookkeeping of bl_arena_create.
  uint64_t mapped_bytes; // whole pages
  uint64_t handle;       // of the back end
  bl_memory_tag_t tag;
  bl_memory_account_t *account;
  bl_device_t *device;
} bl_arena_t;

typedef enum {
  BL_STREAM_COMPUTE,
  BL_STREAM_COPY, // comes first where the device must choose: copies are short and something waits for them
} bl_device_stream_kind_t;

// One back end. Optional members may be NULL; their fallback is named. Functions that can fail take `err`, which may be
// NULL.
typedef struct bl_device_ops {
  const char *name; // "host", "cuda"
  // Fills base, fd, handle and mapped_bytes of `arena`, whose bytes (> 0), kind and place are set; memory is zero and
  // resident.
  bl_status_t (*arena_map)(bl_device_t *device, bl_arena_t *arena, bl_error_t *err);
  // Optional, NULL: memory is there from the start. As bl_arena_fill.
  bl_status_t (*arena_fill)(bl_device_t *device, const bl_arena_t *arena, uint64_t offset, uint64_t bytes,
                            bl_error_t *err);
  // Its place, if it has one, is reserved again.
  void (*arena_unmap)(bl_device_t *device, bl_arena_t *arena);
  // Addresses without memory, for arenas to be put there at multiples of device->place_bytes.
  bl_status_t (*range_reserve)(bl_device_t *device, uint64_t bytes, uint8_t **base, bl_error_t *err);
  void (*range_release)(bl_device_t *device, uint8_t *base, uint64_t bytes);
  // Copies between any memory that the device can reach; with a stream it may return before the copy is done.
  bl_status_t (*copy)(bl_device_t *device, bl_device_stream_t *stream, void *to, const void *from, uint64_t bytes,
                      bl_error_t *err);
  bl_status_t (*fill)(bl_device_t *device, bl_device_stream_t *stream, void *to, uint8_t value, uint64_t bytes,
                      bl_error_t *err);
  // What the device is, for logs, reports and ballastctl: "NVIDIA H200, 139 GiB, compute capability 9.0". Optional: name.
  const char *(*describe)(const bl_device_t *device);
  // Memory that is free now, and all there is. Optional: not known.
  bl_status_t (*memory)(bl_device_t *device, uint64_t *free_bytes, uint64_t *total_bytes, bl_error_t *err);
  // Optional, all of the following or none: streams and events are NULL, and what is asked for is done on return.
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
  uint64_t place_bytes; // places of arenas in a range are multiples of this
  bool host_memory;     // the CPU may touch every arena
  bool whole_ranges;    // range_reserve takes all memory of the range, and arenas in it nothing more
};

// The host's memory. Never NULL, never destroyed.
bl_device_t *bl_device_host(void);

// What the device is, in words. Lives as long as the device.
const char *bl_device_describe(const bl_device_t *device);

// Creates an arena of `bytes` under `tag` of `account` (which may be NULL: nothing is counted). 0 bytes give an empty
// arena. BL_EXHAUSTED when the plan of the tag or the memory of the device does not allow it; `err` names the tag and
// both numbers. On failure *arena is untouched.
BL_MUST_USE bl_status_t bl_arena_create(bl_device_t *device, bl_memory_account_t *account, bl_memory_tag_t tag,
                                        bl_arena_kind_t kind, uint64_t bytes, bl_arena_t *arena, bl_error_t *err);
// The same at an address inside of a range of the device that nothing else uses (segments.h).
BL_MUST_USE bl_status_t bl_arena_create_at(bl_device_t *device, bl_memory_account_t *account, bl_memory_tag_t tag,
                                           bl_arena_kind_t kind, uint64_t bytes, uint8_t *place, bl_arena_t *arena,
                                           bl_error_t *err);
// Takes the memory of a part of a BL_ARENA_SHAREABLE_LATER arena, so that writing there cannot fail; what is there already
// stays as it is. Nothing to do for other kinds. Any thread. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_arena_fill(const bl_arena_t *arena, uint64_t offset, uint64_t bytes, bl_error_t *err);
// Unmaps and closes; peers that mapped the descriptor keep their pages until they unmap. Leaves an empty arena, so a
// second call does nothing.
void bl_arena_destroy(bl_arena_t *arena);

// Copies non-overlapping memory, or sets every byte to `value`: done in the order of the stream, or on return when stream
// is NULL. Both sides stay as they are until then. Without a stream it waits for no other stream.
BL_MUST_USE bl_status_t bl_device_copy(bl_device_t *device, bl_device_stream_t *stream, void *to, const void *from,
                                       uint64_t bytes, bl_error_t *err);
BL_MUST_USE bl_status_t bl_device_fill(bl_device_t *device, bl_device_stream_t *stream, void *to, uint8_t value,
                                       uint64_t bytes, bl_error_t *err);

// ---- streams; NULL on a device without them
BL_MUST_USE bl_status_t bl_device_stream_create(bl_device_t *device, bl_device_stream_kind_t kind,
                                                bl_device_stream_t **stream, bl_error_t *err);
// Waits for nothing: whoever needs what the stream was given waits before. NULL is fine.
void bl_device_stream_destroy(bl_device_t *device, bl_device_stream_t *stream);
// What the stream is given from now on waits for the event; the CPU does not.
BL_MUST_USE bl_status_t bl_device_stream_wait_event(bl_device_t *device, bl_device_stream_t *stream,
                                                    bl_device_event_t *event, bl_error_t *err);

// ---- events; NULL on a device without them, and done always. One that was never recorded is done.
// A `timed` one can be given to bl_device_event_elapsed and costs a little more.
BL_MUST_USE bl_status_t bl_device_event_create(bl_device_t *device, bool timed, bl_device_event_t **event,
                                               bl_error_t *err);
void bl_device_event_destroy(bl_device_t *device, bl_device_event_t *event); // NULL is fine
BL_MUST_USE bl_status_t bl_device_event_record(bl_device_t *device, bl_device_event_t *event,
                                               bl_device_stream_t *stream, bl_error_t *err);
// Sets *done; never blocks.
BL_MUST_USE bl_status_t bl_device_event_query(bl_device_t *device, bl_device_event_t *event, bool *done,
                                              bl_error_t *err);
// The CPU waits: spins briefly, then looks again and again with short sleeps. deadline_ns is on bl_clock_now_ns(),
// UINT64_MAX: none. BL_DEADLINE.
BL_MUST_USE bl_status_t bl_device_event_wait(bl_device_t *device, bl_device_event_t *event, uint64_t deadline_ns,
                                             bl_error_t *err);
// Nanoseconds of the device between two timed events that are done; 0 for NULL.
BL_MUST_USE bl_status_t bl_device_event_elapsed(bl_device_t *device, bl_device_event_t *from, bl_device_event_t *to,
                                                uint64_t *ns, bl_error_t *err);

#endif
