// SPDX-License-Identifier: Apache-2.0
#include "observe/trace.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct bl_trace {
  size_t capacity;
  size_t first; // index of the oldest event
  size_t count;
  bl_trace_event_t events[];
};

bl_status_t bl_trace_create(size_t capacity, bl_trace_t **result) {
  assert(capacity >= 1);
  if (capacity > (SIZE_MAX - sizeof(bl_trace_t)) / sizeof(bl_trace_event_t)) {
    return BL_EXHAUSTED;
  }
  bl_trace_t *trace = calloc(1, sizeof *trace + capacity * sizeof(bl_trace_event_t));
  if (trace == NULL) {
    return BL_EXHAUSTED;
  }
  trace->capacity = capacity;
  *result = trace;
  return BL_OK;
}

void bl_trace_destroy(bl_trace_t *trace) {
  free(trace);
}

void bl_trace_clear(bl_trace_t *trace) {
  trace->first = 0;
  trace->count = 0;
}

// Copies an event, without its name, over the oldest one if there is no space.
static void add(bl_trace_t *trace, const char *name, const bl_trace_event_t *added) {
  bl_trace_event_t *event = &trace->events[(trace->first + trace->count) % trace->capacity];
  if (trace->count < trace->capacity) {
    trace->count++;
  } else { // `event` was the oldest
    trace->first = (trace->first + 1) % trace->capacity;
  }
  *event = *added;
  size_t length = strnlen(name, BL_TRACE_NAME_BYTES - 1);
  memcpy(event->name, name, length);
  event->name[length] = '\0';
}

void bl_trace_add(bl_trace_t *trace, const char *name, bool wait, int32_t micro_batch, uint32_t slots_in_use,
                  uint64_t start_ns, uint64_t end_ns) {
  const bl_trace_event_t event = {
      .start_ns = start_ns, .end_ns = end_ns, .micro_batch = micro_batch, .slots_in_use = slots_in_use, .wait = wait};
  add(trace, name, &event);
}

void bl_trace_add_operation(bl_trace_t *trace, const char *name, int32_t micro_batch, uint32_t slots_in_use,
                            uint64_t start_ns, uint64_t end_ns, uint64_t waited_ns) {
  const bl_trace_event_t event = {.start_ns = start_ns,
                                  .end_ns = end_ns,
                                  .micro_batch = micro_batch,
                                  .slots_in_use = slots_in_use,
                                  .waited_ns = waited_ns};
  add(trace, name, &event);
}

void bl_trace_add_transfer(bl_trace_t *trace, const char *name, int32_t micro_batch, uint64_t bytes, uint64_t start_ns,
                           uint64_t end_ns) {
  assert(bytes > 0);
  const bl_trace_event_t event = {
      .start_ns = start_ns, .end_ns = end_ns, .micro_batch = micro_batch, .moved_bytes = bytes};
  add(trace, name, &event);
}

size_t bl_trace_count(const bl_trace_t *trace) {
  return trace->count;
}

const bl_trace_event_t *bl_trace_get(const bl_trace_t *trace, size_t i) {
  assert(i < trace->count);
  return &trace->events[(trace->first + i) % trace->capacity];
}
