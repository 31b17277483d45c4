// SPDX-License-Identifier: Apache-2.0
// The operation table with a stopwatch: the same operations, and how long each kind took, by the clock or, where they are
// only queued, by a pair of events around each.
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

// A table that passes everything on to `ops` and adds up times.
const bl_ops_t *bl_timed_ops(const bl_ops_t *ops);
void bl_timed_reset(void);
void bl_timed_use_clock(void); // as it is at first; what is under way by events is over before
// From now on by events of `device` on `stream`, which bl_timed_collect adds up. NULL stream: by the clock.
void bl_timed_use_events(bl_device_t *device, bl_device_stream_t *stream);
void bl_timed_pause(bool paused); // nothing is timed
// Waits for what was queued and adds its times. BL_EXHAUSTED: there were more operations than events.
bl_status_t bl_timed_collect(bl_error_t *err) BL_MUST_USE;
// All kinds; *count of them.
const bl_timed_kind_t *bl_timed_kinds(size_t *count);

#endif
