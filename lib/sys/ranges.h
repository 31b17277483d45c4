// SPDX-License-Identifier: Apache-2.0
// Work on [0, count) that several threads share, each with one range of its own: for what is done once and long, as at a
// start. Threads are made and joined by the call; what a step does has a pool (compute/ops/host).
//
//   bl_ranges_run(count, 16384, threads, draw, self);   // draw(self, first, count) for each range
//
// Thread: any.
#ifndef BALLAST_SYS_RANGES_H
#define BALLAST_SYS_RANGES_H

#include <stdint.h>

#define BL_RANGES_MOST 64 // threads of one call

typedef void (*bl_range_fn)(void *context, uint64_t first, uint64_t count);

// Returns when every element of [0, count) was in exactly one range that `work` was called with. The calling thread takes
// the first; at most `threads` take part (0: 1), each with at least `least` elements unless there is one range. A thread
// that cannot be made is no failure: its range is done here. The others may run where the calling thread may, and take no
// signals.
void bl_ranges_run(uint64_t count, uint64_t least, uint32_t threads, bl_range_fn work, void *context);

#endif
