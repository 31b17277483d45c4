// SPDX-License-Identifier: Apache-2.0
// Splits work on [0, count) among several threads, one range each. For long work that is done once, as at a start: each
// call creates and joins its threads. Work of every step uses a pool (compute/ops/host).
//
//   bl_ranges_run(count, 16384, threads, draw, self);   // draw(self, first, count) for each range
//
// Thread: any.
#ifndef BALLAST_SYS_RANGES_H
#define BALLAST_SYS_RANGES_H

#include <stdint.h>

#define BL_RANGES_MOST 64 // maximum number of threads of one call

typedef void (*bl_range_fn)(void *context, uint64_t first, uint64_t count);

// Calls `work` with ranges that cover [0, count) exactly once, and returns when all calls have returned. The calling
// thread takes the first range. At most `threads` threads take part (0 counts as 1), each with at least `least`
// elements unless there is one range. If a thread cannot be created, the caller does its range: that is no failure. The
// other threads may run where the calling thread may, and take no signals.
void bl_ranges_run(uint64_t count, uint64_t least, uint32_t threads, bl_range_fn work, void *context);

#endif
