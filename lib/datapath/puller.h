// SPDX-License-Identifier: Apache-2.0
// Pullers: they copy tensors from memory of other processes (peer_memory.h) with the copy engine of a device, one after
// the other, and report each when it has arrived. The puller's thread queues the copies and polls them. No other thread
// waits for the device.
//
//   bl_puller_create(device, &puller, err);
//   pull = (bl_pull_t){.to = x, .from = memory.base + offset, .bytes = n, .over = arrived};
//   bl_puller_post(puller, &pull);
//   ... arrived(&pull, err) is called: err->status says how it went ...
//   bl_puller_destroy(puller);
//
// Both sides of a copy belong to the puller from post until `over`. A copy does not depend on the peer: its memory
// stays while it is imported, even if the peer dies. So a copy ends within the time for its bytes (5 s, and 20 ns a
// byte), or the device has failed. The process then reports that and ends, because memory may be touched without end
// (stuck.h).
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
  unsigned ticket; // from here on private to the puller
  uint64_t left_ns;
  STAILQ_ENTRY(bl_pull) queued;
};

// BL_EXHAUSTED, or a failure of the device.
BL_MUST_USE bl_status_t bl_puller_create(bl_device_t *device, bl_puller_t **puller, bl_error_t *err);
// Waits until every posted copy is over. No caller may post any more. NULL is allowed.
void bl_puller_destroy(bl_puller_t *puller);
void bl_puller_post(bl_puller_t *puller, bl_pull_t *pull);

#endif
