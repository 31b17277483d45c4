// SPDX-License-Identifier: Apache-2.0
// The order in which the communicators of a job are made. Making one waits for both of its ranks, and a process makes one
// after the other, so all processes must go through them in one order: by lower device, higher device, direction. Whoever
// then waits, waits for a process that is at an earlier one, and somebody is always at the first.
//
//   count = bl_nccl_order(ways, count);
//   for (size_t i = 0; i < count; i++) if (bl_nccl_way_has(&ways[i], own)) make it and wait until it is ready;
//
// Pure. Thread: any.
#ifndef BALLAST_DATAPATH_NCCL_ORDER_H
#define BALLAST_DATAPATH_NCCL_ORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct bl_nccl_way { // one direction between two devices
  uint32_t from, to;
} bl_nccl_way_t;

// Below, at or above zero as `a` is made before, is, or is made after `b`.
int bl_nccl_way_compare(const bl_nccl_way_t *a, const bl_nccl_way_t *b);
// Sorts, removes what is there twice or leads to itself, and returns how many are left.
size_t bl_nccl_order(bl_nccl_way_t *ways, size_t count);
// Whether the device takes part.
static inline bool bl_nccl_way_has(const bl_nccl_way_t *way, uint32_t device) {
  return way->from == device || way->to == device;
}

#endif
