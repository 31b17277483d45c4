// SPDX-License-Identifier: Apache-2.0
// The time of one kernel of an operation, as measured by the device's profiler (device/profiler.h).
//
//   const bl_kernel_case_t one = {.kernel = "softmax_forward", .run = attention_forward, .context = me};
//   if (bl_kernel_time(device, &watch, &one, &seconds, err) == BL_UNIMPLEMENTED) ... no profiler, or no such kernel
#ifndef BALLAST_BENCH_KERNEL_TIME_H
#define BALLAST_BENCH_KERNEL_TIME_H

#include "stopwatch.h"

typedef struct bl_kernel_case {
  const char *kernel; // a part of its name
  void (*run)(void *context);
  void *context;
} bl_kernel_case_t;

// Measures the seconds of all calls of the kernel in one run. `watch` waits for the end of the run.
BL_MUST_USE bl_status_t bl_kernel_time(bl_device_t *device, bl_stopwatch_t *watch, const bl_kernel_case_t *one,
                                       double *seconds, bl_error_t *err);

#endif
