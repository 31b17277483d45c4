// SPDX-License-Identifier: Apache-2.0
// Pulls tensors out of memory of other processes (peer_memory.h) with the copy engine of a device, one behind the other, and
// tells of each when it is there. The thread inside queues the copies and looks at them; nobody else waits for the device.
//
//   bl_puller_create(device, &puller, err);
//   pull = (bl_pull_t){.to = x, .from = memory.base + offset, .bytes = n, .over = arrived};
//   bl_puller_post(puller, &pull);
//   ... arrived(&pull, err) is called: err->status says how it went ...
//   bl_puller_destroy(puller);
//
// Both sides of a copy belong to the puller from post until `over`. What the peer is doing has no part in that: its memory
// stays while it is imported, also when it dies. So a copy ends within its bytes' time (5 s, and 20 ns a byte), or the device
// does not work any more: the process then says so and ends itself, for memory may be touched for ever (stuck.h).
//
// Thread: any. `over` runs on the puller's thread, must not block, and may post.
#ifndef BALLAST_DATAPATH_PULLER_H
#define BALLAST_DATAPATH_PULLER_H

#include "device/device.h"

#include <sys/queue.h>

typedef struct bl_puller bl_puller_t;

typedef struct bl_pull bl_pull_t;
struct bl_pull {
  void *to; // of the device
  const void *from;
  uint64_t bytes;
  void (*over)(bl_pull_t *pull, const bl_error_t *err);
  unsigned ticket; // from here on the puller's
  uint64_t left_ns;
  STAILQ_ENTRY(bl_pull) queued;
};

// BL_EXHAUSTED, and what the device says.
BL_MUST_USE bl_status_t bl_puller_create(bl_device_t *device, bl_puller_t **puller, bl_error_t *err);
// Waits until everything that was posted is over; nobody posts any more. NULL is fine.
void bl_puller_destroy(bl_puller_t *puller);
void bl_puller_post(bl_puller_t *puller, bl_pull_t *pull);

#endif
