// SPDX-License-Identifier: Apache-2.0
// Times of a device's kernels, recorded by the device's own tools and summed by name. For benchmarks only: it slows the
// device a little, and a step never uses it.
//
//   const bl_device_profiler_t *profiler = bl_device_profiler_of(device, err);
//   if (profiler != NULL && profiler->start(device, err) == BL_OK) {
//     ...                                                  // work, and a wait for its end
//     status = profiler->stop(kernels, 10, &count, &total_ns, err);
//   }
//
// Thread: one at a time. A process has at most one recording.
#ifndef BALLAST_DEVICE_PROFILER_H
#define BALLAST_DEVICE_PROFILER_H

#include "device/device.h"

#include <stddef.h>

#define BL_DEVICE_PROFILER_INTERFACE "profiler"
#define BL_KERNEL_NAME_BYTES         192

typedef struct bl_device_kernel {
  char name[BL_KERNEL_NAME_BYTES]; // the device's name, truncated if it is longer
  uint64_t calls, ns;
} bl_device_kernel_t;

// The table of a module that can profile (its interface "profiler").
typedef struct bl_device_profiler {
  // Starts to record kernels, copies and fills of this process. BL_UNIMPLEMENTED: a library is not installed, or has
  // another major version; BL_UNAVAILABLE: the library refuses, and `err` has its message (another profiler runs,
  // permissions).
  bl_status_t (*start)(bl_device_t *device, bl_error_t *err);
  // Ends the recording; all work must be over. Returns up to `capacity` kernels, longest total time first. *total_ns is
  // the time of all kernels.
  bl_status_t (*stop)(bl_device_kernel_t *kernels, size_t capacity, size_t *count, uint64_t *total_ns, bl_error_t *err);
} bl_device_profiler_t;

// Returns the profiler of a device. NULL with err->status BL_UNIMPLEMENTED if it has none. The host has none.
const bl_device_profiler_t *bl_device_profiler_of(const bl_device_t *device, bl_error_t *err);

// Private to lib/device: sums by name, for the implementations of the table.
typedef struct bl_kernel_sums {
  bl_device_kernel_t *kernels; // owned
  size_t count, capacity;
  uint64_t lost; // calls that were not counted for lack of memory
} bl_kernel_sums_t;

void bl_kernel_sums_add(bl_kernel_sums_t *sums, const char *name, uint64_t ns, uint64_t calls);
// Returns the kernels of the longest time as stop() does, and empties the sums. BL_EXHAUSTED: some calls were lost.
bl_status_t bl_kernel_sums_take(bl_kernel_sums_t *sums, bl_device_kernel_t *kernels, size_t capacity, size_t *count,
                                uint64_t *total_ns, bl_error_t *err) BL_MUST_USE;

#endif
