// SPDX-License-Identifier: Apache-2.0
// Which kernels of a device took how long: what a device's own tools write down, summed by name. For benchmarks: it slows
// the device a little, and a step never asks for it.
//
//   const bl_device_profiler_t *profiler = bl_device_profiler_of(device, err);
//   if (profiler != NULL && profiler->start(device, err) == BL_OK) {
//     ...                                                  // work, waited for
//     status = profiler->stop(kernels, 10, &count, &total_ns, err);
//   }
//
// Thread: one at a time; one recording per process.
#ifndef BALLAST_DEVICE_PROFILER_H
#define BALLAST_DEVICE_PROFILER_H

#include "device/device.h"

#include <stddef.h>

#define BL_DEVICE_PROFILER_INTERFACE "profiler"
#define BL_KERNEL_NAME_BYTES         192

typedef struct bl_device_kernel {
  char name[BL_KERNEL_NAME_BYTES]; // as the device has it, its end cut off where it is longer
  uint64_t calls, ns;
} bl_device_kernel_t;

// The table of a module that can tell (its interface "profiler").
typedef struct bl_device_profiler {
  // Begins to write down kernels, copies and fills of this process. BL_UNIMPLEMENTED: a library for it is not here, or of
  // another major version; BL_UNAVAILABLE: it refuses, with its words (another profiler runs, permissions).
  bl_status_t (*start)(bl_device_t *device, bl_error_t *err);
  // Ends it, when all work is over. Up to `capacity` kernels, those that took longest first; *total_ns is the time of all.
  bl_status_t (*stop)(bl_device_kernel_t *kernels, size_t capacity, size_t *count, uint64_t *total_ns, bl_error_t *err);
} bl_device_profiler_t;

// NULL with err->status BL_UNIMPLEMENTED: this device has none. The host has none.
const bl_device_profiler_t *bl_device_profiler_of(const bl_device_t *device, bl_error_t *err);

// Inside: sums by name, for those who fill the table.
typedef struct bl_kernel_sums {
  bl_device_kernel_t *kernels; // owned
  size_t count, capacity;
  uint64_t lost; // calls that there was no memory for
} bl_kernel_sums_t;

void bl_kernel_sums_add(bl_kernel_sums_t *sums, const char *name, uint64_t ns, uint64_t calls);
// Hands the longest out as stop() does, and empties the sums. BL_EXHAUSTED: some were lost.
bl_status_t bl_kernel_sums_take(bl_kernel_sums_t *sums, bl_device_kernel_t *kernels, size_t capacity, size_t *count,
                                uint64_t *total_ns, bl_error_t *err) BL_MUST_USE;

#endif
