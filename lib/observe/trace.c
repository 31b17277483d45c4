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

void bl_trace_add(bl_trace_t *trace, const char *name, bool wait, int32_t micro_batch, uint32_t slots_in_use,
                  uint64_t start_ns, uint64_t end_ns) {
  bl_trace_event_t *event = &trace->events[(trace->first + trace->count) % trace->capacity];
  if (trace->count < trace->capacity) {
    trace->count++;
  } else { // `event` was the oldest
    trace->first = (trace->first + 1) % trace->capacity;
  }
  event->start_ns = start_ns;
  event->end_ns = end_ns;
  event->micro_batch = micro_batch;
  event->slots_in_use = slots_in_use;
  event->wait = wait;
  size_t length = strnlen(name, BL_TRACE_NAME_BYTES - 1);
  memcpy(event->name, name, length);
  event->name[length] = '\0';
}

size_t bl_trace_count(const bl_trace_t *trace) {
  return trace->count;
}

const bl_trace_event_t *bl_trace_get(const bl_trace_t *trace, size_t i) {
  assert(i < trace->count);
  return &trace->events[(trace->first + i) % trace->capacity];
}
