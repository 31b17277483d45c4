// SPDX-License-Identifier: Apache-2.0
// The events of one thread in a bounded ring: the operations of a schedule and the waits between them, with their
// times, and the transfers of blocks that ran beside them. When the ring is full, the oldest event is overwritten, so tracing can always be on.
//
// Thread: one thread adds. Other threads read only while it does not (after a step, handed over by a message).
// Memory: allocated once at creation.
#ifndef BALLAST_OBSERVE_TRACE_H
#define BALLAST_OBSERVE_TRACE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BL_TRACE_NAME_BYTES 36

typedef struct bl_trace_event {
  uint64_t start_ns;              // monotonic clock of the machine
  uint64_t end_ns;                // >= start_ns
  int32_t micro_batch;            // -1: none
  uint32_t slots_in_use;          // after the event; 0 for a transfer
  uint64_t waited_ns;             // of an operation: time in it that waited for other tensor ranks
  uint64_t moved_bytes;           // of a transfer, from its request to its end; 0: an operation or a wait
  bool wait;                      // true: a wait, and `name` is its reason; false: an operation, and `name` is its
                                  // cell, e.g. "0F3"
  char name[BL_TRACE_NAME_BYTES]; // terminated
} bl_trace_event_t;

typedef struct bl_trace bl_trace_t;

// Keeps the last `capacity` events, at least 1. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_trace_create(size_t capacity, bl_trace_t **trace);
void bl_trace_destroy(bl_trace_t *trace); // NULL is fine
void bl_trace_clear(bl_trace_t *trace);

// Copies the event. A `name` that is too long is truncated.
void bl_trace_add(bl_trace_t *trace, const char *name, bool wait, int32_t micro_batch, uint32_t slots_in_use,
                  uint64_t start_ns, uint64_t end_ns);

// Copies the event of an operation that waited in its collectives for `waited_ns` of its time.
void bl_trace_add_operation(bl_trace_t *trace, const char *name, int32_t micro_batch, uint32_t slots_in_use,
                            uint64_t start_ns, uint64_t end_ns, uint64_t waited_ns);

// Copies the event of a transfer of `bytes`, more than 0, with the cell of its E or L: requested at `start_ns`, over at
// `end_ns`.
void bl_trace_add_transfer(bl_trace_t *trace, const char *name, int32_t micro_batch, uint64_t bytes, uint64_t start_ns,
                           uint64_t end_ns);

size_t bl_trace_count(const bl_trace_t *trace); // number of events held
// Returns the i-th event held, 0 the oldest; i < bl_trace_count. Borrowed until the next add or clear.
const bl_trace_event_t *bl_trace_get(const bl_trace_t *trace, size_t i);

#endif
