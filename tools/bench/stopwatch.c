// SPDX-License-Identifier: Apache-2.0
#include "stopwatch.h"

#include "sys/clock.h"

#include <stddef.h>

bl_status_t bl_stopwatch_open(bl_stopwatch_t *watch, bl_device_t *device, bl_device_stream_t *stream, bl_error_t *err) {
  *watch = (bl_stopwatch_t){.device = device, .stream = stream};
  bl_status_t status = bl_device_event_create(device, true, &watch->from, err);
  return status == BL_OK ? bl_device_event_create(device, true, &watch->to, err) : status;
}

void bl_stopwatch_close(bl_stopwatch_t *watch) {
  if (watch->device != NULL) {
    bl_device_event_destroy(watch->device, watch->from);
    bl_device_event_destroy(watch->device, watch->to);
  }
  *watch = (bl_stopwatch_t){.device = NULL};
}

bl_status_t bl_stopwatch_start(bl_stopwatch_t *watch, bl_error_t *err) {
  watch->start_ns = bl_clock_now_ns();
  return bl_device_event_record(watch->device, watch->from, watch->stream, err);
}

bl_status_t bl_stopwatch_stop(bl_stopwatch_t *watch, double *seconds, bl_error_t *err) {
  uint64_t ns = bl_clock_now_ns() - watch->start_ns;
  bl_status_t status = bl_device_event_record(watch->device, watch->to, watch->stream, err);
  if (status == BL_OK) {
    status = bl_device_event_wait(watch->device, watch->to, UINT64_MAX, err);
  }
  if (status == BL_OK && watch->stream != NULL) {
    status = bl_device_event_elapsed(watch->device, watch->from, watch->to, &ns, err);
  }
  *seconds = (double)ns * 1e-9;
  return status;
}
