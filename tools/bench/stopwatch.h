// SPDX-License-Identifier: Apache-2.0
// Seconds of work on a device: by events on the stream, or by the clock if work is complete on return.
//
//   bl_stopwatch_t watch;
//   status = bl_stopwatch_open(&watch, device, stream, err);
//   status = bl_stopwatch_start(&watch, err); ...; status = bl_stopwatch_stop(&watch, &seconds, err);   // waits
//   bl_stopwatch_close(&watch);
#ifndef BALLAST_BENCH_STOPWATCH_H
#define BALLAST_BENCH_STOPWATCH_H

#include "device/device.h"

typedef struct bl_stopwatch {
  bl_device_t *device;
  bl_device_stream_t *stream; // NULL: by the clock
  bl_device_event_t *from, *to;
  uint64_t start_ns;
} bl_stopwatch_t;

// Opens a stopwatch. Close it whether this succeeds or not.
BL_MUST_USE bl_status_t bl_stopwatch_open(bl_stopwatch_t *watch, bl_device_t *device, bl_device_stream_t *stream,
                                          bl_error_t *err);
void bl_stopwatch_close(bl_stopwatch_t *watch); // accepts a zeroed stopwatch
BL_MUST_USE bl_status_t bl_stopwatch_start(bl_stopwatch_t *watch, bl_error_t *err);
BL_MUST_USE bl_status_t bl_stopwatch_stop(bl_stopwatch_t *watch, double *seconds, bl_error_t *err);

#endif
