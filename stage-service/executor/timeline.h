// SPDX-License-Identifier: Apache-2.0
// Start and end times of the operations of a run on an asynchronous device (engine.h): the CPU that queues them does
// not know them. An event is recorded before and after each operation. After the run their times become the trace.
//
//   bl_timeline_begin(timeline, err);                    // the device is idle
//   bl_timeline_start(timeline, err); ... queue ...; bl_timeline_stop(timeline, "0F3", 3, 2, err);
//   bl_timeline_read(timeline, trace, &sums, err);       // after bl_engine_finish
//
// A NULL timeline is fine: nothing happens. Operations beyond its capacity are not timed.
// Thread: the compute thread.
#ifndef BALLAST_EXECUTOR_TIMELINE_H
#define BALLAST_EXECUTOR_TIMELINE_H

#include "device/device.h"
#include "observe/trace.h"

typedef struct bl_timeline bl_timeline_t;

typedef struct bl_timeline_sums {
  uint64_t busy_ns; // in operations
  uint64_t idle_ns; // between begin and the end of the last operation, in none
} bl_timeline_sums_t;

// Creates a timeline for `capacity` operations on `stream`. BL_EXHAUSTED, or the status of the device.
BL_MUST_USE bl_status_t bl_timeline_create(bl_device_t *device, bl_device_stream_t *stream, size_t capacity,
                                           bl_timeline_t **timeline, bl_error_t *err);
void bl_timeline_destroy(bl_timeline_t *timeline); // NULL is fine

BL_MUST_USE bl_status_t bl_timeline_begin(bl_timeline_t *timeline, bl_error_t *err);
BL_MUST_USE bl_status_t bl_timeline_start(bl_timeline_t *timeline, bl_error_t *err);
BL_MUST_USE bl_status_t bl_timeline_stop(bl_timeline_t *timeline, const char *name, int32_t micro_batch,
                                         uint32_t slots_in_use, bl_error_t *err);
// Adds the operations to the trace, on the clock of the machine.
BL_MUST_USE bl_status_t bl_timeline_read(bl_timeline_t *timeline, bl_trace_t *trace, bl_timeline_sums_t *sums,
                                         bl_error_t *err);

#endif
