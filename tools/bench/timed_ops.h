// SPDX-License-Identifier: Apache-2.0
// The operation table with a stopwatch: the same operations, and the time of each kind. Times are taken by the clock
// or, if operations are only queued, by a pair of events around each.
//
// One per process; used by one thread.
#ifndef BALLAST_BENCH_TIMED_OPS_H
#define BALLAST_BENCH_TIMED_OPS_H

#include "compute/ops/ops.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct bl_timed_kind {
  const char *name;
  uint64_t calls;
  uint64_t ns;
} bl_timed_kind_t;

// Returns a table that calls the operations of `ops` and adds up their times.
const bl_ops_t *bl_timed_ops(const bl_ops_t *ops);
void bl_timed_reset(void);
void bl_timed_use_clock(void); // the initial mode; work timed by events must have ended
// Switches to events of `device` on `stream`, which bl_timed_collect adds up. NULL stream: the clock.
void bl_timed_use_events(bl_device_t *device, bl_device_stream_t *stream);
void bl_timed_pause(bool paused); // pauses timing
// Waits for queued work and adds its times. BL_EXHAUSTED: there were more operations than events.
bl_status_t bl_timed_collect(bl_error_t *err) BL_MUST_USE;
// Returns all kinds, *count of them.
const bl_timed_kind_t *bl_timed_kinds(size_t *count);

#endif
