// SPDX-License-Identifier: Apache-2.0
// The order in which the communicators of a job are created. Creation waits for both ranks, and a process creates one
// communicator at a time. So all processes must use one order: by lower device, higher device, direction. A process
// that waits then waits for one that is at an earlier communicator, and some process is always at the first.
//
// Pure. Thread: any.
#ifndef BALLAST_DATAPATH_NCCL_ORDER_H
#define BALLAST_DATAPATH_NCCL_ORDER_H

#include <stdint.h>

typedef struct bl_nccl_way { // one direction between two devices
  uint32_t from, to;
} bl_nccl_way_t;

// Returns a value below, equal to or above zero if `a` is created before, is, or is created after `b`.
int bl_nccl_way_compare(const bl_nccl_way_t *a, const bl_nccl_way_t *b);

#endif
