// SPDX-License-Identifier: Apache-2.0
// The operation table with a stopwatch: the same operations, and how long each kind took.
//
// One per process; used by one thread.
#ifndef BALLAST_BENCH_TIMED_OPS_H
#define BALLAST_BENCH_TIMED_OPS_H

#include "compute/ops/ops.h"

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
// All kinds; *count of them.
const bl_timed_kind_t *bl_timed_kinds(size_t *count);

#endif
