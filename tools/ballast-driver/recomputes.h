// SPDX-License-Identifier: Apache-2.0
// Blocks recomputed in the last hour that the policy did not plan to recompute: lost by a store, or dropped because none
// took them. balance.max_recomputes_per_hour turns a run that
// silently computes everything twice into an error.
//
//   bl_recomputes_t recomputes = {0};
//   bl_recomputes_add(&recomputes, bl_clock_now_ns(), count);
//   if (bl_recomputes_count(&recomputes, now_ns) > limit) ...
//
// Counts by minute. Pure. Thread: one owner.
#ifndef BALLAST_DRIVER_RECOMPUTES_H
#define BALLAST_DRIVER_RECOMPUTES_H

#include <stdint.h>

#define BL_RECOMPUTES_MINUTES 60

typedef struct bl_recomputes { // all zero: none
  uint64_t counts[BL_RECOMPUTES_MINUTES];
  uint64_t minute; // of the newest count
} bl_recomputes_t;

// now_ns must not decrease.
void bl_recomputes_add(bl_recomputes_t *recomputes, uint64_t now_ns, uint64_t count);
// Returns the sum over the current minute and the 59 minutes before it.
uint64_t bl_recomputes_count(bl_recomputes_t *recomputes, uint64_t now_ns);

#endif
