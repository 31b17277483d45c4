// SPDX-License-Identifier: Apache-2.0
// An activation-store as a child process, in its own folder under /tmp.
#ifndef BALLAST_BENCH_STORE_CHILD_H
#define BALLAST_BENCH_STORE_CHILD_H

#include "loop/child.h"

typedef struct bl_store_child_options {
  uint64_t capacity_bytes, spill_bytes;
  const char *device;   // argument of --device; NULL: the host
  bool nccl_shared_gpu; // --nccl-shared-gpu
} bl_store_child_options_t;

typedef struct bl_store_child {
  bl_loop_t *loop;
  bl_child_t *child;
  char folder[32], address[64];
  bool ready, gone;
} bl_store_child_t;

// Starts the store in a zeroed `store` and waits until it serves. Call stop also after a failure. The store's output is
// written to standard error if it has a device; otherwise it is discarded.
BL_MUST_USE bl_status_t bl_store_child_start(bl_store_child_t *store, const bl_store_child_options_t *options,
                                             bl_error_t *err);
void bl_store_child_stop(bl_store_child_t *store);

#endif
