// SPDX-License-Identifier: Apache-2.0
#include "executor/timeline.h"

#include "sys/clock.h"

#include <stdio.h>
#include <stdlib.h>

#define REST_NS (60ull * BL_NS_PER_S) // an idle device answers at once

typedef struct {
  bl_device_event_t *start, *stop;
  char name[BL_TRACE_NAME_BYTES];
  int32_t micro_batch;
  uint32_t slots_in_use;
} span_t;

struct bl_timeline {
  bl_device_t *device;
  bl_device_stream_t *stream;
  bl_device_event_t *base;
  uint64_t base_ns; // when the base event was reached, on the clock of the machine
  size_t capacity, count;
  bool open; // started, but not stopped
  span_t spans[];
};

bl_status_t bl_timeline_create(bl_device_t *device, bl_device_stream_t *stream, size_t capacity,
                               bl_timeline_t **timeline, bl_error_t *err) {
  bl_timeline_t *made = calloc(1, sizeof *made + capacity * sizeof made->spans[0]);
  if (made == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory to time %zu operations", capacity);
  }
  made->device = device;
  made->stream = stream;
  made->capacity = capacity;
  bl_status_t status = bl_device_event_create(device, true, &made->base, err);
  for (size_t i = 0; i < capacity && status == BL_OK; i++) {
    status = bl_device_event_create(device, true, &made->spans[i].start, err);
    if (status == BL_OK) {
      status = bl_device_event_create(device, true, &made->spans[i].stop, err);
    }
  }
  if (status != BL_OK) {
    bl_timeline_destroy(made);
    return status;
  }
  *timeline = made;
  return BL_OK;
}

void bl_timeline_destroy(bl_timeline_t *timeline) {
  if (timeline == NULL) {
    return;
  }
  bl_device_event_destroy(timeline->device, timeline->base);
  for (size_t i = 0; i < timeline->capacity; i++) {
    bl_device_event_destroy(timeline->device, timeline->spans[i].start);
    bl_device_event_destroy(timeline->device, timeline->spans[i].stop);
  }
  free(timeline);
}

bl_status_t bl_timeline_begin(bl_timeline_t *timeline, bl_error_t *err) {
  if (timeline == NULL) {
    return BL_OK;
  }
  timeline->count = 0;
  timeline->open = false;
  bl_status_t status = bl_device_event_record(timeline->device, timeline->base, timeline->stream, err);
  if (status == BL_OK) {
    status = bl_device_event_wait(timeline->device, timeline->base, bl_clock_now_ns() + REST_NS, err);
  }
  timeline->base_ns = bl_clock_now_ns();
  return status;
}

bl_status_t bl_timeline_start(bl_timeline_t *timeline, bl_error_t *err) {
  if (timeline == NULL || timeline->count == timeline->capacity) {
    return BL_OK;
  }
  timeline->open = true;
  return bl_device_event_record(timeline->device, timeline->spans[timeline->count].start, timeline->stream, err);
}

bl_status_t bl_timeline_stop(bl_timeline_t *timeline, const char *name, int32_t micro_batch, uint32_t slots_in_use,
                             bl_error_t *err) {
  if (timeline == NULL || !timeline->open) {
    return BL_OK;
  }
  span_t *span = &timeline->spans[timeline->count++];
  timeline->open = false;
  snprintf(span->name, sizeof span->name, "%s", name);
  span->micro_batch = micro_batch;
  span->slots_in_use = slots_in_use;
  return bl_device_event_record(timeline->device, span->stop, timeline->stream, err);
}

bl_status_t bl_timeline_read(bl_timeline_t *timeline, bl_trace_t *trace, bl_timeline_sums_t *sums, bl_error_t *err) {
  *sums = (bl_timeline_sums_t){0};
  uint64_t last_ns = 0;
  for (size_t i = 0; timeline != NULL && i < timeline->count; i++) {
    const span_t *span = &timeline->spans[i];
    uint64_t start_ns, length_ns;
    bl_status_t status = bl_device_event_elapsed(timeline->device, timeline->base, span->start, &start_ns, err);
    if (status == BL_OK) {
      status = bl_device_event_elapsed(timeline->device, span->start, span->stop, &length_ns, err);
    }
    if (status != BL_OK) {
      return status;
    }
    sums->busy_ns += length_ns;
    last_ns = start_ns + length_ns > last_ns ? start_ns + length_ns : last_ns;
    bl_trace_add(trace, span->name, false, span->micro_batch, span->slots_in_use, timeline->base_ns + start_ns,
                 timeline->base_ns + start_ns + length_ns);
  }
  sums->idle_ns = last_ns > sums->busy_ns ? last_ns - sums->busy_ns : 0;
  return BL_OK;
}
