// SPDX-License-Identifier: Apache-2.0
// The order in which the communicators of a job are made. Making one waits for both of its ranks, and a process makes one
// after the other, so all processes must go through them in one order: by lower device, higher device, direction. Whoever
// then waits, waits for a process that is at an earlier one, and somebody is always at the first.
//
// Pure. Thread: any.
#ifndef BALLAST_DATAPATH_NCCL_ORDER_H
#define BALLAST_DATAPATH_NCCL_ORDER_H

#include <stdint.h>

typedef struct bl_nccl_way { // one direction between two devices
  uint32_t from, to;
} bl_nccl_way_t;

// Below, at or above zero as `a` is made before, is, or is made after `b`.
int bl_nccl_way_compare(const bl_nccl_way_t *a, const bl_nccl_way_t *b);

#endif
