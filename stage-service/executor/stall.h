// SPDX-License-Identifier: Apache-2.0
// The waits of the compute thread: every wait of a run is counted as a stall here and traced by name.
//
// Thread: the compute thread; any thread may read `wait_since_ns`.
#ifndef BALLAST_EXECUTOR_STALL_H
#define BALLAST_EXECUTOR_STALL_H

#include "observe/trace.h"
#include "sys/clock.h"

#include <stdatomic.h>

typedef struct bl_stall {
  bl_trace_t *trace;
  _Atomic uint64_t *wait_since_ns; // set to the start of a wait, 0 otherwise
  uint64_t total_ns;               // spent in waits
  uint64_t inside_ns;              // of these, in waits inside operations, which are not traced
  uint32_t slots_in_use;           // for the trace
  void (*before)(void *context);   // called at the start of every wait; NULL: nothing
  void *context;
} bl_stall_t;

// Returns the start of the wait. bl_stall_end ends it.
static inline uint64_t bl_stall_begin(bl_stall_t *stall) {
  uint64_t start_ns = bl_clock_now_ns();
  atomic_store_explicit(stall->wait_since_ns, start_ns, memory_order_relaxed);
  if (stall->before != NULL) {
    stall->before(stall->context);
  }
  return start_ns;
}

// Ends one of many short waits inside an operation: counted, but not traced.
static inline void bl_stall_count(bl_stall_t *stall, uint64_t start_ns) {
  const uint64_t waited_ns = bl_clock_now_ns() - start_ns;
  atomic_store_explicit(stall->wait_since_ns, 0, memory_order_relaxed);
  stall->total_ns += waited_ns;
  stall->inside_ns += waited_ns;
}

static inline void bl_stall_end(bl_stall_t *stall, const char *name, uint32_t micro_batch, uint64_t start_ns) {
  uint64_t end_ns = bl_clock_now_ns();
  atomic_store_explicit(stall->wait_since_ns, 0, memory_order_relaxed);
  stall->total_ns += end_ns - start_ns;
  bl_trace_add(stall->trace, name, true, (int32_t)micro_batch, stall->slots_in_use, start_ns, end_ns);
}

#endif
