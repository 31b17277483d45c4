// SPDX-License-Identifier: Apache-2.0
#include "observe/trace.h"

#include <stdio.h>
#include <stdlib.h>

struct bl_trace {
  size_t capacity;
  size_t first; // index of the oldest
  size_t count;
  uint64_t dropped;
  bl_trace_event_t events[]; // [capacity]
};

bl_status_t bl_trace_create(size_t capacity, bl_trace_t **trace) {
  capacity = capacity == 0 ? 1 : capacity;
  if (capacity > (SIZE_MAX - sizeof(bl_trace_t)) / sizeof(bl_trace_event_t)) {
    return BL_EXHAUSTED;
  }
  bl_trace_t *made = calloc(1, sizeof *made + capacity * sizeof made->events[0]);
  if (made == NULL) {
    return BL_EXHAUSTED;
  }
  made->capacity = capacity;
  *trace = made;
  return BL_OK;
}

void bl_trace_destroy(bl_trace_t *trace) {
  free(trace);
}

void bl_trace_clear(bl_trace_t *trace) {
  trace->first = 0;
  trace->count = 0;
  trace->dropped = 0;
}

void bl_trace_add(bl_trace_t *trace, const char *name, bool wait, int32_t micro_batch, uint32_t slots_in_use,
                  uint64_t start_ns, uint64_t end_ns) {
  if (trace->count == trace->capacity) {
    trace->first = (trace->first + 1) % trace->capacity;
    trace->count--;
    trace->dropped++;
  }
  bl_trace_event_t *event = &trace->events[(trace->first + trace->count++) % trace->capacity];
  event->start_ns = start_ns;
  event->end_ns = end_ns;
  event->micro_batch = micro_batch;
  event->slots_in_use = slots_in_use;
  event->wait = wait;
  snprintf(event->name, sizeof event->name, "%s", name);
}

size_t bl_trace_count(const bl_trace_t *trace) {
  return trace->count;
}

uint64_t bl_trace_dropped(const bl_trace_t *trace) {
  return trace->dropped;
}

const bl_trace_event_t *bl_trace_get(const bl_trace_t *trace, size_t i) {
  return &trace->events[(trace->first + i) % trace->capacity];
}
